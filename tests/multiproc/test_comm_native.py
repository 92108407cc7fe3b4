"""The native communicator library through its C interface, against NumPy. No TensorFlow is imported here.

Ranks are forked processes. Each (back end, number of ranks) pair is started once and goes through all cases, whose
names come back with what went wrong.
"""

import ctypes
import multiprocessing
import os
import time
import traceback

import numpy as np
import pytest

from epl.communicators import native

pytestmark = pytest.mark.once

FLOAT16, BFLOAT16, FLOAT32, FLOAT64, INT32, INT64, UINT8, BOOL = range(8)
SUM, MEAN, MIN, MAX, PROD = range(5)
(
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    ALL_GATHER,
    ALL_GATHER_V,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    SEND,
    RECV,
    BARRIER,
) = range(11)
BF16 = "bfloat16"  # kept as uint16 in NumPy
DTYPES = {
    "float16": FLOAT16,
    BF16: BFLOAT16,
    "float32": FLOAT32,
    "float64": FLOAT64,
    "int32": INT32,
    "int64": INT64,
    "uint8": UINT8,
    "bool": BOOL,
}
SIZES = (0, 1, 1023, 140001)


class Rank:
    """One rank with its communicator; `folder` is the store."""

    def __init__(self, rank, size, backend, folder, host="127.0.0.1", timeout_s=30.0):
        self.rank, self.size, self.folder = rank, size, folder
        self.library = native.comm()
        self._store = native.Store(None, native.STORE_SET(self._set), native.STORE_GET(self._get))
        options = native.Options(backend.encode(), b"native", rank, size, timeout_s, 0.0, host.encode(), b"secret")
        error = ctypes.create_string_buffer(4096)
        handle = self.library.epl_comm_create(
            ctypes.byref(options), ctypes.byref(self._store), error, ctypes.c_size_t(4096)
        )
        if not handle:
            raise RuntimeError(error.value.decode())
        self.handle = ctypes.c_void_p(handle)

    def _path(self, key):
        return os.path.join(self.folder, key.decode().replace("/", "_"))

    def _set(self, _, key, value, length):
        with open(self._path(key) + ".new", "wb") as file:
            file.write(ctypes.string_at(value, length))
        os.rename(self._path(key) + ".new", self._path(key))
        return 0

    def _get(self, _, key, value, capacity, length, timeout_s):
        end = time.time() + timeout_s
        while not os.path.exists(self._path(key)):
            if time.time() > end:
                return 1
            time.sleep(0.001)
        with open(self._path(key), "rb") as file:
            data = file.read()
        length[0] = len(data)
        ctypes.memmove(value, data, min(len(data), capacity))
        return 0

    def run(
        self,
        collective,
        dtype,
        segments,
        name="case",
        op=SUM,
        peer=0,
        scale=1.0,
        send_counts=None,
        header=None,
        allocate=None,
    ):
        """Runs one collective; `segments` are (in array or None, out array or None, count)."""
        array = (native.NativeSegment * max(1, len(segments)))()
        for i, (data_in, data_out, count) in enumerate(segments):
            array[i] = native.NativeSegment(
                None if data_in is None else data_in.ctypes.data,
                None if data_out is None else data_out.ctypes.data,
                count,
            )
        counts = None if send_counts is None else (ctypes.c_size_t * len(send_counts))(*send_counts)
        request = native.Request(
            -1,
            name.encode(),
            collective,
            DTYPES[dtype],
            op,
            peer,
            array,
            len(segments),
            scale,
            counts,
            header,
            0 if header is None else len(header),
            allocate or native.ALLOCATE(),
            native.REFUSAL(),
            native.DONE(),
            None,
        )
        error = ctypes.create_string_buffer(4096)
        code = self.library.epl_comm_run(self.handle, ctypes.byref(request), error, ctypes.c_size_t(4096))
        assert code == 0, (code, error.value.decode())

    def allocating(self, dtype):
        """An allocate callback, and the dict in which it leaves `array`, `counts` and `header`."""
        got = {}

        def allocate(_, counts, size, extra, extra_length):
            got["counts"] = [counts[i] for i in range(size)]
            got["header"] = ctypes.string_at(extra, extra_length) if extra_length else b""
            got["array"] = np.zeros(sum(got["counts"]) + 1, _storage(dtype))
            return got["array"].ctypes.data

        return native.ALLOCATE(allocate), got

    def close(self):
        self.library.epl_comm_destroy(self.handle)


