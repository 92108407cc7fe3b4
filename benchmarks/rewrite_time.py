"""How long it takes to plan and rewrite a graph, by its size and by the number of workers.

    python benchmarks/rewrite_time.py [--sizes 10000 30000 100000] [--workers 2 512]

Pins itself to one core. Prints a line for each graph and cluster, then the ratios: time per operation of the largest
graph against the smallest (1.0 is linear), and time for the most workers against the fewest (1.0 is independent).
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import tensorflow.compat.v1 as tf  # noqa: E402  the affinity and the log level come first

import epl  # noqa: E402
from epl.capture.record import make_model  # noqa: E402
from epl.passes.pipeline import rewrite  # noqa: E402
from epl.plan.plan import make_plan  # noqa: E402

LIMIT_S = 2.0


def build(layers):
    """A deep network of dense layers with Momentum and a Saver: about 60 operations a layer."""
    x = tf.placeholder(tf.float32, [None, 8])
    with epl.replicate(device_count=1):
        for index in range(layers):
            with tf.variable_scope("layer_%d" % index):
                kernel = tf.get_variable("kernel", [8, 8])
                x = tf.nn.relu(tf.matmul(x, kernel) + tf.get_variable("bias", [8]))
        loss = tf.reduce_mean(tf.square(x))
    tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=tf.train.get_or_create_global_step())
    tf.train.Saver()


def graph_of(operations):
    """A graph of at least so many operations; it has a few hundred more at most."""
    sizes = []
    for layers in (5, 10):
        with tf.Graph().as_default() as graph:
            build(layers)
        sizes.append(len(graph.get_operations()))
    per_layer = (sizes[1] - sizes[0]) / 5.0
    with tf.Graph().as_default() as graph:
        build(int((operations - sizes[0]) / per_layer) + 6)
    assert operations <= len(graph.get_operations()) < operations + 500
    return graph


def seconds(graph, workers, repeats):
    """(seconds to capture, plan and rewrite for worker 1, operations of the result); the median of the repeats."""
    cluster = epl.Cluster(worker_num=workers, worker_index=1, gpu_num_per_worker=1)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        model = make_model(graph)
        rewritten = rewrite(model.graph, make_plan(model, epl.Env.get().config, cluster))
        times.append(time.perf_counter() - began)
    return statistics.median(times), len(rewritten.nodes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10000, 30000, 100000], help="operations of the graphs")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 512], help="workers of the clusters")
    parser.add_argument("--repeats", type=int, default=3, help="times each is measured; the median counts")
    args = parser.parse_args()
    tf.disable_v2_behavior()
    epl.init()
    taken = {}
    for size in sorted(args.sizes):
        graph = graph_of(size)
        for workers in sorted(args.workers):
            taken[size, workers], result = seconds(graph, workers, args.repeats)
            print(
                "%7d operations, %4d workers: %6.2f s, %d operations afterwards"
                % (len(graph.get_operations()), workers, taken[size, workers], result),
                flush=True,
            )
    small, large, few, many = min(args.sizes), max(args.sizes), min(args.workers), max(args.workers)
    print("time for %d operations against %.0f s: ratio %.2f" % (small, LIMIT_S, taken[small, few] / LIMIT_S))
    print(
        "time per operation, %d against %d operations: ratio %.2f"
        % (large, small, taken[large, few] / large / (taken[small, few] / small))
    )
    print("time, %d against %d workers: ratio %.2f" % (many, few, taken[small, many] / taken[small, few]))


if __name__ == "__main__":
    main()
