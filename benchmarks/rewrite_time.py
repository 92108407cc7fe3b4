"""How long it takes to plan and rewrite a graph, by its size and by the number of workers.

    python benchmarks/rewrite_time.py [--sizes 10000 30000 100000] [--workers 2 512]
    python benchmarks/rewrite_time.py --pipeline     BERT-large in four stages, by the number of micro-batches
    python benchmarks/rewrite_time.py --copies       BERT of 12 layers: what is done once, and what for each copy

Pins itself to one core. Prints a line for each graph and cluster, then the ratios: time per operation of the largest
graph against the smallest (1.0 is linear), and time for the most workers against the fewest (1.0 is independent).
"""

import argparse
import functools
import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import tensorflow.compat.v1 as tf  # noqa: E402  the affinity and the log level come first

import epl  # noqa: E402
from epl import compiler  # noqa: E402
from epl.capture.record import make_program  # noqa: E402
from epl.graph import collector  # noqa: E402
from epl.graph.lazy import Lazy  # noqa: E402
from epl.passes.copies.add_micro_batches import copy_micro_batches  # noqa: E402
from epl.passes.copies.clone import clone_instances  # noqa: E402
from epl.plan.decide import make_plan  # noqa: E402
from epl.session.rewritten import Rewritten  # noqa: E402

LIMIT_S = 2.0
PIPELINE_LIMIT_S = 30.0
STAGES, MICRO_BATCHES = 4, (8, 16, 32)
COPIES = ((2, 1), (32, 8))  # micro-batches and devices of a worker


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
        with collector.paused():  # as a session does it
            program = compiler.compile(make_program(graph), epl.Env.get().config, cluster)
        times.append(time.perf_counter() - began)
    return statistics.median(times), len(program.graph.nodes)


