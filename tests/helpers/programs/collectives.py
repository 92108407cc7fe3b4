"""Programs with collectives of their own, and what NumPy says of them. Values differ between workers and places."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.checks import pairs
from tests.helpers.programs import common

DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
REDUCTIONS = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "prod": np.prod}


def rows_of(worker, rows, columns=3, salt=0):
    """Small whole numbers, none of them 0."""
    return (np.arange(rows * columns).reshape([rows, columns]) + 2 * worker + salt) % 5 + 1.0


def weights(worker, shape, salt=0):
    """What a worker's loss weighs a result with; arbitrary."""
    return np.random.RandomState(31 * worker + salt).uniform(-1.0, 1.0, shape)


def _run(fetches, feeds=None):
    with common.session() as sess:
        return sess.run(fetches, feeds)


def _start(epl, backend="auto"):
    common.init(epl, {"communication.timeout_s": 30, "communication.backend": backend})
    return common.workers(epl)


def _same(got, want, rtol=0.0):
    got = np.asarray(got)
    assert got.shape == np.shape(want), (got.shape, np.shape(want))
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=rtol)


def reductions(epl, backend="auto"):
    """all_reduce, reduce and reduce_scatter of every type and reduction."""
    worker, workers = _start(epl, backend)
    rows = 2 * workers
    sizes = [1] * (workers - 1) + [rows - workers + 1]
    begin = sum(sizes[:worker])
    fetches, wants = [], []
    for dtype in DTYPES:
        x = tf.cast(tf.constant(rows_of(worker, rows)), dtype)
        for op, reference in REDUCTIONS.items():
            if op == "mean" and dtype.startswith("int"):
                continue
            want = reference([rows_of(w, rows) for w in range(workers)], axis=0)
            fetches += [
                epl.ops.all_reduce(x, op),
                epl.ops.reduce(x, workers - 1, op),
                epl.ops.reduce_scatter(x, op),
                epl.ops.reduce_scatter(x, op, sizes=sizes),
            ]
            at_root = want if worker == workers - 1 else np.zeros_like(want)
            wants += [want, at_root, want[2 * worker : 2 * worker + 2], want[begin : begin + sizes[worker]]]
    # All rows for the last worker, none for others.
    alone = tf.constant(rows_of(worker, rows), tf.float32)
    fetches.append(epl.ops.reduce_scatter(alone, sizes=[0] * (workers - 1) + [rows]))
    whole = sum(rows_of(w, rows) for w in range(workers))
    wants.append(whole if worker == workers - 1 else whole[:0])
    assert fetches[2].shape.as_list() == [2, 3] and fetches[0].shape.as_list() == [rows, 3]
    values = _run([tf.cast(fetch, tf.float64) for fetch in fetches])
    for value, want in pairs(values, wants):
        _same(value, want, 1e-2)  # bfloat16 has 8 bits
    for tensor, (value, want) in pairs(fetches, pairs(values, wants)):
        if tensor.dtype in (tf.float64, tf.float32, tf.int32, tf.int64):
            _same(value, want, 1e-6)
    return len(values)


def moves(epl, backend="auto"):
    """broadcast, all_gather, all_to_all, send, recv and barrier of several types, uneven shapes among them."""
    worker, workers = _start(epl, backend)
    last = workers - 1
    fetches, wants = [], []
    for dtype in DTYPES + ("int8", "uint8", "bool"):

        def tensor(rows, salt=0, of=dtype):
            return tf.cast(tf.constant(rows_of(worker, rows, salt=salt)) - 1.0, of)

        def number(rows, w, salt=0, of=dtype):
            value = rows_of(w, rows, salt=salt) - 1.0
            return (value != 0) * 1.0 if of == "bool" else value

        splits = [worker + to for to in range(workers)]
        uneven, came = epl.ops.all_to_all(tensor(sum(splits), 3), splits)
        arrived = [number(sum(w + to for to in range(workers)), w, 3) for w in range(workers)]
        starts = [sum(w + to for to in range(worker)) for w in range(workers)]
        fetches += [
            epl.ops.broadcast(tensor(2), last),
            epl.ops.all_gather(tensor(worker)),
            epl.ops.all_to_all(tensor(2 * workers)),
            uneven,
            came,
            epl.ops.recv(epl.ops.send(tensor(3, 1), 0, last)),
            epl.ops.recv(epl.ops.send(tensor(3, 2), last, 0), [3, 3], dtype),
        ]
        wants += [
            number(2, last),
            np.concatenate([number(w, w) for w in range(workers)]) if workers > 1 else np.zeros([0, 3]),
            np.concatenate([number(2 * workers, w)[2 * worker : 2 * worker + 2] for w in range(workers)]),
            np.concatenate([a[s : s + w + worker] for w, (a, s) in enumerate(zip(arrived, starts))]),
            [w + worker for w in range(workers)],
            number(3, 0, 1) if worker == last else np.zeros([3, 3]),
            number(3, last, 2) if worker == 0 else np.zeros([3, 3]),
        ]
    with tf.control_dependencies([epl.ops.barrier()]):
        values = _run([tf.cast(fetch, tf.float64) for fetch in fetches])
    for value, want in pairs(values, wants):
        _same(value, want)
    return len(values)