def _storage(dtype):
    return np.dtype("uint16" if dtype == BF16 else dtype)


def _from_bfloat16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def data_of(rank, dtype, count, seed=0):
    """What `rank` contributes; any rank can compute it."""
    rng = np.random.RandomState(1000 * seed + 17 * rank + count % 1000)
    if dtype == "bool":
        return rng.rand(count) > 0.5
    if dtype in ("int32", "int64", "uint8"):
        return rng.randint(0, 120, count).astype(dtype)
    values = rng.randn(count).astype(np.float32)
    if dtype == BF16:
        return _to_bfloat16(values)
    return values.astype(dtype)


def reduced(arrays, dtype, op, scale=1.0):
    """The reduction in rank order, in float32 for 16-bit types."""
    if dtype == BF16:
        arrays = [_from_bfloat16(a) for a in arrays]
    elif dtype == "float16":
        arrays = [a.astype(np.float32) for a in arrays]
    total = arrays[0]
    function = {SUM: np.add, MEAN: np.add, MIN: np.minimum, MAX: np.maximum, PROD: np.multiply}[op]
    for array in arrays[1:]:
        total = function(total, array)
    if op == MEAN:
        total = (total / total.dtype.type(len(arrays))).astype(total.dtype)
    if scale != 1.0:
        total = total * total.dtype.type(scale)
    return _to_bfloat16(total) if dtype == BF16 else total.astype(dtype)


def assert_reduced(me, out, want, what):
    """The same bits; with several hosts, which add up their own ranks first, the same but for rounding."""
    if me.library.epl_comm_backend(me.handle) == b"hierarchical" and out.dtype in (np.float32, np.float64):
        np.testing.assert_allclose(out, want, 1e-5, 1e-6, err_msg=what)
    else:
        np.testing.assert_array_equal(out, want, what)


def case_all_reduce(me):
    for dtype in DTYPES:
        for count in SIZES:
            for op in (SUM, MEAN, MIN, MAX, PROD):
                if dtype == "bool" and op not in (MIN, MAX) or count > 1023 and op in (MIN, PROD):
                    continue
                scale = 0.25 if op == SUM and dtype in ("float16", BF16, "float32", "float64") else 1.0
                arrays = [data_of(rank, dtype, count) for rank in range(me.size)]
                out = np.zeros(count, _storage(dtype))
                me.run(ALL_REDUCE, dtype, [(arrays[me.rank], out, count)], op=op, scale=scale)
                assert_reduced(me, out, reduced(arrays, dtype, op, scale), "%s %d %d" % (dtype, count, op))


def case_all_reduce_in_place_of_many_segments(me):
    counts = [3, 0, 70001, 1, 5]
    arrays = [[data_of(rank, "float32", n, seed=n) for n in counts] for rank in range(me.size)]
    mine = [a.copy() for a in arrays[me.rank]]
    me.run(ALL_REDUCE, "float32", [(a, a, a.size) for a in mine])
    for i, out in enumerate(mine):
        assert_reduced(me, out, reduced([arrays[rank][i] for rank in range(me.size)], "float32", SUM), "segment %d" % i)


