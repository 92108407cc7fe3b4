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


def test_a_graph_that_grows_after_a_run_brings_no_complaints(capfd):
    """Of operations that were changed after they had run: what is new takes them as they are."""

    def node(name, *inputs):
        return tf_compat.NodeDef(name=name, op="NoOp", input=inputs)

    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.constant(3.0, name="three")
        session.run("three:0")
        tf_compat.import_nodes(graph, tf_compat.GraphDef(node=[node("first"), node("second", "^first")]), [])
        tf_compat.NamedRunner(session, [], [], ["second"])([])
        tf_compat.import_nodes(graph, tf_compat.GraphDef(node=[node("third", "^second")]), [("second", -1)])
        tf_compat.NamedRunner(session, [], [], ["third"])([])
    assert "was changed" not in capfd.readouterr().err
