"""ZeRO against data parallelism without it: state of the optimizer on each worker, bytes sent, the time of a step.

    python benchmarks/zero.py                       two workers, 8 million parameters in 16 equal layers, Adam
    python benchmarks/zero.py --workers 4 --millions 50

All levels take turns in the same processes; ratios are of medians over all turns. Bytes of state are those of the
variables that a worker's graph holds. Bytes sent are what a worker of a ring sends of gradients and variables in a
step: of N workers, each sends (N - 1) / N of a tensor for a reduce-scatter, twice that for an all-reduce, and its own
share N - 1 times for an all-gather.
"""

import argparse
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import jobs  # noqa: E402

_LABEL = "numbers:"
_LAYERS, _ROWS = 16, 64
_LEVELS = ("", "v0", "v1")


def work(options):
    """One worker: for each level bytes of slots here, of all slots, and sent, and seconds of a step."""
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
        for _ in range(options.steps + 2):
            began = time.perf_counter()
            sess.run(train_op, feed)
            seconds.append(time.perf_counter() - began)
        rewritten = driver_of(sess).rewritten
        slots = {optimizer.get_slot(v, name).op.name for v in tf.trainable_variables() for name in ("m", "v")}
        held = {slot for slot in slots if slot in rewritten.own_graph.nodes}
        size = {v.op.name: 4 * v.shape.num_elements() for v in tf.global_variables()}
        found = [sum(size[slot] for slot in held), sum(size[slot] for slot in slots), _sent(rewritten.plan)]
    return found, seconds[2:]


def _sent(plan):
    """Bytes that this worker sends in a step."""
    from epl.plan.zero import scattered_groups

    workers, once = plan.mesh.copies.num_workers, scattered_groups(plan)
    gradients = sum(group.num_bytes * (1 if group.name in once else 2) for group in plan.aggregation.groups)
    return (workers - 1) * (gradients / workers + plan.updated_bytes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=jobs.WORKERS)
    parser.add_argument("--millions", type=float, default=8.0, help="of parameters")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="times that the levels take turns")
    parser.add_argument("--save", help="a file for the numbers as JSON")
    options = parser.parse_args()
    if options.worker:
        print(_LABEL, " ".join("%.6f" % number for number in work(options)), flush=True)
        return
    jobs.WORKERS = options.workers
    script = [os.path.abspath(__file__), "--worker"]
    for key in ("millions", "steps", "rounds"):
        script += ["--%s" % key, str(getattr(options, key))]
    lines = jobs.numbers("epl", script, None, _LABEL)
    results = {"workers": len(lines), "millions": options.millions}
    without = statistics.median(line[3] for line in lines)
    for place, level in enumerate(_LEVELS):
        numbers = [line[4 * place : 4 * place + 4] for line in lines]
        seconds = statistics.median(each[3] for each in numbers)
        results[level or "without"] = {
            "state of a worker of the whole": [each[0] / each[1] for each in numbers],
            "MiB sent": [each[2] / 2.0**20 for each in numbers],
            "ms of a step": 1e3 * seconds,
            "of the time without": seconds / without,
        }
    for name, values in results.items():
        if isinstance(values, dict):
            state = " ".join("%.3f" % share for share in values["state of a worker of the whole"])
            sent = " ".join("%.1f" % size for size in values["MiB sent"])
            line = "%-8s state of each worker / whole: %s   MiB sent: %s   step %.1f ms (%.2f x)"
            print(line % (name, state, sent, values["ms of a step"], values["of the time without"]))
    if options.save:
        jobs.save(options.save, results)


if __name__ == "__main__":
    main()
