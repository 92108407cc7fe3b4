"""Programs that train with momentum while workers send each other the largest parts of gradients."""

import importlib.util
import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.zoo import model as m

RATE, MOMENTUM = 0.2, 0.9
DIGITS = os.path.join(os.path.dirname(__file__), "..", "..", "..", "examples", "digits", "model.py")


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
    return common.trained(feeds, loss, update, steps)


def monitored(epl, config, folder, until):
    """What a monitored session computes that goes on from what the folder has, up to a global step: {"losses",
    "states"}."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    loss, update = _model(feeds, 8, False)
    with tf.control_dependencies([update]):
        update = tf.assign_add(tf.train.get_or_create_global_step(), 1)
    history, variables = {"losses": [], "states": []}, {v.op.name: v for v in tf.global_variables()}
    del variables["global_step"]
    saving = dict(checkpoint_dir=folder, save_checkpoint_steps=5, save_summaries_steps=None)
    with tf.train.MonitoredTrainingSession(config=common.threads(), **saving) as sess:
        for number in range(int(sess.run(tf.train.get_global_step())), until):
            history["losses"].append(sess.run([loss, update], feeds.of(number))[0])
            history["states"].append(sess.run(variables))
    return history


def saved_as_objects(epl, config, folder):
    """The error for a tf.train.Checkpoint that is to save."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    update = _model(feeds, 8, True)[1]
    checkpoint = tf.train.Checkpoint(**{"v%d" % i: v for i, v in enumerate(tf.trainable_variables())})
    with common.session() as sess:
        common.initialize(sess)
        sess.run(update, feeds.of(0))
        try:
            checkpoint.save(folder + "/objects", session=sess)
        except epl.errors.UnsupportedError as error:
            return str(error)
    return "saved"


def digits(epl, config, steps, seed, rows=64, rate=0.05):
    """Trains the network of the example of handwritten digits; the share of those right that it has not seen."""
    from sklearn.datasets import load_digits

    spec = importlib.util.spec_from_file_location("digits_model", DIGITS)
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    common.init(epl, config)
    data, rng = load_digits(), np.random.RandomState(seed)
    order = np.random.RandomState(0).permutation(len(data.target))
    images, labels = data.images[order][..., None].astype(np.float32) / model.MAX_PIXEL, data.target[order]
    tests = len(labels) // 5
    tf.set_random_seed(seed)
    x = tf.placeholder(tf.float32, [None, model.IMAGE_SIZE, model.IMAGE_SIZE, 1])
    y = tf.placeholder(tf.int64, [None])
    logits = model.network(x)
    loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
    update = tf.train.MomentumOptimizer(rate, MOMENTUM).minimize(loss)
    right = tf.cast(tf.equal(tf.argmax(logits, axis=1), y), tf.float32)
    with common.session() as sess:
        common.initialize(sess)
        for _ in range(steps):
            batch = tests + rng.choice(len(labels) - tests, rows, replace=False)
            sess.run(update, {x: common.share(epl, images[batch]), y: common.share(epl, labels[batch])})
        return float(np.mean(sess.run(right, {x: images[:tests], y: labels[:tests]})))
