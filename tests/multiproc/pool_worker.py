"""What the workers of test_pool.py run: pool_worker.py FOLDER BACKEND SCENARIO...

Leaves FOLDER/result.<worker>: what each scenario returned, as JSON; a scenario that raises leaves its traceback
instead.
Each scenario has communicators of its own, so that one that breaks them leaves the next one alone.
"""

import json
import logging
import os
import sys
import time
import traceback

import numpy as np
import tensorflow.compat.v1 as tf

from epl.cluster import Cluster
from epl.communicators import leaders
from epl.communicators.bootstrap import job_token
from epl.communicators.library import load
from epl.communicators.pool import Pool
from epl.config import Config
from epl.errors import CommunicationError

SCENARIOS = {}
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


class Worker(object):
    """This process's place in the job, connected."""

    def __init__(self, folder, backend):
        self.folder = folder
        self.config = Config(
            {
                # Read with GPUs only.
                "communication.nccl_library": os.environ.get("FAKE_NCCL", ""),
                "communication.cuda_library": os.environ.get("FAKE_CUDA", ""),
                "communication.timeout_s": 20,
                "communication.start_timeout_s": 60,
                "communication.stall_warning_s": 5,
                "communication.backend": backend,
                "communication.num_communicators": 2,
            }
        )
        self.cluster = Cluster.from_environment()
        if backend == "nccl":
            self.cluster = with_gpus(self.cluster)
        self.index, self.num = self.cluster.worker_index, self.cluster.worker_num
        self.generation = -1
        self.server, self.client = leaders.join(self.cluster, job_token(self.cluster), 60)
        self.pool = Pool(self.cluster, self.config, self.client)

    def connect(self):
        self.generation += 1
        self.pool.connect(self.generation)

    def close(self):
        self.pool.close()
        self.client.leave()
        if self.server:
            self.server.close()

    def wait_for_file(self, name, timeout_s=30):
        deadline = time.time() + timeout_s
        while not os.path.exists(os.path.join(self.folder, name)):
            assert time.time() < deadline, "no file %s" % name
            time.sleep(0.02)

    def touch(self, name):
        open(os.path.join(self.folder, name), "w").close()


def with_gpus(cluster):
    """The same job with one GPU a worker, each its own."""
    hosts = ["127.0.0.1:0"] * cluster.worker_num
    hosts[0] = cluster.bootstrap_address
    index = cluster.worker_index
    return Cluster(cluster.worker_num, index, 1, hosts, "GPU", job_token(cluster), str(index))


def values(worker, replica, shape, dtype, salt=0):
    """Numbers that differ between workers, replicas and places, small enough for exact sums in every type."""
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) % 7 + 3 * worker + 5 * replica + salt).astype(dtype)


def cast(array, dtype):
    return tf.cast(tf.constant(array, tf.float64), tf.as_dtype(dtype))


@scenario
def exchange(worker):
    """Messages of equal and unequal lengths on both sides of what fits the first round."""
    for lengths in ((0, 0, 0), (56, 56, 56), (3, 20, 1), (57, 0, 56), (100000, 5, 70)):
        messages = [bytes(bytearray([65 + rank])) * lengths[rank % 3] for rank in range(worker.num)]
        assert worker.pool.exchange(messages[worker.index]) == messages, lengths
    started = time.time()
    for _ in range(1000):
        worker.pool.exchange(b"digest of thirty-two bytes......")
    return {"backend": worker.pool.backend, "us": (time.time() - started) * 1e6 / 1000}


@scenario
def link(worker):
    """The figures of the link, of the connected pool and of one that has yet to be connected, and asked for again."""
    connected = worker.pool.measure(worker.generation, "link/1")
    assert worker.pool.generation == worker.generation and worker.pool.exchange(b"x") == [b"x"] * worker.num
    worker.pool.close()
    worker.generation += 1
    figures = worker.pool.measure(worker.generation, "link/2")
    assert not worker.pool.connected and worker.pool.generation is None
    if worker.index == 1:
        assert worker.pool.measure(worker.generation + 1000, "link/2") == figures  # without the others
    worker.pool.connect(worker.generation)
    return {"figures": [connected, figures]}


@scenario
def all_reduce(worker):
    """Every type, op and number of local replicas against NumPy."""
    for dtype in DTYPES:
        for replicas in (1, 2, 3):
            for reduce_op, reference in (("sum", np.sum), ("min", np.min), ("max", np.max)):
                check_all_reduce(worker, dtype, replicas, reduce_op, reference)
    return {}


