"""What a session is asked to prepare, and when it is given up."""

import weakref

import tensorflow.compat.v1 as tf

from epl import tf_compat


def test_callables_are_given_up_with_their_runner_and_before_python_ends():
    """Not by a callable's own __del__ alone: at the end of a program TensorFlow's modules may be gone before it."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.constant(3.0, name="three")
        runner = tf_compat.NamedRunner(session, [], ["three:0"], [])
        assert [float(value) for value in runner([])] == [3.0]
        (finalizer,) = [each for each in weakref.finalize._registry if each.peek() and each.peek()[0] is runner]
        made = finalizer.peek()[2][0]
        assert finalizer.atexit and made._handle is not None
        del runner
        assert not finalizer.alive and made._handle is None
