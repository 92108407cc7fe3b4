"""Tables of which devices have rows, looked up by the devices that divide the batch: rows travel (epl.split)."""

import contextlib

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.programs.split import OPTIMIZERS, share_of_copy
from tests.helpers.programs.tables import LazyMomentum

ROWS, WIDTH, IDS = 1001, 32, 40  # large enough that it is less to send rows to where they are needed
ENTRIES = ("flattened", "sparse", "weighted", "safe", "safe_weighted")
_OPTIMIZERS = dict(OPTIMIZERS, lazy=LazyMomentum)


def _of_entries(table, ids, kind):
    """What is looked up of a sparse batch for each of its rows, or of ids that are flattened."""
    if kind == "flattened":
        return tf.reshape(tf.gather(table, tf.reshape(ids, [-1])), [-1, IDS * WIDTH])
    form, combiner = kind.split()
    weights, is_safe = None, form.startswith("safe")
    if form.endswith("weighted"):
        least = -0.1 if is_safe else 0.5  # safe lookups leave out what has no weight, but for sums
        weights = tf.SparseTensor(ids.indices, least + 0.01 * tf.cast(ids.values % 50, tf.float32), ids.dense_shape)
    look_up = tf.nn.safe_embedding_lookup_sparse if is_safe else tf.nn.embedding_lookup_sparse
    return tf.reshape(look_up(table, ids, weights, combiner=combiner), [-1, WIDTH])


def entries(drawn, kind=""):
    """The SparseTensorValue of ids, of which rows have different numbers, but each has some. With the kind "sparse" the
    second one has none, and with a "safe" one neither that, nor the last one, which may be the only one; the third one
    has ids of -1 alone, and others have some."""
    where = np.argwhere(np.random.RandomState(5).rand(*drawn.shape) < np.linspace(0.1, 0.9, len(drawn))[:, None])
    where = np.array(sorted(set(map(tuple, where)) | {(row, 0) for row in range(len(drawn))}), np.int64)
    is_safe = kind.startswith("safe")
    if is_safe or kind.startswith("sparse"):
        where = where[~np.isin(where[:, 0], [1, len(drawn) - 1] if is_safe else [1])]
    ids = drawn[tuple(where.T)]
    if is_safe:
        ids = np.where((ids % 7 == 3) | (where[:, 0] == 2), -1, ids)
    return tf.SparseTensorValue(where, ids, drawn.shape)


def share_of_entries(epl, device_count, value):
    """`share_of_copy` of a SparseTensorValue."""
    rows = share_of_copy(epl, device_count, np.arange(value.dense_shape[0]))
    own = np.isin(value.indices[:, 0], rows)
    return tf.SparseTensorValue(
        value.indices[own] - [rows[0], 0], value.values[own], (len(rows),) + tuple(value.dense_shape[1:])
    )


def _looked_up(epl, device_count, ids, inside, kind):
    """The rows, for each row of the batch one or one after the other; of one table, or of it twice."""
    scope = epl.split(device_count) if epl and device_count > 1 else contextlib.suppress()
    with scope:
        table = tf.get_variable("table", [ROWS, WIDTH], initializer=tf.random_normal_initializer())
        if kind == "keras":
            layer = tf.keras.layers.Embedding(ROWS, WIDTH, name="embedding")
            layer.build(None)
        look_up = layer if kind == "keras" else (lambda given: tf.nn.embedding_lookup(table, given))
        is_of_entries = kind.split()[0] in ENTRIES
        find = (lambda: _of_entries(table, ids, kind)) if is_of_entries else (lambda: look_up(ids))
        rows = find() if inside else None
    rows = rows if inside else find()
    if is_of_entries:
        return rows
    if kind == "twice":
        rows = rows * look_up(tf.identity(ids)[:, ::-1])
    if kind == "sum":
        return tf.reduce_sum(rows, 1)
    return tf.reshape(rows, [-1, IDS * WIDTH])