def check_all_reduce(worker, dtype, replicas, reduce_op, reference):
    shapes = [(3, 5), (), (0,), (257,)]
    scale = 0.25 if reduce_op == "sum" and dtype.find("int") else 1.0
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = [
            cast(values(worker.index, replica, shape, "float64", salt), dtype)
            for replica in range(replicas)
            for salt, shape in enumerate(shapes)
        ]
        reduced = load().epl_all_reduce(
            tensors, N=len(shapes), R=replicas, comm=1, tag=5, workers=worker.num, reduce_op=reduce_op, scale=scale
        )
        worker.pool.expect([[], [5]])
        got = session.run([tf.cast(tensor, tf.float64) for tensor in reduced])
    for salt, shape in enumerate(shapes):
        parts = [values(w, r, shape, "float64", salt) for w in range(worker.num) for r in range(replicas)]
        np.testing.assert_array_equal(got[salt], reference(parts, axis=0) * scale, str((dtype, replicas, reduce_op)))


@scenario
def order(worker):
    """Many collectives on two communicators, submitted in a different order by each worker, several steps."""
    count, steps = 12, 5
    with tf.Graph().as_default(), tf.Session() as session:
        feed = tf.placeholder(tf.float32, [])
        reduced = []
        previous = tf.no_op()
        tags = list(range(count))
        shift = worker.index * 5
        for tag in tags[shift:] + tags[:shift]:
            # A chain of delays, so that kernels are ready in an order of this worker's own.
            with tf.control_dependencies([previous]):
                ready = tf.py_func(lambda x, t=tag: np.float32(x * (t + 1)), [feed], tf.float32)
            previous = ready.op
            ready.set_shape([])
            reduced.append(
                (
                    tag,
                    load().epl_all_reduce(
                        [ready], N=1, comm=tag % 2, tag=tag, workers=worker.num, collective_name="sum %d" % tag
                    )[0],
                )
            )
        fetches = [tensor for _, tensor in sorted(reduced, key=lambda pair: pair[0])]
        for step in range(steps):
            worker.pool.expect([[tag for tag in tags if tag % 2 == slot] for slot in range(2)])
            got = session.run(fetches, {feed: step + worker.index})
            total = sum(step + index for index in range(worker.num))
            np.testing.assert_array_equal(got, [total * (tag + 1) for tag in tags])
    return {}


@scenario
def all_gather(worker):
    """Different numbers of rows, none at all included, and two local replicas."""
    for dtype in ("float32", "int64", "bool", "int8", "complex64"):
        for rows in ((2, 3, 1, 5), (0, 4, 0, 2), (0, 0, 0, 0)):
            parts = [
                [values(w, r, (rows[w] + r * rows[w], 3), "float64").astype(dtype) for r in range(2)]
                for w in range(worker.num)
            ]
            with tf.Graph().as_default(), tf.Session() as session:
                gathered = load().epl_all_gather(
                    [tf.constant(part) for part in parts[worker.index]], tag=1, comm=0, workers=worker.num
                )
                worker.pool.expect([[1]])
                got = session.run(gathered)
            want = np.concatenate([part for of_worker in parts for part in of_worker])
            assert got.dtype == want.dtype and got.shape == want.shape, (got.shape, want.shape)
            np.testing.assert_array_equal(got, want)
    return {}


@scenario
def broadcast(worker):
    """Shapes and types that only the root knows, from every root."""
    cases = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(True),
        np.zeros((0, 4), np.int64),
        np.array(b"text"),
        np.array([[b"", b"two"], [b"\0\xff", b"x" * 3000]], dtype=object),
        np.array([], dtype=object),
        np.arange(5, dtype=np.int8),
        np.array([1 + 2j]),
        np.arange(3, dtype=np.float16),
    ]
    for root in range(worker.num):
        for case in cases:
            text = case.dtype.kind in "OS"
            with tf.Graph().as_default(), tf.Session() as session:
                if worker.index == root:
                    constant = tf.constant(case.tolist(), tf.string, case.shape) if text else tf.constant(case)
                    fetch = load().epl_broadcast_send(constant, comm=1, tag=9)
                    worker.pool.expect([[], [9]])
                    session.run(fetch)
                else:
                    dtype = tf.string if text else tf.as_dtype(case.dtype)
                    fetch = load().epl_broadcast_receive(T=dtype, comm=1, tag=9, root=root)
                    worker.pool.expect([[], [9]])
                    got = np.asarray(session.run(fetch))
                    assert got.shape == case.shape, (got.shape, case.shape)
                    assert got.tolist() == case.tolist(), (got, case)
    return {}


@scenario
def broadcast_mismatch(worker):
    """The receiver's graph says another type."""
    with tf.Graph().as_default(), tf.Session() as session:
        if worker.index == 0:
            fetch = load().epl_broadcast_send(tf.constant([1.0, 2.0]), tag=1)
        else:
            fetch = load().epl_broadcast_receive(T=tf.int32, tag=1, shape=[2])
        worker.pool.expect([[1]])
        return raised(lambda: session.run(fetch))


def raised(call):
    try:
        return {"value": np.asarray(call()).tolist()}
    except (tf.errors.OpError, CommunicationError) as error:
        return {"error": type(error).__name__, "message": str(error)}


