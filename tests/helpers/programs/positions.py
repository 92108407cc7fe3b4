"""A program that goes on from its last checkpoint, and what it has read since."""

import logging

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common

RECORDS = 48


def _generated():
    for number in range(RECORDS):
        yield number


def _data(kind):
    """Numbers of records, in an order that a seed draws; `kind`: of what TensorFlow can save of it."""
    if kind.startswith("generator"):
        data = tf.data.Dataset.from_generator(_generated, tf.int64, []).repeat().map(lambda x: x * 7 % RECORDS)
    else:
        data = tf.data.Dataset.range(RECORDS).shuffle(20, seed=5).repeat()
    if kind.startswith("reversed"):  # of batches that are divided as they are
        return data.batch(int(kind.split()[1])).map(lambda x: x[::-1] + 1)
    return data.batch(4).map(lambda x: x + 1).prefetch(2)


def _iterator(data, kind):
    if kind == "one shot":
        return data.make_one_shot_iterator(), []
    iterator = data.make_initializable_iterator()
    return iterator, [iterator.initializer]


def train(epl, folder, steps, kind="shuffled", config=None, saved="per_worker"):
    """Trains until a global step, and saves every three.

    Args:
      folder: of checkpoints, the same for all workers.
      steps: the global step at which it ends.
      kind: "shuffled", "one shot", "generator", "generator by handle", or "reversed 4", batches of so many.
      config: keys besides checkpoint.data_position and io.shard_dataset.
      saved: checkpoint.data_position.

    Returns:
      dict: global step from which it went on, batches of this worker, values at the end, warnings of EPL.
    """
    common.init(
        epl,
        dict({"checkpoint.data_position": saved, "io.shard_dataset": True}, **(config or {})),
    )
    if epl:
        epl.set_default_strategy(epl.replicate(1))
    heard = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())
    logging.getLogger("epl").addHandler(handler)
    step = tf.train.get_or_create_global_step()
    iterator, begin = _iterator(_data(kind), kind)
    if kind == "generator by handle":
        chosen = tf.placeholder(tf.string, [])
        rows = tf.data.Iterator.from_string_handle(chosen, tf.int64, [None]).get_next()
    else:
        rows = iterator.get_next()
    weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(weight - tf.cast(rows, tf.float32) * 0.1))
    train_op = tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss, step)
    handle = iterator.string_handle()
    read = common.rows_everywhere(epl, rows)
    scaffold = tf.train.Scaffold(local_init_op=tf.group(tf.tables_initializer(), *begin))
    options = dict(checkpoint_dir=folder, save_checkpoint_steps=3, scaffold=scaffold, save_summaries_steps=0)
    batches = []
    with tf.train.MonitoredTrainingSession(config=common.threads(), **options) as session:
        began = done = int(session.run(step))
        feeds = {chosen: session.run(handle)} if kind == "generator by handle" else {}
        while done < steps:
            _, done, batch = session.run([train_op, step, read], feeds)
            batches.append(np.sort(batch).tolist())
        values = session.run(tf.global_variables())
    logging.getLogger("epl").removeHandler(handler)
    return {"began": began, "batches": batches, "values": values, "warnings": heard}


def by_hand(epl, folder, began, steps):
    """The same in a session without hooks, of the program's own Saver; restores at step `began`, saves at `steps`.

    Returns:
      The batches that were read.
    """
    common.init(epl, {"checkpoint.data_position": "per_worker"})
    epl.set_default_strategy(epl.replicate(1))
    iterator, begin = _iterator(_data("shuffled"), "shuffled")
    rows = iterator.get_next()
    weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
    train_op = tf.train.AdamOptimizer().minimize(tf.reduce_mean(tf.square(weight - tf.cast(rows, tf.float32))))
    read, saver, prefix = common.rows_everywhere(epl, rows), tf.train.Saver(), folder + "/model"
    with tf.Session(config=common.threads()) as session:
        session.run([tf.global_variables_initializer()] + begin)
        if began:
            saver.restore(session, "%s-%d" % (prefix, began))
        batches = [np.sort(session.run([train_op, read])[1]).tolist() for _ in range(steps - began)]
        saver.save(session, prefix, steps)
    return batches