def lookups(
    epl,
    device_count,
    optimizer,
    resource=False,
    rows=None,
    sizes=(8, 8, 8),
    kind="rows",
    inside=False,
    clip=None,
    dtype="int64",
    wrong=None,
    **config,
):
    """What every step gives, and all variables after it.

    Args:
      epl: the module, or None.
      device_count: that have parts of the table; 1: it is whole on each.
      optimizer: a name.
      rows: of the batch, where the graph knows it.
      sizes: of the batches.
      kind: "rows" one after the other, their "sum", "twice" from the same table, or of a layer of "keras"; of ids that
        are "flattened"; of a batch that is "sparse", "weighted", "safe" or "safe_weighted", the "mean" or the "sum".
      inside: whether the lookup is in the scope of the table.
      clip: the norm to which gradients are clipped.
      dtype: of ids.
      wrong: an id to put into the last batch.
    """
    config = {key.replace("__", "."): value for key, value in config.items()}
    config["communication.clip_after_allreduce"] = clip is not None
    config["cluster.colocate_split_and_replicate"] = True
    common.init(epl, config)
    tf.set_random_seed(12)
    if epl:
        epl.set_default_strategy(epl.replicate(device_count))
    is_sparse = kind.split()[0] in ENTRIES[1:]
    ids = (tf.sparse_placeholder if is_sparse else tf.placeholder)(dtype, [rows, IDS])
    with tf.variable_scope("model", use_resource=resource):
        found = _looked_up(epl, device_count, ids, inside, kind)
        hidden = tf.tanh(tf.layers.dense(0.1 * found, 5, name="hidden"))  # where it is not saturated
        loss = tf.reduce_mean(tf.square(hidden - 0.5))
    made = _OPTIMIZERS[optimizer]()
    pairs = made.compute_gradients(loss)
    if clip is not None:
        clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], clip)
        pairs = [(gradient, variable) for gradient, (_, variable) in zip(clipped, pairs)]
    step = made.apply_gradients(pairs, tf.train.get_or_create_global_step())
    fetches = [common.mean_everywhere(epl, loss), common.rows_everywhere(epl, found)]
    variables, history = tf.global_variables(), []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        history.append(session.run([v.value() for v in variables]))
        for number, size in enumerate(sizes):
            drawn = np.random.RandomState(number).randint(0, ROWS, [size, IDS])
            drawn[:, ::3] = drawn[0, 0]  # some are there several times, in all parts of the batch
            if wrong is not None and number == len(sizes) - 1:
                drawn[-1, 2] = wrong
            if is_sparse:
                own = share_of_entries(epl, device_count, entries(drawn, kind))
            else:
                own = share_of_copy(epl, device_count, drawn)
            fetched = session.run(fetches + [step], {ids: own})[:-1]
            history.append(fetched + session.run([v.value() for v in variables]))
        exchanged = exchanged_for_tables(epl, session)
    return history, exchanged


def fetched(epl, device_count, kind, op_types):
    """What the last operation of each type gives before the rows of a batch come of its entries: arrays, or errors."""
    common.init(epl, {"cluster.colocate_split_and_replicate": True})
    tf.set_random_seed(12)
    if epl:
        epl.set_default_strategy(epl.replicate(device_count))
    ids = (tf.placeholder if kind == "flattened" else tf.sparse_placeholder)("int64", [None, IDS])
    found = _looked_up(epl, device_count, ids, False, kind)
    last, history = {op.type: op.outputs[0] for op in tf.get_default_graph().get_operations() if op.outputs}, []
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(tf.square(found)))
    drawn = np.random.RandomState(3).randint(0, ROWS, [7, IDS])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for op_type in op_types:
            try:
                history.append(session.run(last[op_type], {ids: drawn if kind == "flattened" else entries(drawn)}))
            except Exception as error:
                history.append(str(error))
    return history


def exchanged_for_tables(epl, session):
    """(kind, phase) of what shards exchange for tables in a training step, but for what they add up."""
    if not epl:
        return None
    from epl.graph import tags
    from epl.session.hooks import driver_of

    done = driver_of(session).rewritten.plan.partitioned
    if done is None:
        return None
    step = done.graph.ancestors([name for name, node in done.graph.nodes.items() if tags.phase(node) == tags.APPLY])
    found = [c for c in done.collectives if c.node in step and c.kind != "all_reduce"]
    return [(c.kind, c.phase) for c in found if "hidden" not in c.wanted_by + c.tensor]
