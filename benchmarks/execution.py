"""What the execution.* keys do to a step on one device, as a ratio to TensorFlow's defaults.

    python benchmarks/execution.py [--rounds 9] [--models mlp cnn normed]

A process for each setting, as TensorFlow's threads belong to a process, on the same cores; they take turns with a block
of steps each, so that whatever else the machine does meets all. Printed are the medians of the blocks, and the seconds
of the first step, in which graphs are optimised and compiled.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

SETTINGS = (
    {},
    {"execution.num_threads": 1},
    {"execution.inter_op_threads": 1},
    {"execution.xla": True},
)
STEPS = {"mlp": 4, "cnn": 5, "normed": 5}  # of a block


def serve(model, config):
    """The child: for each line with a number of steps, prints the seconds that these took."""
    import models
    import tensorflow.compat.v1 as tf

    import epl

    tf.disable_v2_behavior()
    epl.init(epl.Config(config))
    loss = models.MODELS[model]()
    fetches = [loss, models.optimizer().minimize(loss)]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for line in sys.stdin:
            began = time.perf_counter()
            for _ in range(int(line)):
                session.run(fetches)
            print("seconds %.9f" % (time.perf_counter() - began), flush=True)


class Child(object):
    """A process that measures blocks of steps."""

    def __init__(self, model, config):
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", model, json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            universal_newlines=True,
        )

    def seconds(self, steps):
        self._process.stdin.write("%d\n" % steps)
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1]) / steps
        raise RuntimeError("a measuring process ended with status %s" % self._process.wait())

    def close(self):
        self._process.stdin.close()
        self._process.wait(120)  # XLA's threads take their time to end


def measure(model, rounds):
    """[(seconds of the first step, median seconds of a step)] for the settings."""
    children = [Child(model, config) for config in SETTINGS]
    first = [child.seconds(1) for child in children]
    for child in children:
        child.seconds(STEPS[model])  # warm up
    blocks = [[child.seconds(STEPS[model]) for child in children] for _ in range(rounds)]
    for child in children:
        child.close()
    return list(zip(first, map(statistics.median, zip(*blocks))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each process")
    parser.add_argument("--models", nargs="+", default=sorted(STEPS), choices=sorted(STEPS))
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve[0], json.loads(args.serve[1]))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for model in args.models:
        results = measure(model, args.rounds)
        for config, (first, step) in zip(SETTINGS, results):
            name = " ".join("%s=%s" % item for item in config.items()) or "TensorFlow's defaults"
            ratio = step / results[0][1]
            print("%-6s %-28s %8.2f ms a step, ratio %.3f; first %.2f s" % (model, name, step * 1e3, ratio, first))
    return 0


if __name__ == "__main__":
    sys.exit(main())
