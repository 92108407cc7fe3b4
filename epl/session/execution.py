"""The ConfigProto of the inner session: the program's own, and what the execution.* keys say where it says nothing."""

import tensorflow.compat.v1 as tf

from epl import tf_compat


def session_proto(own, execution):
    """A new ConfigProto.

    Args:
      own: the program's ConfigProto, or None. What it sets to anything but TensorFlow's default stays.
      execution: the configuration's `execution` part.
    """
    proto = tf.ConfigProto()
    if own is not None:
        proto.CopyFrom(own)
    if execution.num_threads and not proto.intra_op_parallelism_threads:
        proto.intra_op_parallelism_threads = execution.num_threads
    if execution.inter_op_threads and not proto.inter_op_parallelism_threads:
        proto.inter_op_parallelism_threads = execution.inter_op_threads
    if execution.xla and proto.graph_options.optimizer_options.global_jit_level == tf.OptimizerOptions.DEFAULT:
        tf_compat.cluster_with_xla(proto)
    return proto
