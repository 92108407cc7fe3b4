"""All-reduce of float32 as a TensorFlow operation: what it adds to the C interface, and against Horovod's operation.

    python benchmarks/op_latency.py [--horovod_python VENV/bin/python] [--rounds 3] [--json FILE]

Two workers with one core each. A run of the session makes a tensor (by an addition) and puts it through a chain of
all-reduces, each of the result of the one before; EPL's leave it in its place. Such runs take turns with runs that only
make the tensor, whose time is taken off, as it is that of TensorFlow and of the pages of new memory, and with as many
blocking calls of the C interface, in place too, by the same processes on the same communicator. Printed are the medians
of one all-reduce in microseconds, the best of the rounds, and the median difference between neighbours. For how to make
VENV see vs_horovod.py.
"""

import argparse
import ctypes
import os
import statistics
import sys
import time

import jobs

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24)
_LABEL = "bytes and microseconds:"


def measure(kind, favoured):
    """One worker. Worker 0 prints a line for each size: its time, and with EPL that of C and the difference."""
    jobs.settle(favoured)
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    if kind == "epl":
        import epl

        epl.init()

        def all_reduce(x, name):
            return epl.ops.all_reduce(x, op="mean", name=name)

        by_c = by_c_interface
    else:
        import horovod.tensorflow as hvd

        hvd.init()

        def all_reduce(x, name):
            return hvd.allreduce(x, op=hvd.Average, name=name)

        by_c = None

    chains = {}
    for size in SIZES:
        length = 20 if size < 1 << 22 else 5
        x = tf.get_variable("x%d" % size, [size // 4], tf.float32, tf.ones_initializer(), trainable=False)
        x = made = tf.add(x, 1.0, name="made_%d" % size)
        for i in range(length):
            x = all_reduce(x, "chain_%d_%d" % (size, i))
        chains[size] = (length, made.op, x.op)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for size, (length, made, chain) in chains.items():
            runs = max(5, min(50, (256 << 20) // size // length))
            session.run(chain)  # connects the workers
            call = by_c and by_c(size)
            ops, calls = [], []
            for _ in range(runs + 3):
                before = time.perf_counter()
                session.run(made)
                began = time.perf_counter()
                session.run(chain)
                ended = time.perf_counter()
                ops.append((ended - began - (began - before)) / length * 1e6)
                if call:
                    for _ in range(length):
                        call()
                    calls.append((time.perf_counter() - ended) / length * 1e6)
            if jobs.rank() == 0:
                found = [statistics.median(ops[3:])]
                if call:
                    found.append(statistics.median(calls[3:]))
                    found.append(statistics.median(op - c for op, c in zip(ops[3:], calls[3:])))
                print(_LABEL, size, " ".join("%.2f" % each for each in found), flush=True)


def by_c_interface(size):
    """A function that makes the same blocking all-reduce in place, of memory aligned as TensorFlow's is."""
    from epl.communicators import native

    library = native.comm()
    library.epl_pool_acquire.restype = ctypes.c_void_p
    comm = library.epl_pool_acquire(0)
    memory = ctypes.create_string_buffer(size + 64)
    data = (ctypes.addressof(memory) + 63) // 64 * 64
    segment = native.Segment(data, data, size // 4)
    request = native.Request(
        tag=-1, name=b"by_c", collective=0, dtype=2, segments=ctypes.pointer(segment), num_segments=1
    )
    request.scale = 1.0 / jobs.WORKERS
    error = ctypes.create_string_buffer(1000)

    def call():
        code = library.epl_comm_run(comm, ctypes.byref(request), error, len(error))
        if code != native.OK:
            raise RuntimeError(error.value.decode())

    call.memory = memory
    return call


def compare(rounds, horovod_python, favoured):
    """{size: {"blocking", "op", "added", "horovod": best microseconds}}"""
    kinds = ["epl"] + (["horovod"] if horovod_python else [])
    found = {size: {} for size in SIZES}

    def note(size, key, value):
        found[size][key] = min(value, found[size].get(key, value))

    added = {size: [] for size in SIZES}
    for _ in range(rounds):
        for kind in kinds:
            script = [os.path.abspath(__file__), "--measure", kind] + (["--favoured"] if favoured else [])
            for line in jobs.numbers(kind, script, horovod_python, _LABEL):
                size = int(line[0])
                if kind == "epl":
                    note(size, "op", line[1])
                    note(size, "blocking", line[2])
                    added[size].append(line[3])
                else:
                    note(size, kind, line[1])
    for size in SIZES:
        found[size]["added"] = statistics.median(added[size])
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
    print("%10s %10s %10s %10s %12s %12s" % ("bytes", "C us", "op us", "added us", "horovod us", "ratio"))
    for size, row in found.items():
        horovod = row.get("horovod", float("nan"))
        print(
            "%10d %10.1f %10.1f %10.1f %12.1f %12.2f"
            % (
                size,
                row["blocking"],
                row["op"],
                row["added"],
                horovod,
                horovod / row["op"],
            )
        )
    if args.json:
        jobs.save(args.json, {"operation": [dict(row, bytes=size) for size, row in found.items()]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
