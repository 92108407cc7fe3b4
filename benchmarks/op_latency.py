"""All-reduce of float32 as a TensorFlow operation: what it adds to the C interface, and against Horovod's operation.

    python benchmarks/op_latency.py [--horovod_python VENV/bin/python] [--rounds 3] [--json FILE]

Two workers with one core each. A run of the session makes a tensor (by an addition), waits until the other worker has
made its own (by an all-reduce of one number), and puts it through a chain of all-reduces, each of the result of the one
before; EPL's leave it in its place. Such runs take turns with runs that end before the chain, whose time is taken off,
as it is TensorFlow's, and with as many blocking calls of the C interface, in place too, by the same processes on the
same communicator, of memory that was written before as the addition writes it. Printed are the medians of one
all-reduce in microseconds, the best of the rounds, and the median difference between neighbours. For how to make VENV
see vs_horovod.py.
"""

import argparse
import ctypes
import os
import statistics
import sys
import time

import jobs

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24)
_WARM_UP = 5
# Freed memory stays with the process, for both libraries: the kernel takes longer to give 16 MB again than they are
# reduced in, and whether it has to differs between neighbouring runs.
_MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(8 << 30)}
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
    else:
        import horovod.tensorflow as hvd

        hvd.init()

        def all_reduce(x, name):
            return hvd.allreduce(x, op=hvd.Average, name=name)

    one = tf.get_variable("one", [1], tf.float32, tf.ones_initializer(), trainable=False)
    chains = {}
    for size in SIZES:
        length = 20 if size < 1 << 22 else 5
        x = tf.get_variable("x%d" % size, [size // 4], tf.float32, tf.ones_initializer(), trainable=False)
        x = made = tf.add(x, 1.0, name="made_%d" % size)
        with tf.control_dependencies([made]):
            met = all_reduce(tf.identity(one), "met_%d" % size)
        with tf.control_dependencies([met]):
            for i in range(length):
                x = all_reduce(x, "chain_%d_%d" % (size, i))
        # `made` is asked for by name: what only others wait for, TensorFlow does not compute.
        chains[size] = (length, [made.op, met.op], x.op)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for size, (length, met, chain) in chains.items():
            runs = max(15, min(50, (256 << 20) // size // length))
            session.run(chain)  # connects the workers
            by_c = kind == "epl" and CInterface(size)
            ops, calls = [], []
            for _ in range(runs + _WARM_UP):
                before = time.perf_counter()
                session.run(met)
                began = time.perf_counter()
                session.run(chain)
                ended = time.perf_counter()
                ops.append((ended - began - (began - before)) / length * 1e6)
                if by_c:
                    by_c.make()
                    began = time.perf_counter()
                    for _ in range(length):
                        by_c.all_reduce()
                    calls.append((time.perf_counter() - began) / length * 1e6)
            if jobs.rank() == 0:
                found = [statistics.median(ops[_WARM_UP:])]
                if by_c:
                    found.append(statistics.median(calls[_WARM_UP:]))
                    found.append(statistics.median(op - c for op, c in zip(ops[_WARM_UP:], calls[_WARM_UP:])))
                print(_LABEL, size, " ".join("%.2f" % each for each in found), flush=True)


class CInterface(object):
    """Blocking all-reduces in place, as `epl_comm_run` makes them, of memory aligned as TensorFlow's is.

    Args:
      size: bytes.
    """

    def __init__(self, size):
        from epl.communicators import native

        self._native, self._library, self._size = native, native.comm(), size
        self._library.epl_pool_acquire.restype = ctypes.c_void_p
        self._comm = self._library.epl_pool_acquire(0)
        self._source = ctypes.create_string_buffer(size)
        self._memory = ctypes.create_string_buffer(size + 64)
        data = (ctypes.addressof(self._memory) + 63) // 64 * 64
        self._whole, self._one = (native.NativeSegment(data, data, count) for count in (size // 4, 1))

    def make(self):
        """Writes the memory, as the addition does, since what is in a cache is reduced sooner; then meets the other."""
        ctypes.memmove(self._whole.data_in, self._source, self._size)
        self._run(self._one)

    def all_reduce(self):
        self._run(self._whole)

    def _run(self, segment):
        request = self._native.Request(
            tag=-1, name=b"by_c", collective=0, dtype=2, segments=ctypes.pointer(segment), num_segments=1
        )
        request.scale = 1.0 / jobs.WORKERS
        error = ctypes.create_string_buffer(1000)
        code = self._library.epl_comm_run(self._comm, ctypes.byref(request), error, len(error))
        if code != self._native.OK:
            raise RuntimeError(error.value.decode())


def compare(rounds, horovod_python, favoured):
    """{size: {"blocking", "op", "added", "horovod": best microseconds}}"""
    kinds = ["epl"] + (["horovod"] if horovod_python else [])
    found = {size: {} for size in SIZES}

    def note(size, key, value):
        found[size][key] = min(value, found[size].get(key, value))

    os.environ.update(_MALLOC)
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