def sum_in_half(worker, array, fp16_scale):
    with tf.Graph().as_default(), tf.Session() as session:
        reduced = load().epl_all_reduce(
            [tf.constant(array, tf.float32)],
            N=1,
            tag=1,
            workers=worker.num,
            wire_fp16=True,
            fp16_scale=fp16_scale,
            scale=1.0 / worker.num,
            collective_name="half",
        )[0]
        worker.pool.expect([[1]])
        return raised(lambda: session.run(reduced))


@scenario
def half(worker):
    """Half precision on the wire: rounding, numbers that overflow at one worker or in the sum, infinities of the
    user."""
    one = np.array([1 / 3.0, 1e-6, -2.0]) * (worker.index + 1)
    return {
        "rounded": sum_in_half(worker, one, 128.0),
        "one_overflows": sum_in_half(worker, [1e6 if worker.index == 1 else 1.0], 1.0),
        "sum_overflows": sum_in_half(worker, [40000.0], 1.0),
        "infinite_before": sum_in_half(worker, [np.inf if worker.index == 1 else 1.0, 2.0], 1.0),
        "after": sum_in_half(worker, [1.0], 1.0),
    }


@scenario
def mismatch(worker):
    """One worker's tensor is longer."""
    with tf.Graph().as_default(), tf.Session() as session:
        fetch = load().epl_all_reduce([tf.zeros([3 + worker.index])], N=1, tag=1, workers=worker.num)[0]
        worker.pool.expect([[1]])
        return raised(lambda: session.run(fetch))


@scenario
def abort_and_reconnect(worker):
    """Worker 0 gives up while the others wait; afterwards a new generation works."""
    with tf.Graph().as_default(), tf.Session() as session:
        fetch = load().epl_all_reduce([tf.ones([4])], N=1, tag=1, workers=worker.num)[0]
        worker.pool.expect([[1]])
        if worker.index == 0:
            time.sleep(1)
            worker.pool.abort("the reason of worker 0")
            outcome = raised(lambda: worker.pool.exchange(b"x"))
        else:
            outcome = raised(lambda: session.run(fetch))
        worker.connect()
        worker.pool.expect([[1]])
        outcome["after"] = session.run(fetch).tolist()
    return outcome


@scenario
def cancelled(worker):
    """Another operation of worker 0's step fails while its collective waits for a worker that comes late."""
    with tf.Graph().as_default(), tf.Session() as session:

        def fail():
            time.sleep(1)
            raise ValueError("broken on purpose")

        reduced = load().epl_all_reduce([tf.ones([4])], N=1, tag=1, workers=worker.num)[0]
        broken = tf.py_func(fail, [], tf.float32) if worker.index == 0 else tf.constant(0.0)
        worker.pool.expect([[1]])
        if worker.index == 1:
            time.sleep(3)
        return raised(lambda: session.run([reduced, broken]))


@scenario
def late(worker):
    """The last worker never comes."""
    worker.config.communication.timeout_s = 3
    worker.connect()
    outcome = {}
    with tf.Graph().as_default(), tf.Session() as session:
        fetch = load().epl_all_reduce([tf.ones([4])], N=1, tag=1, workers=worker.num, collective_name="mean of w")[0]
        worker.pool.expect([[1]])
        if worker.index < worker.num - 1:
            outcome = raised(lambda: session.run(fetch))
    worker.touch("waited.%d" % worker.index)
    for index in range(worker.num - 1):
        worker.wait_for_file("waited.%d" % index)
    worker.config.communication.timeout_s = 20
    return outcome


@scenario
def killed(worker):
    """The last worker is killed from outside while the others wait for it."""
    with tf.Graph().as_default(), tf.Session() as session:
        fetch = load().epl_all_reduce([tf.ones([4])], N=1, tag=1, workers=worker.num)[0]
        worker.pool.expect([[1]])
        print("WAITS FOR THE LAST", flush=True)
        if worker.index == worker.num - 1:
            time.sleep(60)
        outcome = raised(lambda: session.run(fetch))
    ending = worker.client.ending(worker.generation, timeout_s=5)
    outcome["ending"] = vars(ending) if ending else None
    return outcome


@scenario
def not_connected(worker):
    """The graph runs although the pool was closed."""
    worker.pool.close()
    with tf.Graph().as_default(), tf.Session() as session:
        fetch = load().epl_all_reduce([tf.ones([4])], N=1, comm=1, workers=worker.num)[0]
        return {
            "all_reduce": raised(lambda: session.run(fetch)),
            "exchange": raised(lambda: worker.pool.exchange(b"")),
            "expect": raised(lambda: worker.pool.expect([[1]])),
        }


def main(folder, backend, *names):
    logging.basicConfig()
    tf.disable_v2_behavior()
    worker = Worker(folder, backend)
    results = {}
    for name in names:
        worker.connect()
        try:
            results[name] = SCENARIOS[name](worker)
        except Exception:  # the test shows it, and the others can still be seen
            results[name] = {"traceback": traceback.format_exc()}
            worker.pool.abort("scenario %s failed" % name)
    with open(os.path.join(folder, "result.%d" % worker.index), "w") as file:
        json.dump(results, file)
    worker.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
