"""The model of added_pass.py as it is written, and its checkpoints."""

import tensorflow.compat.v1 as tf

from tests.helpers.programs import common


def build(epl):
    """(Feeds, the training operation)."""
    common.init(epl, {"communication.check_replicas_every": 1})
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, name="train")
    return feeds, tf.get_default_graph().get_operation_by_name("train")


def save(epl, path):
    """Writes a checkpoint of first values."""
    build(epl)
    with common.session() as sess:
        common.initialize(sess)
        tf.train.Saver().save(sess, path)


def restore(epl, path):
    """{what a checkpoint holds: shape}, and the names of the variables that were restored from it."""
    build(epl)
    with common.session() as sess:
        tf.train.Saver().restore(sess, path)
        assert not len(sess.run(tf.report_uninitialized_variables()))
    return dict(tf.train.list_variables(path)), sorted(v.op.name for v in tf.global_variables())
