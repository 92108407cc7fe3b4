"""A program whose gradients are exact in float32, so that the same numbers are rounded in the same way everywhere."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common

RATE, MOMENTUM = 0.25, 0.5
ROWS = 2  # of a worker: two numbers add up to the same in any order
SHAPES = {"few": (3,), "matrix": (40, 25), "vector": (1201,)}


def batch(step, workers):
    """{variable: rows} of all workers; some numbers are much larger than others."""
    rng = np.random.RandomState(step)

    def rows(shape):
        return (rng.normal(size=(ROWS * workers,) + shape) * 10.0 ** rng.randint(-3, 3, size=shape)).astype(np.float32)

    return {name: rows(shape) for name, shape in sorted(SHAPES.items())}


def train(epl, config, steps, resource=False, scope=None, apart=1):
    """What this worker's first copy of the model computes: {"losses", "states"}, and initial variables.

    Args:
      scope: "stages": the model has two; "rows": two devices divide a batch; "split": they divide tensors.
      apart: workers in which a copy of the model lies.
    """
    common.init(epl, config)
    loss, update, feed_of = _model(epl, resource, scope, apart)
    history = {"losses": [], "states": []}
    with common.session() as sess:
        common.initialize(sess)
        for number in range(steps):
            history["losses"].append(sess.run([loss, update], feed_of(number))[0])
            history["states"].append(common.state(sess))
    return history


def monitored(epl, config, folder, until):
    """What a monitored session computes that goes on from what the folder has, up to a global step: {"losses",
    "states"}."""
    common.init(epl, config)
    loss, update, feed_of = _model(epl, True)
    variables = {v.op.name: v for v in tf.global_variables()}
    with tf.control_dependencies([update]):
        update = tf.assign_add(tf.train.get_or_create_global_step(), 1)
    history = {"losses": [], "states": []}
    saving = dict(checkpoint_dir=folder, save_checkpoint_steps=5, save_summaries_steps=None)
    with tf.train.MonitoredTrainingSession(config=common.threads(), **saving) as sess:
        for number in range(int(sess.run(tf.train.get_global_step())), until):
            history["losses"].append(sess.run([loss, update], feed_of(number))[0])
            history["states"].append(sess.run(variables))
    return history


def _scopes(epl, kind):
    """(scope, variables that it has)."""
    names = sorted(SHAPES)
    if kind == "stages":
        return [(epl.replicate(1), names[:1]), (epl.replicate(1), names[1:])]
    scope = {"rows": epl.replicate, "split": epl.split}.get(kind)
    return [(scope(2) if scope else common.no_scope(), names)]


def _model(epl, resource, scope=None, apart=1):
    """(loss, update, function from a step to what this worker feeds)."""
    feeds, loss = {}, 0.0
    for own, names in _scopes(epl, scope):
        with own, tf.variable_scope("", use_resource=resource):
            for name in names:
                variable = tf.get_variable(name, SHAPES[name], initializer=tf.zeros_initializer())
                if scope == "split":
                    variable = epl.shard(variable, 0)
                feeds[name] = tf.placeholder(tf.float32, (None,) + SHAPES[name])
                share = tf.cast(tf.shape(feeds[name])[0], tf.float32)
                loss += tf.nn.l2_loss(variable - feeds[name]) / share
    update = tf.train.MomentumOptimizer(RATE, MOMENTUM).minimize(loss)
    index, workers = (number // apart for number in common.workers(epl))
    mine = slice(ROWS * index, ROWS * (index + 1))
    return loss, update, lambda step: {feeds[name]: rows[mine] for name, rows in batch(step, workers).items()}