def barrier(epl):
    _start(epl)
    with tf.control_dependencies([epl.ops.barrier()]):
        return _run(tf.constant(7))


# What each case computes of this worker's tensor, and the same by NumPy of all workers' tensors: a list of results.
def _gradient_cases(epl, worker, workers):
    rows = 2 * workers
    sizes = [w + 1 for w in range(workers)]
    splits = [[(3 * w + to) % 3 for to in range(workers)] for w in range(workers)]

    def scatter(xs, reference, counts):
        return np.split(reference(xs, axis=0), np.cumsum(counts)[:-1])

    def exchange(xs, counts):
        parts = [np.split(x, np.cumsum(c)[:-1]) for x, c in zip(xs, counts)]
        return [np.concatenate([parts[w][to] for w in range(workers)]) for to in range(workers)]

    def only(value, at):
        return [value if w == at else np.zeros_like(value) for w in range(workers)]

    last = workers - 1
    return {
        "all_reduce": (
            lambda x: epl.ops.all_reduce(x),
            [rows] * workers,
            lambda xs: [np.sum(xs, axis=0)] * workers,
        ),
        "all_reduce_mean": (
            lambda x: epl.ops.all_reduce(x, "mean"),
            [rows] * workers,
            lambda xs: [np.mean(xs, axis=0)] * workers,
        ),
        "reduce": (lambda x: epl.ops.reduce(x, last), [rows] * workers, lambda xs: only(np.sum(xs, axis=0), last)),
        "reduce_mean": (
            lambda x: epl.ops.reduce(x, 0, "mean"),
            [rows] * workers,
            lambda xs: only(np.mean(xs, axis=0), 0),
        ),
        "broadcast": (lambda x: epl.ops.broadcast(x, last), [rows] * workers, lambda xs: [xs[last]] * workers),
        "all_gather": (lambda x: epl.ops.all_gather(x), sizes, lambda xs: [np.concatenate(xs)] * workers),
        "reduce_scatter": (
            lambda x: epl.ops.reduce_scatter(x),
            [rows] * workers,
            lambda xs: scatter(xs, np.sum, [2] * workers),
        ),
        "reduce_scatter_uneven": (
            lambda x: epl.ops.reduce_scatter(x, "mean", sizes),
            [sum(sizes)] * workers,
            lambda xs: scatter(xs, np.mean, sizes),
        ),
        "all_to_all": (
            lambda x: epl.ops.all_to_all(x),
            [rows] * workers,
            lambda xs: exchange(xs, [[2] * workers] * workers),
        ),
        "all_to_all_uneven": (
            lambda x: epl.ops.all_to_all(x, splits[worker])[0],
            [sum(counts) for counts in splits],
            lambda xs: exchange(xs, splits),
        ),
        "send_recv": (
            lambda x: epl.ops.recv(epl.ops.send(x, last, 0)),
            [rows] * workers,
            lambda xs: only(xs[last], 0),
        ),
    }