def bert(layers, width, stages):
    """BERT with Adam; its sizes do not matter here, its operations do."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "bert_pipeline"))
    import model

    with tf.Graph().as_default() as graph:
        tokens = x = tf.placeholder(tf.int32, [None, 128])
        for stage in range(stages):
            with epl.replicate(device_count=1, name="stage_%d" % stage):
                x = model.embed(x, width) if stage == 0 else x
                for layer in range(layers * stage // stages, layers * (stage + 1) // stages):
                    x = model.transformer_layer(x, 16, "layer_%d" % layer)
                if stage == stages - 1:
                    loss, _ = model.masked_loss(x, tokens, tf.ones_like(tokens, tf.float32))
        tf.train.AdamOptimizer(1e-4).minimize(loss, tf.train.get_or_create_global_step())
    return graph


def pipeline_seconds(graph, micro_batches):
    """(seconds, operations in all stages, operations of this worker); what was made is gone when it returns."""
    config = epl.Config({"pipeline.num_micro_batch": micro_batches})
    cluster = epl.Cluster(worker_num=STAGES, worker_index=1, gpu_num_per_worker=1)
    began = time.perf_counter()
    with collector.paused():  # as a session does it
        program = compiler.compile(make_program(graph), config, cluster)
    return time.perf_counter() - began, len(program.whole.nodes), len(program.graph.nodes)


def pipeline():
    """Times the rewriting of BERT-large for one of four workers with a stage each, micro-batches included."""
    graph = bert(24, 1024, STAGES)
    count = len(graph.get_operations())
    taken = {}
    for micro_batches in MICRO_BATCHES:
        taken[micro_batches], everywhere, here = pipeline_seconds(graph, micro_batches)
        print(
            "%d operations, %2d micro-batches: %6.2f s, %d operations in all stages, %d in one"
            % (count, micro_batches, taken[micro_batches], everywhere, here),
            flush=True,
        )
    few, many = MICRO_BATCHES[0], MICRO_BATCHES[-1]
    print(
        "time for %d micro-batches against %.0f s: ratio %.2f"
        % (many, PIPELINE_LIMIT_S, taken[many] / PIPELINE_LIMIT_S)
    )
    print("time per micro-batch, %d against %d: ratio %.2f" % (many, few, taken[many] / many / (taken[few] / few)))


def copies_seconds(graph, train, micro_batches, devices, repeats):
    """Medians of (seconds of the plan, seconds of what workers compare before the first step, and of all that makes the
    copies; operations of the worker) with two workers."""
    config = epl.Config({"pipeline.num_micro_batch": micro_batches})
    cluster = epl.Cluster(worker_num=2, worker_index=1, gpu_num_per_worker=devices)
    taken = []
    for _ in range(repeats):
        with collector.paused():  # as a session does it
            program = make_program(graph)
            began = time.perf_counter()
            make_plan(program, config, cluster)
            planned = time.perf_counter()
            made = compiler.compile(program, config, cluster)
            compiled = time.perf_counter()
            made.graph.to_graph_def(tf.GraphDef)
            ended = time.perf_counter()
            step = Rewritten(graph, config, cluster, 0).step((), (train,), ())
            asked = time.perf_counter()
            step.lines()
            lines = time.perf_counter() - asked
        taken.append((planned - began, lines, ended - compiled + (compiled - planned) - (planned - began)))
        count = len(made.graph.nodes)
    return tuple(statistics.median(each) for each in zip(*taken)) + (count,)


def making_seconds(graph, micro_batches, devices):
    """(seconds in which the passes that copy add copies to the graph, seconds in which NodeDefs are made of all of
    them, number of copies)."""
    config = epl.Config({"pipeline.num_micro_batch": micro_batches})
    cluster = epl.Cluster(worker_num=2, worker_index=1, gpu_num_per_worker=devices)
    spent, known = [0.0, 0.0, 0], compiler.PASSES

    def timed(copying):
        @functools.wraps(copying)
        def run(program, plan):
            began = time.perf_counter()
            result = copying(program, plan)
            added = time.perf_counter()
            copied = [node for name, node in result.graph.nodes.items() if name not in program.graph.nodes]
            copied = [node for node in copied if type(node) is Lazy]
            made = time.perf_counter()
            for node in copied:
                node.copied()
            spent[1] += time.perf_counter() - made
            spent[0] += added - began
            spent[2] += len(copied)
            return result

        return run

    copying = (copy_micro_batches, clone_instances)
    try:
        until = known[: known.index(copying[-1]) + 1]
        compiler.PASSES = tuple(timed(each) if each in copying else each for each in until)
        with collector.paused():  # as a session does it
            compiler.compile(make_program(graph), config, cluster)
    finally:
        compiler.PASSES = known
    return spent


def copies(repeats):
    """What does not depend on the number of copies, and the time for each copied operation."""
    graph, train = bert(12, 768, 1), "Adam"
    found = {}
    for micro_batches, devices in COPIES:
        found[micro_batches, devices] = plan, lines, rest, count = copies_seconds(
            graph, train, micro_batches, devices, repeats
        )
        print(
            "%2d micro-batches on %d devices: plan %.2f s, compared before the first step %.2f s, passes %.2f s, "
            "%d operations" % (micro_batches, devices, plan, lines, rest, count),
            flush=True,
        )
        made = [making_seconds(graph, micro_batches, devices) for _ in range(repeats)]
        adding, making, number = (statistics.median(each) for each in zip(*made))
        print(
            "%2d micro-batches on %d devices: %d copies, each %.1f us: %.1f to add it, %.1f to make its NodeDef"
            % (
                micro_batches,
                devices,
                number,
                1e6 * (adding + making) / number,
                1e6 * adding / number,
                1e6 * making / number,
            ),
            flush=True,
        )
    few, many = found[COPIES[0]], found[COPIES[-1]]
    print("plan and what is compared, many against few copies: ratio %.2f" % (sum(many[:2]) / sum(few[:2])))
    print("passes: %.1f us for each further operation" % (1e6 * (many[2] - few[2]) / (many[3] - few[3])))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10000, 30000, 100000], help="operations of the graphs")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 512], help="workers of the clusters")
    parser.add_argument("--repeats", type=int, default=3, help="times each is measured; the median counts")
    parser.add_argument("--pipeline", action="store_true", help="BERT-large by its number of micro-batches instead")
    parser.add_argument("--copies", action="store_true", help="BERT of 12 layers by micro-batches and devices instead")
    args = parser.parse_args()
    tf.disable_v2_behavior()
    epl.init()
    if args.pipeline or args.copies:
        pipeline() if args.pipeline else copies(args.repeats)
        return
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
