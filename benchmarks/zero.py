"""ZeRO against data parallelism without it: what each worker keeps, bytes sent, the time of a step.

    python benchmarks/zero.py                       two workers, 8 million parameters in 16 equal layers, Adam
    python benchmarks/zero.py --workers 4 --millions 50
    python benchmarks/zero.py --count               two workers on two simulated hosts (root): bytes are counted

All levels take turns in the same processes; ratios are of medians over all turns. Bytes of parameters and of state are
those of the variables that a worker's graph holds. Bytes sent are counted where they leave a host; otherwise they are
what a worker of a ring sends of gradients and variables in a step: of N workers, each sends (N - 1) / N of a tensor for
a reduce-scatter, twice that for an all-reduce, and its own share N - 1 times for an all-gather.
"""

import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import jobs, two_hosts  # noqa: E402

_LABEL = "numbers:"
_LAYERS, _ROWS = 16, 64
_LEVELS = ("", "v0", "v1", "v2", "v3")
_NUMBERS = ("state of a worker of the whole", "parameters of a worker of the whole", "MiB sent", "seconds")


def work(options):
    """One worker: for each level its share of all state and of all parameters, MiB sent, and seconds of a step."""
    jobs.settle(False)
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    times, sizes = {level: [] for level in _LEVELS}, {}
    for _ in range(options.rounds):
        for level in _LEVELS:
            with tf.Graph().as_default():
                sizes[level], seconds = _train(level, options)
            times[level].extend(seconds)
    return [number for level in _LEVELS for number in sizes[level] + [statistics.median(times[level])]]


def _train(level, options):
    import numpy as np
    import tensorflow.compat.v1 as tf

    import epl
    from epl.session.hooks import driver_of

    epl.init(epl.Config({"zero.level": level}))
    width = int((options.millions * 1e6 / _LAYERS) ** 0.5)
    x = rows = tf.placeholder(tf.float32, [None, width])
    for layer in range(_LAYERS):
        x = tf.layers.dense(x, width, tf.nn.tanh, name="dense_%d" % layer)
    optimizer = tf.train.AdamOptimizer(1e-4)
    train_op = optimizer.minimize(tf.reduce_mean(tf.square(x)))
    feed, seconds = {rows: np.random.RandomState(jobs.rank()).normal(size=[_ROWS, width])}, []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(options.steps + 2):
            if step == 2 and options.count:
                before = two_hosts.sent_bytes()
            began = time.perf_counter()
            sess.run(train_op, feed)
            seconds.append(time.perf_counter() - began)
        counted = (two_hosts.sent_bytes() - before) / options.steps if options.count else None
        rewritten = driver_of(sess).rewritten
        trained = tf.trainable_variables()
        state = [optimizer.get_slot(variable, name) for variable in trained for name in ("m", "v")]
        sent = _sent(rewritten.plan) if counted is None else counted
        found = [_share(variables, rewritten.own_graph.nodes) for variables in (state, trained)] + [sent / 2.0**20]
    return found, seconds[2:]


def _share(variables, nodes):
    """Bytes of those variables that are among some nodes, as a share of all."""
    size = {variable.op.name: variable.shape.num_elements() for variable in variables}
    return sum(count for name, count in size.items() if name in nodes) / sum(size.values())


def _sent(plan):
    """Bytes that this worker sends in a step."""
    from epl.program.collective import GRADIENTS, PARAMETERS, REDUCE_SCATTER

    workers, found = plan.mesh.copies.num_workers, [e for e in plan.collectives if e.purpose == GRADIENTS]
    gradients = sum(each.num_bytes * (1 if each.operation == REDUCE_SCATTER else 2) for each in found)
    return (workers - 1) * (gradients / workers + plan.sent_bytes(PARAMETERS))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=jobs.WORKERS)
    parser.add_argument("--millions", type=float, default=8.0, help="of parameters")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="times that the levels take turns")
    parser.add_argument("--save", help="a file for the numbers as JSON")
    parser.add_argument("--count", action="store_true", help="bytes as they leave one of two simulated hosts")
    options = parser.parse_args()
    if options.worker:
        found = work(options)
        if options.save:
            with open(options.save, "w") as target:
                json.dump(found, target)
        else:
            print(_LABEL, " ".join("%.6f" % number for number in found), flush=True)
        return
    jobs.WORKERS = options.workers
    script = [os.path.abspath(__file__), "--worker"]
    for key in ("millions", "steps", "rounds"):
        script += ["--%s" % key, str(getattr(options, key))]
    if options.count:
        lines = two_hosts.results([sys.executable] + script + ["--count"])
    else:
        lines = jobs.numbers("epl", script, None, _LABEL)
    results = {"workers": len(lines), "millions": options.millions, "counted": options.count}
    for place, level in enumerate(_LEVELS):
        columns = zip(*(line[len(_NUMBERS) * place : len(_NUMBERS) * (place + 1)] for line in lines))
        results[level or "without"] = found = dict(zip(_NUMBERS, map(list, columns)))
        found["ms of a step"] = 1e3 * statistics.median(found.pop("seconds"))
        found["of the time without"] = found["ms of a step"] / results["without"]["ms of a step"]
        print("%-8s step %.1f ms (%.2f x)" % (level or "without", found["ms of a step"], found["of the time without"]))
        for name in _NUMBERS[:3]:
            print("         %s: %s" % (name, " ".join("%.3f" % number for number in found[name])))
    if options.save:
        jobs.save(options.save, results)


if __name__ == "__main__":
    main()
