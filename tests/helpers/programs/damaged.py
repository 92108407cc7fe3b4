"""A program that goes on from the checkpoints of a folder, of which the last ones are damaged before."""

import logging
import os

import tensorflow.compat.v1 as tf

from tests.helpers.programs import common


def _flip(path):
    with open(path + ".data-00000-of-00001", "r+b") as file:
        content = bytearray(file.read())
        content[len(content) // 2] ^= 1
        file.seek(0)
        file.write(content)


def _cut(path):
    data = path + ".data-00000-of-00001"
    os.truncate(data, os.path.getsize(data) // 2)


def _garbage(path):
    with open(path + ".index", "wb") as file:
        file.write(b"nothing of a table" * 10)


DAMAGES = {
    "flip": _flip,
    "cut": _cut,
    "garbage": _garbage,
    "no_index": lambda path: os.remove(path + ".index"),
    "no_data": lambda path: os.remove(path + ".data-00000-of-00001"),
}


class _Warnings(logging.Handler):
    def __init__(self):
        super(_Warnings, self).__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def train(epl, folder, steps, damages=(), verify=True):
    """Trains on from a folder's checkpoints, saving after each step.

    Args:
      folder: of checkpoints, the same for all workers.
      steps: how many.
      damages: what to do before to the last checkpoints, the newest first: names of DAMAGES.
      verify: checkpoint.verify.

    Returns:
      (global step from which it went on, the variable at the end, what EPL warned of).
    """
    common.init(epl, {"checkpoint.verify": verify})
    if epl:
        epl.set_default_strategy(epl.replicate(1))
    heard = _Warnings()
    logging.getLogger("epl").addHandler(heard)
    state = tf.train.get_checkpoint_state(folder) if damages else None
    if common.workers(epl)[0] == 0:
        for path, damage in zip(reversed(state.all_model_checkpoint_paths if state else []), damages):
            DAMAGES[damage](path)
    step = tf.train.get_or_create_global_step()
    weight = tf.get_variable("weight", [64, 8], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(tf.ones([8, 64]), weight) - 1.0))
    train_op = tf.train.MomentumOptimizer(0.001, 0.9).minimize(loss, step)
    with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, save_checkpoint_steps=1) as session:
        began = session.run(step)
        for _ in range(steps):
            session.run(train_op)
        value = session.run(weight)
    logging.getLogger("epl").removeHandler(heard)
    return int(began), value, heard.texts
