"""Steps of Estimator.train against those of a bare loop over the same model and data, both with EPL.

    python benchmarks/estimator.py                       one process
    epl-launch --num_workers 2 --gpu_per_worker 1 --device cpu benchmarks/estimator.py

The two take turns in the same processes; what counts is the median time from one step to the next.
"""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

import epl  # noqa: E402

_FEATURES, _BATCH = 256, 128


def input_fn():
    rng = np.random.RandomState(0)
    rows = rng.normal(size=(4 * _BATCH, _FEATURES)).astype(np.float32), rng.randint(0, 10, 4 * _BATCH)
    return tf.data.Dataset.from_tensor_slices(rows).repeat().batch(_BATCH, drop_remainder=True).prefetch(2)


def model(features, labels):
    """The loss, and the operation that trains."""
    for _ in range(4):
        features = tf.layers.dense(features, 1024, tf.nn.relu)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, tf.layers.dense(features, 10))
    return loss, tf.train.MomentumOptimizer(0.001, 0.9).minimize(loss, tf.train.get_or_create_global_step())


def model_fn(features, labels, mode):
    loss, train_op = model(features, labels)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


class Times(tf.train.SessionRunHook):
    """When each step has ended."""

    def __init__(self):
        self.ends = []

    def after_run(self, run_context, run_values):
        self.ends.append(time.perf_counter())


def by_estimator(steps):
    times = Times()
    config = tf.estimator.RunConfig(save_checkpoints_steps=None, save_checkpoints_secs=None)
    tf.estimator.Estimator(model_fn, config=config).train(input_fn, hooks=[times], steps=steps)
    return times.ends


def by_bare_loop(steps):
    ends = []
    with tf.Graph().as_default():
        loss, train_op = model(*tf.data.make_one_shot_iterator(input_fn()).get_next())
        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for _ in range(steps):
                sess.run([train_op, loss])
                ends.append(time.perf_counter())
    return ends


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=150, help="of each turn")
    options.add_argument("--turns", type=int, default=3)
    options = options.parse_args()
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    epl.init()
    periods = {by_bare_loop: [], by_estimator: []}
    for _ in range(options.turns):
        for kind, found in periods.items():
            found.extend(np.diff(kind(options.steps)[10:]))
    bare, estimator = (1e3 * np.median(found) for found in periods.values())
    print("bare loop %.2f ms, Estimator %.2f ms a step: ratio %.3f" % (bare, estimator, bare / estimator))


if __name__ == "__main__":
    main()
