"""What the inner session costs: on one device against plain TensorFlow, and for two workers beyond what they exchange.

    python benchmarks/session_overhead.py [--rounds 15] [--workers]

Two processes on the same core, one with EPL and one without, take turns: a block of steps each, so that whatever else
the machine does meets both. For the CNN the ratio of the medians is printed, for an empty graph the microseconds per
step.

With --workers: two workers on a core each fetch the mean of a constant over both. Of a step's time, what TensorFlow
needs for the graph and what the exchange of the agreement needs are subtracted; what is left is Python's. Printed are
the medians of the blocks: in the driver, and in all of `session.run`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

import jobs

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


def serve_worker(rounds):
    """A worker: prints for each block the microseconds per step of the exchange, the driver and `session.run`."""
    jobs.settle(favoured=False)
    import tensorflow.compat.v1 as tf  # after the affinity, from which TensorFlow takes the number of its threads

    import epl
    from epl.communicators.pool import Pool
    from epl.session.driver import Driver
    from epl.session.inner import InnerSession

    tf.disable_v2_behavior()
    spent = {}
    for owner, name in ((Pool, "exchange"), (InnerSession, "run"), (Driver, "run")):
        setattr(owner, name, _timed(getattr(owner, name), (owner, name), spent))
    epl.init()
    mean = tf.constant(1.0)
    epl.add_to_collection(mean, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    with tf.Session() as session:
        for block in range(rounds + 1):
            spent.clear()
            began = time.perf_counter()
            for _ in range(_STEPS):
                session.run(mean)
            whole = time.perf_counter() - began
            exchange, inner, driver = (
                spent[key] for key in ((Pool, "exchange"), (InnerSession, "run"), (Driver, "run"))
            )
            if block and jobs.rank() == 0:
                figures = (exchange, driver - inner - exchange, whole - inner - exchange)
                print("per step %s" % " ".join("%.2f" % (figure / _STEPS * 1e6) for figure in figures), flush=True)


_STEPS = 1000


def _timed(function, key, spent):
    """The function, adding up the seconds that it takes."""

    def timed(*args, **kwargs):
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[key] = spent.get(key, 0.0) + time.perf_counter() - began

    return timed


def measure_workers(rounds):
    """Median microseconds per step of (exchange, driver without it, session.run without it)."""
    script = [os.path.abspath(__file__), "--serve_worker", "--rounds", str(rounds)]
    return [statistics.median(each) for each in zip(*jobs.numbers("epl", script, None, "per step"))]


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
    parser.add_argument("--workers", action="store_true", help="two workers instead of one device")
    parser.add_argument("--serve_worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(*args.serve)
    if args.serve_worker:
        return serve_worker(args.rounds)
    if args.workers:
        print(
            "exchange %.1f us; beyond it %.1f us in the driver, %.1f us in session.run"
            % tuple(measure_workers(args.rounds))
        )
        return 0
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
