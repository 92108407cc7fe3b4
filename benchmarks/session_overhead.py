"""What the inner session costs on one device, against plain TensorFlow.

    python benchmarks/session_overhead.py [--rounds 15]

Two processes on the same core, one with EPL and one without, take turns: a block of steps each, so that whatever else
the machine does meets both. For the CNN the ratio of the medians is printed, for an empty graph the microseconds per
step.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

MODELS = {"cnn": 20, "empty": 2000}  # steps of a block


def serve(kind, model):
    """The child: for each line with a number of steps, prints the seconds that these took."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import models
    import tensorflow.compat.v1 as tf  # after the affinity, from which TensorFlow takes the number of its threads

    tf.disable_v2_behavior()
    if kind == "epl":
        import epl

        epl.init()
    assert ("epl" in sys.modules) == (kind == "epl")
    loss = models.MODELS[model]()
    fetches = [loss] if model == "empty" else [loss, models.optimizer().minimize(loss)]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for line in sys.stdin:
            began = time.perf_counter()
            for _ in range(int(line)):
                session.run(fetches)
            print("seconds %.9f" % (time.perf_counter() - began), flush=True)


class Child(object):
    """A process that measures blocks of steps."""

    def __init__(self, kind, model):
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", kind, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            universal_newlines=True,
        )

    def seconds_per_step(self, steps):
        self._process.stdin.write("%d\n" % steps)
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1]) / steps
        raise RuntimeError("a measuring process ended with status %s" % self._process.wait())

    def close(self):
        self._process.stdin.close()
        self._process.wait(30)


def measure(model, steps, rounds):
    """Median seconds per step of (plain TensorFlow, EPL), and the median of the differences of neighbouring blocks."""
    children = [Child(kind, model) for kind in ("plain", "epl")]
    for child in children:
        child.seconds_per_step(steps)  # warm up
    blocks = [[child.seconds_per_step(steps) for child in children] for _ in range(rounds)]
    for child in children:
        child.close()
    plain, with_epl = (statistics.median(each) for each in zip(*blocks))
    return plain, with_epl, statistics.median(two - one for one, two in blocks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="blocks of each process")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(*args.serve)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for model, steps in MODELS.items():
        plain, with_epl, difference = measure(model, steps, args.rounds)
        print(
            "%-6s plain %9.1f us, with EPL %9.1f us a step: %+7.1f us, ratio %.4f"
            % (model, plain * 1e6, with_epl * 1e6, difference * 1e6, with_epl / plain),
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