def gradients(epl, backend="auto"):
    """Derivatives of the workers' total loss, sum of weights * result^2, against finite differences of it in NumPy."""
    worker, workers = _start(epl, backend)
    cases = _gradient_cases(epl, worker, workers)
    fetches, wants, feeds = [], [], {}
    for name in sorted(cases):
        collective, rows, reference = cases[name]
        xs = [weights(w, [rows[w], 3], salt=7) for w in range(workers)]
        # The number of rows is not known when the graph is made, so it may differ between workers.
        x = tf.placeholder(tf.float64, [None, 3])
        feeds[x] = xs[worker]
        y = collective(x)
        weight = tf.placeholder(tf.float64, [None, 3])
        feeds[weight] = weights(worker, reference(xs)[worker].shape)
        gradient = tf.gradients(tf.reduce_sum(weight * tf.square(y)), x)[0]
        assert gradient.shape.as_list() == [None, 3], name
        fetches += [y, gradient]

        def loss(values, of=reference):
            return sum(np.sum(weights(w, y.shape) * y**2) for w, y in enumerate(of(values)))

        wants += [reference(xs)[worker], _finite_differences(loss, xs, worker)]
    values = _run(fetches, feeds)
    for name, (value, want) in pairs([n for n in sorted(cases) for _ in range(2)], pairs(values, wants)):
        assert np.shape(value) == want.shape, (name, np.shape(value), want.shape)
        np.testing.assert_allclose(value, want, rtol=1e-6, atol=1e-8, err_msg=name)
    return sorted(cases)


def _finite_differences(loss, xs, worker, step=1e-4):
    found = np.zeros_like(xs[worker])
    for place in np.ndindex(*found.shape):
        sides = []
        for change in (step, -step):
            moved = [x.copy() for x in xs]
            moved[worker][place] += change
            sides.append(loss(moved))
        found[place] = (sides[0] - sides[1]) / (2 * step)
    return found


def second_derivative(epl):
    """The derivative of a derivative goes through the collectives once more."""
    worker, workers = _start(epl)
    x = tf.constant(weights(worker, [2, 3]))
    first = tf.gradients(tf.reduce_sum(epl.ops.all_reduce(x) ** 3), x)[0]
    got = _run(tf.gradients(tf.reduce_sum(first), x)[0])
    total = sum(weights(w, [2, 3]) for w in range(workers))
    # first = workers * 3 * total^2 on each worker; the sum of that over workers, differentiated by one worker's x.
    np.testing.assert_allclose(got, workers * workers * 6.0 * total, rtol=1e-12)
    return True


def over_devices(epl):
    """all_reduce and all_gather over the instances of all workers, in a training step; a gradient through them."""
    worker, workers = _start(epl)
    feeds = common.Feeds(epl)
    with epl.replicate(device_count=1):
        variable = tf.get_variable("w", [common.FEATURES], initializer=tf.ones_initializer())
        centred = feeds.x - epl.ops.all_reduce(tf.reduce_mean(feeds.x, 0), "mean")
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(centred * variable, 1)))
        rows = epl.ops.all_gather(feeds.x[:, 0])
        seen = tf.assign_add(tf.get_variable("seen", [], trainable=False), tf.reduce_sum(rows))
    sensitivity = tf.gradients(epl.ops.all_reduce(tf.reduce_sum(feeds.x)), feeds.x)[0]
    sensitivity = common.rows_everywhere(epl, sensitivity)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with common.session() as sess:
        common.initialize(sess)
        gathered, scale, _, _ = sess.run([rows, sensitivity, train_op, seen.op], feeds.of(0))
        return {"rows": gathered, "sensitivity": scale, "w": sess.run(variable)}


def short_batch(epl):
    """What is said of an odd number of rows for a model with a collective over two copies."""
    _start(epl)
    x = tf.placeholder(tf.float32, [None, 2], "x")
    variable = tf.get_variable("w", [2], initializer=tf.ones_initializer())
    centred = x - epl.ops.all_reduce(tf.reduce_mean(x, 0), "mean")
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(centred * variable)))
    with common.session() as sess:
        common.initialize(sess)
        before = sess.run(variable)
        try:
            sess.run(train_op, {x: np.ones([3, 2], np.float32)})
        except ValueError as error:
            return str(error), bool(np.all(sess.run(variable) == before))


def mixed_with_training(epl):
    """Gradients that a program reduces by itself are then the same everywhere, whatever EPL reduces besides."""
    worker, workers = _start(epl)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    pairs = [(epl.ops.all_reduce(g, "mean"), v) for g, v in optimizer.compute_gradients(loss)]
    train_op = optimizer.apply_gradients(pairs)
    with common.session() as sess:
        common.initialize(sess)
        for step in range(3):
            sess.run(train_op, feeds.of(step))
        return common.state(sess)


