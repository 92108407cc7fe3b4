"""Whether the plan that EPL chooses is the fastest: real runs of it and of many others, and estimates against them.

    python -m epl.calibrate
    python benchmarks/search.py [--models mlp cnn lstm bert] [--layouts 1x1 1x2 2x1] [--plans 30] [--json FILE]
    python benchmarks/search.py --report FILE [FILE ...]

For each model and layout (workers x devices of each) the search makes so many plans, and all of them are trained for
some steps. Printed are, of each plan, the seconds of a step as estimated and as measured (the median), and at the end

    chosen / best       measured time of the plan that the search chose, against the fastest of all
    error               the median of |estimated / measured - 1|, and the part of plans within 15 %
    Kendall             rank correlation of estimated and measured times: 1 where every pair is in the right order

The machine is what `python -m epl.calibrate` has measured, or `--machine`. Models are fed 64 rows a step over all
devices. Run it on an otherwise idle machine.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import jobs

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["EPL_DEVICE"] = "cpu"

import models  # noqa: E402
import numpy as np  # noqa: E402  the log level comes first
import tensorflow.compat.v1 as tf  # noqa: E402

import epl  # noqa: E402
from epl.capture.record import make_program  # noqa: E402
from epl.cluster import Cluster  # noqa: E402
from epl.cluster.machine import machine  # noqa: E402
from epl.search.search import search  # noqa: E402

ROWS = 64
_LABEL = "seconds of a step:"
_WARM_UP = 2
_FEEDS = []


def _fed(shape, classes):
    """In the place of `models.batches`: the same data, fed."""
    rng = np.random.RandomState(0)
    return _placeholder(rng.normal(size=(ROWS,) + shape).astype(np.float32)), _placeholder(
        rng.randint(0, classes, ROWS).astype(np.int64)
    )


def _placeholder(data):
    made = tf.placeholder(data.dtype, [None] + list(data.shape[1:]))
    _FEEDS.append((made, data))
    return made


def lstm():
    """A language model: one LSTM of 128 units over 16 words of 2,000."""
    words = _placeholder(np.random.RandomState(0).randint(0, 2000, (ROWS, 17)).astype(np.int32))
    x = tf.gather(tf.get_variable("words", [2000, 128]), words[:, :-1])
    state = [tf.zeros([tf.shape(words)[0], 128])] * 2
    outputs = []
    kernel, bias = tf.get_variable("kernel", [256, 512]), tf.get_variable("bias", [512])
    for step in range(16):
        gates = tf.matmul(tf.concat([x[:, step], state[1]], 1), kernel) + bias
        i, j, f, o = tf.split(gates, 4, 1)
        memory = state[0] * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
        state = [memory, tf.tanh(memory) * tf.sigmoid(o)]
        outputs.append(state[1])
    logits = tf.layers.dense(tf.reshape(tf.stack(outputs, 1), [-1, 128]), 2000)
    return tf.losses.sparse_softmax_cross_entropy(tf.reshape(words[:, 1:], [-1]), logits)


def bert():
    """The BERT of 4 layers, 128 wide, of `models`, on rows of 32 bytes."""
    sys.path.insert(0, os.path.join(jobs.ROOT, "examples", "bert_pipeline"))
    import model

    tokens = _placeholder(np.random.RandomState(0).randint(0, 256, (ROWS, 32)).astype(np.int32))
    x = model.embed(tokens, 128)
    for layer in range(4):
        x = model.transformer_layer(x, 4, "layer_%d" % layer)
    return model.masked_loss(x, tokens, tf.ones_like(tokens, tf.float32))[0]


ZOO = {"mlp": models.mlp, "cnn": models.cnn, "lstm": lstm, "bert": bert}


def build(name):
    """The graph of a model's training; (loss, train operation, feeds of a whole step)."""
    models.batches = _fed
    del _FEEDS[:]
    loss = ZOO[name]()
    train = tf.train.AdamOptimizer(1e-3).minimize(loss, tf.train.get_or_create_global_step())
    return loss, train, list(_FEEDS)


def measure(name, path):
    """One worker: trains by each of the plans of a file, in turn, and prints the seconds of their steps."""
    with open(path) as source:
        asked = json.load(source)
    cluster = epl.Env.get().cluster
    for number, values in enumerate(asked["plans"]):
        epl.init(epl.Config(values, {}))
        with tf.Graph().as_default():
            _, train, fed = build(name)
            rows = ROWS // cluster.worker_num
            own = slice(cluster.worker_index * rows, (cluster.worker_index + 1) * rows)
            feeds = {placeholder: data[own] for placeholder, data in fed}
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                for _ in range(_WARM_UP):
                    session.run(train, feeds)
                times = []
                for _ in range(asked["steps"]):
                    began = time.perf_counter()
                    session.run(train, feeds)
                    times.append(time.perf_counter() - began)
        if cluster.worker_index == 0:
            print(_LABEL, number, statistics.median(times), flush=True)