def case_special_values(me):
    bits = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    for dtype in ("float16", BF16):
        zero = np.zeros(65536, np.uint16)
        mine = (bits if me.rank == 0 else zero).copy()
        out = np.zeros(65536, np.uint16)
        me.run(ALL_REDUCE, dtype, [(mine, out, 65536)], op=SUM)
        want = bits.view(np.float16).astype(np.float32) if dtype == "float16" else _from_bfloat16(bits)
        got = out.view(np.float16).astype(np.float32) if dtype == "float16" else _from_bfloat16(out)
        np.testing.assert_array_equal(got, want + np.float32(0))
    # Rounding of sums that do not fit: to nearest, ties to even, to infinity when too large.
    rng = np.random.RandomState(7)
    bits = [rng.randint(0, 65536, 100000).astype(np.uint16) for _ in range(me.size)]
    out = np.zeros(100000, np.uint16)
    me.run(ALL_REDUCE, "float16", [(bits[me.rank], out, out.size)])
    with np.errstate(all="ignore"):
        want = sum(b.view(np.float16).astype(np.float32) for b in bits).astype(np.float16)
    np.testing.assert_array_equal(out.view(np.float16), want)


def case_reduce(me):
    for count in SIZES:
        root = count % me.size
        arrays = [data_of(rank, "float64", count) for rank in range(me.size)]
        out = np.zeros(count)
        me.run(REDUCE, "float64", [(arrays[me.rank], out if me.rank == root else None, count)], peer=root, op=MEAN)
        if me.rank == root:
            np.testing.assert_array_equal(out, reduced(arrays, "float64", MEAN))


def case_broadcast(me):
    for dtype in DTYPES:
        for count in SIZES:
            root = (count + 1) % me.size
            want = data_of(root, dtype, count)
            out = want.copy() if me.rank == root else np.zeros(count, _storage(dtype))
            me.run(BROADCAST, dtype, [(out, out, count)], peer=root)
            np.testing.assert_array_equal(out, want)
            if me.rank == root:
                me.run(BROADCAST, dtype, [(want, None, count)], peer=root, header=b"shape!")
                continue
            allocate, got = me.allocating(dtype)
            me.run(BROADCAST, dtype, [], peer=root, allocate=allocate)
            assert got["header"] == b"shape!" and got["counts"][root] == count
            np.testing.assert_array_equal(got["array"][:count], want)


def case_all_gather(me):
    for dtype in DTYPES:
        for count in SIZES:
            arrays = [data_of(rank, dtype, count) for rank in range(me.size)]
            out = np.zeros(count * me.size, _storage(dtype))
            me.run(ALL_GATHER, dtype, [(arrays[me.rank], out, count)])
            np.testing.assert_array_equal(out, np.concatenate(arrays))


def case_all_gather_v(me):
    for dtype in ("float32", "bool", "int64"):
        for count in SIZES:
            arrays = [data_of(rank, dtype, count * (rank % 2) + rank) for rank in range(me.size)]
            allocate, got = me.allocating(dtype)
            me.run(ALL_GATHER_V, dtype, [(arrays[me.rank], None, arrays[me.rank].size)], allocate=allocate)
            assert got["counts"] == [a.size for a in arrays]
            np.testing.assert_array_equal(got["array"][:-1], np.concatenate(arrays))


def case_reduce_scatter(me):
    for count in SIZES:
        arrays = [data_of(rank, "float32", count * me.size) for rank in range(me.size)]
        want = reduced(arrays, "float32", SUM)
        out = np.zeros(count, np.float32)
        me.run(REDUCE_SCATTER, "float32", [(arrays[me.rank], out, count * me.size)])
        np.testing.assert_array_equal(out, want[count * me.rank : count * (me.rank + 1)])
        shares = [count * me.size] + [0] * (me.size - 1)
        if me.size > 1:
            shares[0], shares[-1] = count * me.size - count // 3, count // 3
        out = np.zeros(shares[me.rank], np.float32)
        me.run(REDUCE_SCATTER, "float32", [(arrays[me.rank], out, count * me.size)], send_counts=shares)
        start = sum(shares[: me.rank])
        np.testing.assert_array_equal(out, want[start : start + shares[me.rank]])


