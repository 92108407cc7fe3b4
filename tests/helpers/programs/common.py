"""Pieces of the programs: a small model, its data, and this process' part of them."""

import contextlib
import logging

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.zoo import model as m

BATCH = 8
FEATURES = 6
CLASSES = 3


def init(epl, config=None):
    """Starts EPL afresh; nothing in the plain process."""
    if epl:
        epl.init(epl.Config(config or {}))


def workers(epl):
    """(index of this worker, number of workers)."""
    if not epl:
        return 0, 1
    cluster = epl.Env.get().cluster
    return cluster.worker_index, cluster.worker_num


def replicas(epl):
    """Number of devices of the whole job."""
    return epl.Env.get().cluster.total_gpu_num if epl else 1


def share(epl, rows):
    """This worker's equal part of the rows of a global batch."""
    index, count = workers(epl)
    size = len(rows) // count
    assert size * count == len(rows)
    return rows[index * size : (index + 1) * size]


def batch(step, size=BATCH, features=FEATURES):
    """The global batch of a step: (x [size, features], labels [size])."""
    rng = np.random.RandomState(1000 + step)
    return rng.normal(size=(size, features)).astype(np.float32), rng.randint(0, CLASSES, size).astype(np.int64)


class Feeds(object):
    """Placeholders for x and labels, and the feeds of this worker."""

    def __init__(self, epl):
        self._epl = epl
        self.x = tf.placeholder(tf.float32, [None, FEATURES], name="x")
        self.labels = tf.placeholder(tf.int64, [None], name="labels")

    def of(self, step):
        x, labels = batch(step)
        return {self.x: share(self._epl, x), self.labels: share(self._epl, labels)}


def classifier(x, labels):
    """The loss of two dense layers."""
    x.set_shape([None, FEATURES])
    hidden = m.dense(x, 8, "hidden", seed=1, activation=tf.nn.tanh)
    return m.classification(m.dense(hidden, CLASSES, "logits", seed=3), labels)


def mean_everywhere(epl, tensor):
    """The tensor's mean over all replicas, when fetched."""
    if epl:
        epl.add_to_collection(tensor, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    return tensor


def rows_everywhere(epl, tensor):
    """The rows of all replicas, when fetched."""
    tensor = tf.identity(tensor)
    if epl:
        epl.add_to_collection(tensor, epl.GraphKeys.GLOBAL_CONCAT_OBJECTS)
    return tensor


@contextlib.contextmanager
def no_scope():
    yield


@contextlib.contextmanager
def messages():
    """A list that gets what EPL says meanwhile."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("epl").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("epl").removeHandler(handler)


def scope_of(epl):
    """What makes the scope of a stage; nothing in the plain process."""
    return (lambda: epl.replicate(device_count=1)) if epl else no_scope


def session(as_it_is=True):
    """A session with few threads, which runs the graph as it is unless it is told otherwise.

    TensorFlow's rewriting of graphs takes half the time of a small program. Monitored sessions, estimators, Keras, the
    programs of tests/helpers/programs/split.py, the zoo and the examples run with it.
    """
    config = threads()
    config.graph_options.rewrite_options.disable_meta_optimizer = as_it_is
    return tf.Session(config=config)


def threads():
    return tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)


def trained(feeds, loss, update, steps, as_it_is=True):
    """Trains from the first values: {"losses", "states"} of each step, and the first values."""
    history = {"losses": [], "states": []}
    with session(as_it_is) as sess:
        initialize(sess)
        initial = state(sess)
        for number in range(steps):
            history["losses"].append(sess.run([loss, update], feeds.of(number))[0])
            history["states"].append(state(sess))
    return history, initial


def initialize(sess):
    sess.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])


def state(sess):
    """All global variables by name."""
    return sess.run({variable.op.name: variable for variable in tf.global_variables()})


def goes_on(feeds, loss, train_op, begin, until, before, after):
    """Trains from one step to another: the losses, and the variables after each step.

    Args:
      before: a checkpoint to restore, which gives all variables values; None: first values.
      after: where to save a checkpoint at the end; None: nowhere.
    """
    saver, losses, states = tf.train.Saver(), [], []
    with session() as sess:
        if before:
            saver.restore(sess, before)
            assert sess.run(tf.report_uninitialized_variables()).size == 0
        else:
            initialize(sess)
        for step in range(begin, until):
            losses.append(sess.run([loss, train_op], feeds.of(step))[0])
            states.append(state(sess))
        if after:
            saver.save(sess, after)
    return {"losses": losses, "states": states}
