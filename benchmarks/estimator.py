"""Steps of Estimator.train against those of a bare loop over the same model and data, with EPL and without.

    python benchmarks/estimator.py                       one process
    epl-launch --num_workers 2 --gpu_per_worker 1 --device cpu benchmarks/estimator.py

The two take a step in turn in the same processes; what counts is the median time of a step. What an Estimator costs
without EPL, hooks and the fetch of global_step for the most part, is measured first, in a process of its own.
"""

import argparse
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

import epl  # noqa: E402

_FEATURES, _BATCH = 256, 256


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


class Both(tf.train.SessionRunHook):
    """Takes a step of the bare loop after each step of the Estimator and times both.

    So whatever the machine does meanwhile, it does to both; whole runs one after the other differ by up to a tenth.

    Args:
      merged: whether the bare loop asks for the loss over all workers, as an Estimator does with EPL.
    """

    def __init__(self, merged):
        self._merged = merged
        self.estimator, self.bare = [], []
        self._began = None

    def begin(self):
        with tf.Graph().as_default():
            self._fetches = model(*tf.data.make_one_shot_iterator(input_fn()).get_next())
            if self._merged:
                epl.add_to_collection(self._fetches[0], epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
            self._session = tf.Session()
            self._session.run(tf.global_variables_initializer())

    def after_run(self, run_context, run_values):
        ended = time.perf_counter()
        self._session.run(self._fetches)
        now = time.perf_counter()
        if self._began is not None:
            self.estimator.append(ended - self._began)
            self.bare.append(now - ended)
        self._began = now

    def end(self, session):
        self._session.close()


def measure(label, turns, steps, merged):
    """Prints what both took."""
    bare, estimator = [], []
    for _ in range(turns):
        both = Both(merged)
        # Without a session_config, an Estimator asks TensorFlow to optimise its graph once instead of twice, which
        # makes these steps 3 % longer on TensorFlow 2.15; here both get the same.
        config = tf.estimator.RunConfig(
            session_config=tf.ConfigProto(), save_checkpoints_steps=None, save_checkpoints_secs=None
        )
        tf.estimator.Estimator(model_fn, config=config).train(input_fn, hooks=[both], steps=steps)
        bare.append(1e3 * np.median(both.bare[10:]))
        estimator.append(1e3 * np.median(both.estimator[10:]))
        print("%s: bare loop %.2f ms, Estimator %.2f ms a step" % (label, bare[-1], estimator[-1]), flush=True)
    ratios = np.divide(bare, estimator)
    print("%s: ratio %.3f, the median of %d turns" % (label, np.median(ratios), turns), flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=60, help="of each turn")
    options.add_argument("--turns", type=int, default=5)
    options.add_argument("--plain", action="store_true", help="without EPL only")
    options = options.parse_args()
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    if options.plain:
        measure("without EPL", options.turns, options.steps, merged=False)
        return
    alone = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    subprocess.run([sys.executable, os.path.abspath(__file__), "--plain"] + sys.argv[1:], env=alone, check=True)
    epl.init()
    measure("with EPL", options.turns, options.steps, merged=True)


if __name__ == "__main__":
    main()