def case_all_to_all(me):
    for count in SIZES:
        arrays = [data_of(rank, "int32", count * me.size) for rank in range(me.size)]
        out = np.zeros(count * me.size, np.int32)
        me.run(ALL_TO_ALL, "int32", [(arrays[me.rank], out, count * me.size)])
        mine = slice(count * me.rank, count * (me.rank + 1))
        np.testing.assert_array_equal(out, np.concatenate([a[mine] for a in arrays]))

        sends = [[(rank * 3 + to) % 4 * count // 3 for to in range(me.size)] for rank in range(me.size)]
        arrays = [data_of(rank, "int32", sum(sends[rank]), seed=1) for rank in range(me.size)]
        allocate, got = me.allocating("int32")
        me.run(
            ALL_TO_ALL_V,
            "int32",
            [(arrays[me.rank], None, arrays[me.rank].size)],
            send_counts=sends[me.rank],
            allocate=allocate,
        )
        want = [np.split(a, np.cumsum(s)[:-1])[me.rank] for a, s in zip(arrays, sends)]
        np.testing.assert_array_equal(got["array"][:-1], np.concatenate(want))


def case_send_recv(me):
    for count in SIZES:
        want = data_of(0, "float32", count)
        for rank in range(1, me.size):
            if me.rank == 0:
                me.run(SEND, "float32", [(want, None, count)], peer=rank)
            if me.rank == rank:
                out = np.zeros(count, np.float32)
                me.run(RECV, "float32", [(None, out, count)], peer=0)
                np.testing.assert_array_equal(out, want)


def case_exchange(me):
    for length in (0, 1, 5000):
        mine = bytes(bytearray([me.rank + 1] * length))
        out = ctypes.create_string_buffer(max(1, length * me.size))
        error = ctypes.create_string_buffer(512)
        code = me.library.epl_comm_exchange(me.handle, mine, ctypes.c_size_t(length), out, error, ctypes.c_size_t(512))
        assert code == 0, error.value
        assert out.raw[: length * me.size] == b"".join(bytes(bytearray([r + 1] * length)) for r in range(me.size))


def case_barrier(me):
    me.run(BARRIER, "uint8", [])


CASES = [(name[5:], function) for name, function in sorted(globals().items()) if name.startswith("case_")]


def _worker(rank, size, backend, folder, results):
    failed = []
    me = None
    try:
        me = Rank(rank, size, backend, folder)
        expected = {"gloo": b"gloo", "tcp": b"tcp", "auto/2": b"hierarchical" if size > 2 else b"shm"}.get(
            backend, b"shm"
        )
        if me.library.epl_comm_backend(me.handle) != expected:
            failed.append("backend: %r" % me.library.epl_comm_backend(me.handle))
        for name, function in CASES:
            try:
                function(me)
            except AssertionError:
                failed.append("%s: %s" % (name, traceback.format_exc()))
        me.close()
    except Exception:  # handed to the parent, which fails with it
        failed.append(traceback.format_exc())
    results.put((rank, failed))


@pytest.fixture(scope="module")
def library():
    return native.comm()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("backend", ["auto", "tcp", "auto/2", "gloo"])
def test_collectives_against_numpy(library, tmp_path, backend, size):
    if backend == "gloo" and not library.epl_has_gloo():
        pytest.skip("this build has no Gloo back end; install libgloo-dev and build again")
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [
        context.Process(target=_worker, args=(rank, size, backend, str(tmp_path), results), daemon=True)
        for rank in range(size)
    ]
    for worker in workers:
        worker.start()
    try:
        outcomes = dict(results.get(timeout=120) for _ in workers)
    finally:
        for worker in workers:
            worker.join(10)
            if worker.is_alive():
                worker.terminate()
    assert {rank: "\n".join(failed) for rank, failed in outcomes.items() if failed} == {}
    assert sorted(outcomes) == list(range(size))


def test_unknown_backend_is_refused(library):
    options = native.Options(b"carrier pigeon", b"x", 0, 1, 5.0, 0.0, None, None)
    store = native.Store(None, native.STORE_SET(lambda *_: 0), native.STORE_GET(lambda *_: 1))
    error = ctypes.create_string_buffer(1000)
    assert not library.epl_comm_create(ctypes.byref(options), ctypes.byref(store), error, ctypes.c_size_t(1000))
    assert b"carrier pigeon" in error.value and b"auto, shm, tcp, gloo" in error.value
