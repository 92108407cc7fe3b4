"""A classifier of very many classes: divided over two workers (epl.split) against data parallelism.

    python benchmarks/split.py [--classes 100000] [--horovod_python VENV/bin/python] [--rounds 3]

Two layers of 512 features before the classifier, Adam, batches of 64 for each worker: with data parallelism each has
its own, with epl.split both see the 128 rows, of which each computes its part of the features. Jobs take turns, each
worker on one core. Printed are samples per second of both workers together, ratios of the medians over the rounds, and
the part of the classifier's state that a worker holds. Horovod's environment is made as vs_horovod.py says.
"""

import argparse
import os
import statistics
import sys
import time

import jobs

FEATURES, BATCH, STEPS, WARM_UP = 512, 64, 6, 2


def _model(scopes, rows, classes):
    """The loss over batches of so many rows; `scopes` are those of the features and of the classifier."""
    import numpy as np
    import tensorflow.compat.v1 as tf

    x = np.random.RandomState(0).normal(size=[rows, FEATURES]).astype(np.float32)
    data = tf.data.Dataset.from_tensors((x, np.arange(rows, dtype=np.int64) * 7 % classes)).repeat()
    x, labels = tf.data.make_one_shot_iterator(data).get_next()
    with scopes[0]():
        for layer in range(2):
            x = tf.layers.dense(x, FEATURES, tf.nn.relu, name="features_%d" % layer)
    with scopes[1]():
        logits = tf.layers.dense(x, classes, name="classifier")
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def train(kind, classes):
    """One worker: `kind` is data, split or horovod. Worker 0 prints steps per second, bytes of state here and whole."""
    jobs.settle(False)
    import contextlib

    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    optimizer, after, scopes = tf.train.AdamOptimizer(1e-3), [], [contextlib.ExitStack] * 2
    if kind != "horovod":
        import epl

        epl.init(epl.Config({"cluster.colocate_split_and_replicate": kind == "split"}))
        if kind == "split":
            scopes = [lambda: epl.replicate(jobs.WORKERS), lambda: epl.split(jobs.WORKERS)]
    loss = _model(scopes, BATCH * jobs.WORKERS if kind == "split" else BATCH, classes)
    if kind == "horovod":
        import horovod.tensorflow as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(optimizer)
    train_op = optimizer.minimize(loss)
    if kind == "horovod":
        after.append(hvd.broadcast_global_variables(0))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(after)
        for _ in range(WARM_UP):
            session.run(train_op)
        began = time.perf_counter()
        for _ in range(STEPS):
            session.run(train_op)
        rate = STEPS / (time.perf_counter() - began)
        if jobs.rank() == 0:
            print("numbers: %.4f %d %d" % ((rate,) + _state(session, kind)), flush=True)


def _state(session, kind):
    """(bytes of the classifier's variables and slots on this worker, bytes of the whole)."""
    import tensorflow.compat.v1 as tf

    names = [v.op.name for v in tf.global_variables() if v.op.name.startswith("classifier")]
    whole = sum(4 * v.shape.num_elements() for v in tf.global_variables() if v.op.name in names)
    if kind != "split":
        return whole, whole
    from epl.session.hooks import driver_of

    nodes = driver_of(session).graph.nodes
    shapes = [[dim.size for dim in nodes[name].attr["shape"].shape.dim] for name in names]
    return sum(4 * shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes), whole


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=100000)
    parser.add_argument("--horovod_python", help="the interpreter of the environment that has Horovod")
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind; the median counts")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        return train(args.train, args.classes)
    kinds = ["data", "split"] + (["horovod"] if args.horovod_python else [])
    found = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind in kinds:
            script = [os.path.abspath(__file__), "--train", kind, "--classes", str(args.classes)]
            starter = "horovod" if kind == "horovod" else "epl"
            found[kind].append(jobs.numbers(starter, script, args.horovod_python, "numbers:")[0])
    rates = {kind: statistics.median(rate for rate, _, _ in found[kind]) * BATCH * jobs.WORKERS for kind in kinds}
    for kind in kinds:
        _, here, whole = found[kind][0]
        print("%-8s %8.1f samples/s, %.3f of the classifier's state a worker" % (kind, rates[kind], here / whole))
    for kind in kinds:
        if kind != "split":
            print("split / %-8s %.3f" % (kind, rates["split"] / rates[kind]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
