"""Programs that train with momentum while workers send each other the largest parts of gradients."""

import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.zoo import model as m

RATE, MOMENTUM = 0.2, 0.9


def _model(feeds, units, resource):
    with tf.variable_scope("", use_resource=resource):
        feeds.x.set_shape([None, common.FEATURES])
        hidden = m.dense(feeds.x, units, "hidden", seed=1, activation=tf.nn.tanh)
        loss = m.classification(m.dense(hidden, common.CLASSES, "logits", seed=3), feeds.labels)
        return loss, tf.train.MomentumOptimizer(RATE, MOMENTUM).minimize(loss)


def train(epl, config, steps, resource=False, units=8):
    """What this worker's first copy of the model computes: {"losses", "states"}, and initial variables."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    loss, update = _model(feeds, units, resource)
    history = {"losses": [], "states": []}
    with common.session() as sess:
        common.initialize(sess)
        initial = common.state(sess)
        for number in range(steps):
            history["losses"].append(sess.run([loss, update], feeds.of(number))[0])
            history["states"].append(common.state(sess))
    return history, initial
