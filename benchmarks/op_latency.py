"""All-reduce of float32 as a TensorFlow operation: what it adds to the C interface, and against Horovod's operation.

    python benchmarks/op_latency.py [--horovod_python VENV/bin/python] [--rounds 3] [--json FILE]

Two workers with one core each. A run of the session has a chain of all-reduces, each of the result of the one before;
printed is the best time of one of them over the rounds, in microseconds, beside that of the C interface (blocking, and
through the queue as the operation uses it) in the same rounds. For how to make VENV see vs_horovod.py.
"""

import argparse
import os
import sys
import tempfile
import time

import jobs
from all_reduce import run as c_level

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24)
_LABEL = "bytes and microseconds:"


def measure(kind, favoured):
    """One worker. Worker 0 prints a line for each size."""
    jobs.settle(favoured)
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    if kind == "epl":
        import epl

        epl.init()

        def all_reduce(x, name):
            return epl.ops.all_reduce(x, op="mean", name=name)

    else:
        import horovod.tensorflow as hvd

        hvd.init()

        def all_reduce(x, name):
            return hvd.allreduce(x, op=hvd.Average, name=name)

    chains = {}
    for size in SIZES:
        length = 20 if size < 1 << 22 else 5
        x = tf.get_variable("x%d" % size, [size // 4], tf.float32, tf.ones_initializer(), trainable=False)
        for i in range(length):
            x = all_reduce(x, "chain_%d_%d" % (size, i))
        chains[size] = (length, x.op)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for size, (length, chain) in chains.items():
            runs = max(5, min(50, (256 << 20) // size // length))
            times = []
            for _ in range(runs + 3):
                began = time.perf_counter()
                session.run(chain)
                times.append((time.perf_counter() - began) / length)
            times = sorted(times[3:])
            if jobs.rank() == 0:
                print("%s %d %.2f" % (_LABEL, size, times[len(times) // 2] * 1e6), flush=True)


def compare(rounds, horovod_python, favoured):
    """{size: {"blocking", "queued", "op", "horovod": best microseconds}}"""
    kinds = ["epl"] + (["horovod"] if horovod_python else [])
    found = {size: {} for size in SIZES}

    def note(size, key, value):
        found[size][key] = min(value, found[size].get(key, value))

    with tempfile.TemporaryDirectory() as folder:
        c_level.build_epl(folder)
        for _ in range(rounds):
            plain = c_level.measure([os.path.join(folder, "epl"), str(jobs.WORKERS), "shm"])
            for size in SIZES:
                note(size, "blocking", plain[size][0])
                note(size, "queued", plain[size][1])
            for kind in kinds:
                script = [os.path.abspath(__file__), "--measure", kind] + (["--favoured"] if favoured else [])
                for size, microseconds in jobs.numbers(kind, script, horovod_python, _LABEL):
                    note(int(size), "op" if kind == "epl" else kind, microseconds)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--horovod_python", help="the interpreter of the environment that has Horovod")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--favoured", action="store_true", help="a high weight for all jobs, against other load; root")
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure, args.favoured)
    horovod_python = args.horovod_python and os.path.abspath(args.horovod_python)
    found = compare(args.rounds, horovod_python, args.favoured)
    print(
        "%10s %10s %10s %10s %10s %12s %12s"
        % ("bytes", "C us", "queued us", "op us", "added us", "horovod us", "ratio")
    )
    for size, row in found.items():
        horovod = row.get("horovod", float("nan"))
        print(
            "%10d %10.1f %10.1f %10.1f %10.1f %12.1f %12.2f"
            % (
                size,
                row["blocking"],
                row["queued"],
                row["op"],
                row["op"] - row["blocking"],
                horovod,
                horovod / row["op"],
            )
        )
    if args.json:
        jobs.save(args.json, {"operation": [dict(row, bytes=size) for size, row in found.items()]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
