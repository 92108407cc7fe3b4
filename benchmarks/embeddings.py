"""An embedding table over two workers: rows that travel (epl.split), rows added up from all, and data parallelism.

    python benchmarks/embeddings.py [--rows 1000000] [--width 64] [--rounds 3]

A ranking model: 26 ids for each of 1,024 examples, ids drawn by a power law as words are, Adagrad. With data
parallelism each worker has all of the table and its own half of the batch; with epl.split each has half of the rows and
both see the batch, of which each computes its half. "summed" is epl.split where each worker looks up those of its rows
that any id of the batch names, and what comes out is added up: what EPL does where it counts fewer bytes so, made to do
it here. Jobs take turns, each worker on one core. Printed are samples per second of both workers together, and ratios
of the medians over the rounds.
"""

import argparse
import os
import statistics
import sys
import time

import jobs

BATCH, IDS, STEPS, WARM_UP = 1024, 26, 10, 3


def _loss(scopes, examples, rows, width):
    """The loss over batches of so many examples; `scopes` are those of the model and of the table."""
    import numpy as np
    import tensorflow.compat.v1 as tf

    drawn = np.random.RandomState(jobs.rank() if scopes is None else 0).zipf(1.2, size=[8, examples, IDS])
    ids = (drawn * 7919 % rows).astype(np.int64)
    data = tf.data.Dataset.from_tensor_slices(ids).repeat()
    ids = tf.reshape(tf.data.make_one_shot_iterator(data).get_next(), [-1, IDS])
    with scopes() if scopes else tf.name_scope("table"):
        table = tf.get_variable("table", [rows, width], initializer=tf.zeros_initializer())
    hidden = tf.reshape(tf.nn.embedding_lookup(table, ids), [-1, IDS * width])
    hidden = tf.layers.dense(hidden, 64, tf.nn.relu, name="hidden")
    return tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1, name="score") - 1.0))


def train(kind, rows, width):
    """One worker: `kind` is data, travel or summed. Worker 0 prints steps per second."""
    jobs.settle(False)
    import tensorflow.compat.v1 as tf

    import epl

    tf.disable_v2_behavior()
    epl.init(epl.Config({"cluster.colocate_split_and_replicate": kind != "data"}))
    if kind == "summed":
        from epl.partition import propagate, routes

        routes.route_cost = propagate.route_cost = lambda *sizes: float("inf")
    if kind != "data":
        epl.set_default_strategy(epl.replicate(jobs.WORKERS))
    scopes = None if kind == "data" else lambda: epl.split(jobs.WORKERS)
    examples = BATCH // jobs.WORKERS if kind == "data" else BATCH
    step = tf.train.AdagradOptimizer(0.05).minimize(_loss(scopes, examples, rows, width))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(WARM_UP):
            session.run(step)
        began = time.perf_counter()
        for _ in range(STEPS):
            session.run(step)
        if jobs.rank() == 0:
            print("numbers: %.4f" % (STEPS / (time.perf_counter() - began)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1000000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind; the median counts")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        return train(args.train, args.rows, args.width)
    kinds = ["data", "summed", "travel"]
    found = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind in kinds:
            script = [os.path.abspath(__file__), "--train", kind]
            script += ["--rows", str(args.rows), "--width", str(args.width)]
            found[kind].append(jobs.numbers("epl", script, None, "numbers:")[0][0])
    rates = {kind: statistics.median(found[kind]) * BATCH for kind in kinds}
    for kind in kinds:
        print("%-8s %8.1f samples/s" % (kind, rates[kind]))
    for kind in kinds[:2]:
        print("travel / %-8s %.3f" % (kind, rates["travel"] / rates[kind]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
