"""Control flow of graphs or of functions, whatever the TensorFlow line takes by itself; without EPL."""

import contextlib

import tensorflow.compat.v1 as tf


@contextlib.contextmanager
def control_flow(version):
    """Control flow "v1" or "v2", whatever the TensorFlow line takes by itself."""
    choose = {True: tf.enable_control_flow_v2, False: tf.disable_control_flow_v2}
    before = tf.control_flow_v2_enabled()
    choose[version == "v2"]()
    try:
        yield
    finally:
        choose[before]()
