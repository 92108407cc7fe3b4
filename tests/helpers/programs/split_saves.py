"""A classifier that devices divide, some of whose variables are saved as slices and others gathered."""

import contextlib
import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.programs.split import OPTIMIZERS, dividing_scope
from tests.helpers.zoo import model as m


def goes_on(epl, device_count, folder, width, classes, alone, **config):
    """Everything before a checkpoint is written, after it is restored, and after one more step.

    Args:
      folder: where the checkpoint "model" is written.
      width, classes: of the kernel of the logits; checkpoints have slices of what is 64 KiB or more.
      alone: whether all of the model is in `epl.split`, not only its logits beside `epl.replicate`.
      config: with "__" for the dot.
    """
    config["cluster__colocate_split_and_replicate"] = not alone
    common.init(epl, {key.replace("__", "."): value for key, value in config.items()})
    x, labels = tf.placeholder(tf.float32, [None, 8]), tf.placeholder(tf.int64, [None])
    with contextlib.ExitStack() as scopes:
        scopes.enter_context(dividing_scope(epl, device_count, "split" if alone else "replicate"))
        hidden = m.dense(x, width, "hidden", seed=1, activation=tf.nn.tanh)
        if not alone:
            scopes.pop_all().close()
            scopes.enter_context(dividing_scope(epl, device_count))
        loss = m.classification(m.dense(hidden, classes, "logits", seed=3), labels)
    step = OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
    saver, found = tf.train.Saver(), []

    def train(session, number):
        drawn = np.random.RandomState(number)
        rows, wanted = drawn.rand(8, 8), drawn.randint(0, classes, 8)
        copies = common.replicas(epl) // device_count if epl else 1
        if epl and common.workers(epl)[1] > 1 and copies > 1:  # each copy's workers are fed its rows
            copy = common.workers(epl)[0] * copies // common.workers(epl)[1]
            rows, wanted = np.split(rows, copies)[copy], np.split(wanted, copies)[copy]
        session.run(step, {x: rows, labels: wanted})

    with common.session() as session:
        common.initialize(session)
        train(session, 0)
        saver.save(session, os.path.join(folder, "model"), write_meta_graph=False)
        found.append(common.state(session))
        train(session, 1)
        saver.restore(session, os.path.join(folder, "model"))
        found.append(common.state(session))
        train(session, 2)
        found.append(common.state(session))
    return found
