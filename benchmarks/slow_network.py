"""Strategies for slow networks against data-parallel training that sends all gradients: two hosts, one worker each.

    python benchmarks/slow_network.py                 an MLP of 5 million parameters, a link of 1 Gbit/s, Momentum
    python benchmarks/slow_network.py --gbit 10
    python benchmarks/slow_network.py --rows 128 --ways overlap,none

The hosts are network namespaces whose link `tc` holds to its rate, so it needs root. All ways take turns in the same
processes; a step is the median over all turns, and with LocalSGD the mean of a period. The two workers, and what the
system does for the link, share this machine's cores.
"""

import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import jobs, two_hosts  # noqa: E402

_LAYERS = (512, 1536, 1536, 1200, 10)
_PERIOD = 8  # of LocalSGD, and of what is timed together
_NEVER = 10**9
_WAYS = {
    "dense": {},
    "int8": {"communication.wire_dtype": "int8"},
    "bfloat16": {"communication.wire_dtype": "bfloat16"},
    "dgc": {"dgc.sparsity": [0.999]},
    "local_sgd": {"local_sgd.k_steps": _PERIOD},
    "own_slots": {"local_sgd.k_steps": _PERIOD, "local_sgd.average_slots": False},
    "overlap": {"local_sgd.k_steps": _PERIOD, "local_sgd.average_slots": False, "local_sgd.overlap": True},
    "none": {"local_sgd.k_steps": _NEVER},
}
_WHAT = {
    "dense": "all gradients",
    "int8": "gradients as int8",
    "bfloat16": "gradients as bfloat16",
    "dgc": "DGC, 99.9 % kept back",
    "local_sgd": "LocalSGD, 8 steps",
    "own_slots": "  slots not averaged",
    "overlap": "  and overlap",
    "none": "no communication",
}


def work(options):
    """One worker: the seconds of a step in each period, for each way."""
    jobs.settle(False)
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    found = {way: [] for way in options.ways}
    for _ in range(options.rounds):
        for way in options.ways:
            with tf.Graph().as_default():
                found[way].extend(_train(_WAYS[way], options.periods, options.rows))
    return found


def _train(config, periods, batch):
    import numpy as np
    import tensorflow.compat.v1 as tf

    import epl

    epl.init(epl.Config(config))
    x = rows = tf.placeholder(tf.float32, [None, _LAYERS[0]])
    for number, (inputs, outputs) in enumerate(zip(_LAYERS, _LAYERS[1:])):
        kernel = tf.get_variable("w%d" % number, [inputs, outputs], use_resource=True)
        bias = tf.get_variable("b%d" % number, [outputs], initializer=tf.zeros_initializer(), use_resource=True)
        x = tf.tanh(tf.matmul(x, kernel) + bias)
    train_op = tf.train.MomentumOptimizer(0.01, 0.9).minimize(tf.reduce_mean(tf.square(x)))
    feed = {rows: np.random.RandomState(jobs.rank()).normal(size=[batch, _LAYERS[0]])}
    seconds = []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(periods + 1):
            began = time.perf_counter()
            for _ in range(_PERIOD):
                sess.run(train_op, feed)
            seconds.append((time.perf_counter() - began) / _PERIOD)
    return seconds[1:]


def measured(options):
    """{way: seconds of a step}, of the slower worker."""
    script = [sys.executable, os.path.abspath(__file__), "--worker"]
    script += ["--rounds", str(options.rounds), "--periods", str(options.periods), "--rows", str(options.rows)]
    script += ["--ways", ",".join(options.ways)]
    found = two_hosts.results(script, options.gbit)
    return {way: max(statistics.median(numbers[way]) for numbers in found) for way in options.ways}


def _ways(text):
    names = text.split(",")
    unknown = sorted(set(names) - set(_WAYS))
    if unknown:
        raise argparse.ArgumentTypeError("'%s' is none of %s" % (unknown[0], ", ".join(_WAYS)))
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--gbit", type=float, default=1.0, help="per second, of the link in each direction")
    parser.add_argument("--rows", type=int, default=16, help="of a worker's batch")
    parser.add_argument("--ways", type=_ways, default=list(_WAYS), help="of %s" % ", ".join(_WAYS))
    parser.add_argument("--periods", type=int, default=4, help="of %d steps, for each way and turn" % _PERIOD)
    parser.add_argument("--rounds", type=int, default=3, help="times that the ways take turns")
    parser.add_argument("--save", help="a file for the numbers as JSON")
    options = parser.parse_args()
    if options.worker:
        with open(options.save, "w") as target:
            json.dump(work(options), target)
        return
    seconds = measured(options)
    for way, value in seconds.items():
        ratios = [
            "%.2f x %s" % (seconds[other] / value, _WHAT[other]) for other in ("dense", "none") if other in seconds
        ]
        print("%-22s %7.1f ms a step   %s" % (_WHAT[way], 1e3 * value, "   ".join(ratios)))
    if options.save:
        jobs.save(options.save, {"gbit": options.gbit, "rows": options.rows, "seconds": seconds})


if __name__ == "__main__":
    main()