def plain_training(epl):
    feeds = common.Feeds(epl)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(common.classifier(feeds.x, feeds.labels))
    with common.session() as sess:
        common.initialize(sess)
        for step in range(3):
            sess.run(train_op, feeds.of(step))
        return common.state(sess)


def crossing_order(epl):
    """Collectives that become ready in another order on each worker, messages both ways, several steps."""
    worker, workers = _start(epl)
    delay = [tf.placeholder(tf.int64, []) for _ in range(4)]

    def late(value, by):
        """Comes after a loop of `by` turns."""
        turns = tf.while_loop(lambda i: i < by, lambda i: i + 1, [tf.constant(0, tf.int64)])
        return tf.cast(turns * 0, tf.float32) + value

    other = 1 - worker
    big = tf.fill([300000], float(worker + 1))
    results = [
        tf.reduce_sum(epl.ops.recv(epl.ops.send(late(big, delay[0]), 0, 1))),
        tf.reduce_sum(epl.ops.all_reduce(late(tf.ones([1000]) * (worker + 1), delay[1]))),
        tf.reduce_sum(epl.ops.recv(epl.ops.send(late(big, delay[2]), 1, 0))),
        tf.reduce_sum(epl.ops.all_gather(late(tf.ones([worker + 1]), delay[3]))),
    ]
    rng = np.random.RandomState(worker)
    with common.session() as sess:
        for _ in range(10):
            values = sess.run(results, {d: rng.randint(0, 2000) for d in delay})
            want = [300000.0 * (other + 1) if worker == 1 else 0.0, 3000.0]
            want += [300000.0 * (other + 1) if worker == 0 else 0.0, 3.0]
            assert values == want, (values, want)
        # Only the message is fetched; it is received all the same.
        message = epl.ops.send(big, 0, 1)
        epl.ops.recv(message)
        assert sess.run(message).tolist() == []
    return True


def refusals(epl):
    """What goes wrong at run time; the texts of the errors."""
    worker, _ = common.workers(epl)
    texts = {}

    def run(name, make):
        _start(epl)
        with tf.Graph().as_default():
            try:
                with common.session() as sess:
                    sess.run(make())
            except Exception as error:  # its text is the result
                texts[name] = "%s: %s" % (type(error).__name__, error)

    run("all_reduce", lambda: epl.ops.all_reduce(_fed_rows(worker + 2), name="mine"))
    run("broadcast", lambda: epl.ops.broadcast(_fed_rows(worker + 2), name="mine"))
    run("recv", lambda: epl.ops.recv(epl.ops.send(tf.zeros([2]), 0, 1, name="mine"), [4]))
    run("reduce_scatter", lambda: epl.ops.reduce_scatter(tf.zeros([3]), name="mine"))
    run("all_to_all", lambda: epl.ops.all_to_all(tf.zeros([3, 2]), [2, 2], name="mine")[0])
    run("after", lambda: epl.ops.all_reduce(tf.zeros([2])))
    return texts


def _fed_rows(rows):
    """[rows], but the graph does not say so."""
    return tf.zeros(tf.fill([1], rows))


def different_roots(epl):
    worker, _ = _start(epl)
    return _run(epl.ops.broadcast(tf.zeros([2]), root=worker))


def kept_inputs(epl):
    """All-reduces of constants, whose memory their results cannot take: bytes of shared memory that
    are in use after a small one, and after a large one; values are checked, also of what a run gave before others."""
    worker, workers = _start(epl)
    found = []
    for rows in (300, 90001):
        values = [rows_of(w, rows) for w in range(workers)]
        reduced = epl.ops.all_reduce(tf.constant(values[worker], tf.float32), "sum")
        with common.session() as sess:
            results = [sess.run(reduced) for _ in range(4)]
        for got in results:
            _same(got, np.sum(values, axis=0))
        found.append(_bytes_of_arenas())
    return found


def _bytes_of_arenas():
    total, ours = 0, False
    with open("/proc/self/smaps") as source:
        for line in source:
            if "-" in line.split()[0]:
                ours = "epl_arena" in line
            elif ours and line.startswith("Rss:"):
                total += int(line.split()[1]) * 1024
    return total