def found_for(name, workers, devices, on, plans):
    """What the search finds for a model."""
    place = Cluster(workers, 0, devices, ["127.0.0.1:%d" % (20000 + i) for i in range(workers)], "CPU", "benchmark")
    epl.init(epl.Config({}))
    with tf.Graph().as_default() as graph:
        build(name)
        return search(make_program(graph), epl.Config({}, {}), place, on, ROWS, plans=plans)


def run(name, workers, devices, on, options):
    """dict of what was estimated and measured of each plan of a model."""
    found = found_for(name, workers, devices, on, options.plans)
    plans = [plan for plan in found.plans if plan.refused is None]
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as target:
        json.dump({"plans": [plan.values for plan in plans], "steps": options.steps}, target)
    command = [sys.executable, "-m", "epl.launch", "--num_workers", str(workers), "--gpu_per_worker", str(devices)]
    command += ["--device", "cpu", os.path.abspath(__file__), "--measure", name, target.name]
    path = os.pathsep.join([jobs.ROOT, os.path.join(jobs.ROOT, "benchmarks")])
    ended = subprocess.run(
        command,
        env=dict(os.environ, PYTHONPATH=path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=1200,
    )
    os.unlink(target.name)
    lines = [line.split(_LABEL)[1].split() for line in ended.stdout.splitlines() if _LABEL in line]
    if ended.returncode or len(lines) < len(plans):
        sys.exit("the job failed with status %d:\n%s" % (ended.returncode, ended.stdout[-4000:]))
    measured = {int(number): float(seconds) for number, seconds in lines}
    return {
        "model": name,
        "layout": "%dx%d" % (workers, devices),
        "plans": [
            {
                "plan": "%s, %s" % (plan.choice.layout, plan.choice.options),
                "estimated_s": plan.estimate.step_s,
                "measured_s": measured[number],
                "is_chosen": plan is found.best,
            }
            for number, plan in enumerate(plans)
        ],
    }


def kendall(pairs):
    """Rank correlation of (estimated, measured) pairs; 0 of fewer than two."""
    same = [(a - c) * (b - d) for (a, b), (c, d) in itertools.combinations(pairs, 2)]
    decided = [product for product in same if product]
    return sum(1 if product > 0 else -1 for product in decided) / len(decided) if decided else 0.0


def report(results, verbose):
    """Prints the plans, and the figures of each model and of all."""
    errors, ratios, ranks = [], [], []
    for result in results:
        plans = result["plans"]
        if verbose:
            for plan in sorted(plans, key=lambda plan: plan["measured_s"]):
                told = plan["measured_s"] * 1e3, plan["estimated_s"] * 1e3, "<- chosen" if plan["is_chosen"] else ""
                print("  %-72s measured %7.1f ms, estimated %7.1f ms %s" % ((plan["plan"],) + told))
        own = [abs(plan["estimated_s"] / plan["measured_s"] - 1) for plan in plans]
        best = min(plan["measured_s"] for plan in plans)
        chosen = next(plan["measured_s"] for plan in plans if plan["is_chosen"])
        rank = kendall([(plan["estimated_s"], plan["measured_s"]) for plan in plans])
        errors, ratios, ranks = errors + own, ratios + [chosen / best], ranks + [rank]
        print(
            "%-5s %s: %2d plans, chosen / best %.2f, median error %2.0f %%, within 15 %%: %3.0f %%, Kendall %.2f"
            % (
                result["model"],
                result["layout"],
                len(plans),
                chosen / best,
                100 * statistics.median(own),
                100.0 * sum(error <= 0.15 for error in own) / len(own),
                rank,
            ),
            flush=True,
        )
    if len(results) > 1:
        pairs = [(p["estimated_s"], p["measured_s"]) for result in results for p in result["plans"]]
        print(
            "all: %d plans, chosen / best at most %.2f (median %.2f), median error %.0f %%, Kendall %.2f (together),"
            " %.2f (median of each)"
            % (
                len(pairs),
                max(ratios),
                statistics.median(ratios),
                100 * statistics.median(errors),
                kendall(pairs),
                statistics.median(ranks),
            )
        )


def main():
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--models", nargs="+", default=list(ZOO), choices=sorted(ZOO))
    command.add_argument("--layouts", nargs="+", default=["1x1", "1x2", "2x1"])
    command.add_argument("--plans", type=int, default=30, help="of each model and layout")
    command.add_argument("--steps", type=int, default=10, help="of each plan")
    command.add_argument("--machine", default="measured")
    command.add_argument("--json", metavar="FILE", help="what is written is read by --report")
    command.add_argument("--report", metavar="FILE", nargs="+", help="the figures of earlier runs")
    command.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = command.parse_args()
    tf.disable_v2_behavior()
    if options.measure:
        return measure(*options.measure)
    if options.report:
        results = []
        for path in options.report:
            with open(path) as source:
                results += json.load(source)["results"]
        return report(results, False)
    results = []
    for name, layout in itertools.product(options.models, options.layouts):
        workers, devices = map(int, layout.split("x"))
        results.append(run(name, workers, devices, machine(options.machine), options))
        report(results[-1:], True)
    if options.json:
        jobs.save(options.json, {"results": results})
    return report(results, False)


if __name__ == "__main__":
    main()
