"""A divided table that is large enough for each device to write and read its own part of it."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.programs.split import OPTIMIZERS, dividing_scope


def large(epl, device_count, folder, saved=None, resource=False, **config):
    """Trains with a table that is large enough for each device to write and read its own part of it.

    Args:
      folder: where the checkpoint "model" is written.
      saved: a checkpoint to begin with.
      config: with "__" for the dot.

    Returns:
      (all variables before the first step, after the last and as the new checkpoint gives them back; names of what is
      gathered for checkpoints, and the slices that they are written and read in).
    """
    common.init(epl, {key.replace("__", "."): value for key, value in config.items()})
    tf.set_random_seed(4)
    ids, wanted = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None, 50])
    with tf.variable_scope("model", use_resource=resource), dividing_scope(epl, device_count):
        table = tf.get_variable("table", [401, 50])
        rows = tf.nn.embedding_lookup(table, ids) * tf.get_variable("scale", [50], initializer=tf.ones_initializer())
        loss = tf.reduce_mean(tf.square(rows - wanted))
    step = OPTIMIZERS["adagrad"]().minimize(loss, tf.train.get_or_create_global_step())
    variables, saver, alone, found = tf.global_variables(), tf.train.Saver(), tf.train.Saver([table]), []
    with tf.Session() as session:
        if saved:
            saver.restore(session, saved)
        else:
            session.run(tf.global_variables_initializer())
        found.append(session.run([v.value() for v in variables]))
        for number in range(2):
            drawn = np.random.RandomState(number)
            session.run(step, {ids: drawn.randint(0, 401, 6), wanted: drawn.rand(6, 50)})
        found.append(session.run([v.value() for v in variables]))
        written = saver.save(session, os.path.join(folder, "model"))
        table_alone = alone.save(session, os.path.join(folder, "table"))
        session.run(tf.global_variables_initializer())
        saver.restore(session, written)
        alone.restore(session, table_alone)
        found.append(session.run([v.value() for v in variables]))
        if not epl:
            return found, None
        nodes = epl.session.hooks.driver_of(session).graph.nodes
        gathered = [name for name in nodes if "SaveV2/all_gather" in name]
        texts = [text for node in nodes.values() if node.op == "Const" for text in node.attr["value"].tensor.string_val]
        slices = {text.decode() for text in texts if text.startswith(b"401 50 ")}
        return found, (gathered, slices)
