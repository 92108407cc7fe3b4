"""Two workers of which one has a slower device: equal parts of a batch, parts by measured speed, and what is possible.

    python benchmarks/uneven.py [--slow 2 4] [--json FILE]

Each worker has a core of its own, for one thread. On that of worker 1 other processes compute all the time: one, so
that it has half of the core, or three, for a quarter (`--slow`). Printed are rows a second, by the median step, of

    sum       both workers alone, each with half of the rows, at the same time: they exchange nothing
    equal     cluster.device_weights=[1, 1]
    auto      cluster.device_weights="auto"
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import jobs

ROWS, WIDTH, LAYERS = 1024, 512, 8
_WARM_UP, _STEPS = 2, 10
_LABEL = "seconds of steps:"
_WAYS = {"equal": [1, 1], "auto": "auto"}


def train(way):
    """One worker: prints the seconds of its steps; "alone": of plain TensorFlow, with half of the rows."""
    jobs.settle(False)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import numpy as np
    import tensorflow.compat.v1 as tf

    import epl

    tf.disable_eager_execution()
    alone = way == "alone"
    if not alone:
        epl.init(epl.Config({"cluster.device_weights": _WAYS[way]}))
        epl.set_default_strategy(epl.replicate(2))
    rng = np.random.RandomState(0)
    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).repeat().batch(ROWS // 2 if alone else ROWS)
    hidden, wanted = tf.data.make_one_shot_iterator(data).get_next()
    for layer in range(LAYERS):
        weights = tf.get_variable("w%d" % layer, [WIDTH, WIDTH], initializer=tf.initializers.glorot_uniform(seed=layer))
        hidden = tf.tanh(tf.matmul(hidden, weights))
    loss = tf.reduce_mean(tf.square(hidden[:, :1] - wanted))
    step = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
    options = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1 if alone else 2)
    with tf.Session(config=options) as session:
        session.run(tf.global_variables_initializer())
        if not alone:
            print("weights: %s" % (epl.Env.get().config.cluster.device_weights,), flush=True)
        times = []
        for _ in range(_WARM_UP + _STEPS):
            began = time.perf_counter()
            session.run(step)
            times.append(time.perf_counter() - began)
    print("%s %s" % (_LABEL, " ".join("%.5f" % each for each in times[_WARM_UP:])), flush=True)


def alone():
    """Rows a second of each worker by itself, both at the same time."""
    running = []
    for rank in range(jobs.WORKERS):
        place = json.dumps({"task": {"index": rank}})
        command = [sys.executable, os.path.abspath(__file__), "--train", "alone"]
        env = dict(os.environ, TF_CONFIG=place, PYTHONPATH=jobs.ROOT, CUDA_VISIBLE_DEVICES="")
        running.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True))
    found = []
    for each in running:
        printed = each.communicate(timeout=300)[0]
        if each.returncode:
            sys.exit("a worker alone failed with status %d" % each.returncode)
        found.append(ROWS / 2 / _median(printed.split(_LABEL)[1].split()))
    return found


def together(way):
    """Rows a second of the job."""
    script = [os.path.abspath(__file__), "--train", way]
    return ROWS / max(_median(each) for each in jobs.numbers("epl", script, None, _LABEL))


def _median(times):
    return statistics.median(map(float, times))


def _compete(number):
    """Starts processes that compute on the core of worker 1 until they are ended."""
    cores = sorted(os.sched_getaffinity(0))
    loop = "import os\nos.sched_setaffinity(0, {%d})\nwhile os.getppid() == %d:\n    sum(range(1000))"
    code = loop % (cores[1 % len(cores)], os.getpid())
    return [subprocess.Popen([sys.executable, "-c", code], start_new_session=True) for _ in range(number)]


def measure(slow):
    """Rows a second of one speed of worker 1: its core belongs to so many processes."""
    others = _compete(slow - 1)
    try:
        singles = alone()
        found = {way: together(way) for way in _WAYS}
    finally:
        for each in others:
            each.kill()
            each.wait()
    return dict(found, singles=singles)


def main():
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--slow", type=int, nargs="+", default=[2, 4], help="processes on the core of worker 1")
    command.add_argument("--json", metavar="FILE")
    command.add_argument("--train", choices=["alone"] + list(_WAYS), help=argparse.SUPPRESS)
    options = command.parse_args()
    if options.train:
        train(options.train)
        return
    print(jobs.machine())
    results = {}
    for slow in options.slow:
        found = results[slow] = measure(slow)
        total = sum(found["singles"])
        told = "worker 1's core for %d processes: alone %.1f and %.1f rows/s" % (slow, *found["singles"])
        told += ", sum %.1f" % total
        for way in _WAYS:
            told += "; %s %.1f (%.0f %% of it)" % (way, found[way], 100 * found[way] / total)
        print(told, flush=True)
    if options.json:
        jobs.save(options.json, {str(slow): found for slow, found in results.items()})


if __name__ == "__main__":
    main()
