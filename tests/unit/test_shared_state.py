"""State that a program means to share between workers, each of which would have its own."""

import json
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.capture.record import make_program
from epl.communicators.bootstrap_state import BootstrapState, WaitError
from epl.errors import UnsupportedError
from epl.passes.promises import PROMISES
from epl.plan.facts.names import queue_of
from epl.session.common_queues import packed, unpacked
from tests.helpers import planning

SHARED = {
    "queue": lambda name: tf.RandomShuffleQueue(2, 0, [tf.float32], shapes=[()], shared_name=name),
    "padding": lambda name: tf.PaddingFIFOQueue(2, [tf.float32], shapes=[()], shared_name=name),
    "table": lambda name: tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64, shared_name=name),
}


def workers_of(monkeypatch, number):
    hosts = ["127.0.0.1:%d" % (20000 + i) for i in range(number)]
    config = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


@pytest.mark.parametrize("made", sorted(SHARED))
@pytest.mark.parametrize(
    "workers, device, name, is_refused",
    [
        (2, "/job:ps/task:0/cpu:0", "exits", True),
        (2, "/job:ps/task:0/cpu:0", None, False),
        (2, "/cpu:0", "exits", False),
        (1, "/job:ps/task:0/cpu:0", "exits", False),
    ],
)
def test_state_that_all_workers_are_to_share(monkeypatch, made, workers, device, name, is_refused):
    workers_of(monkeypatch, workers)
    with planning.capture(), tf.device(device):
        if not is_refused:
            assert SHARED[made](name) is not None
            return
        with pytest.raises(UnsupportedError) as caught:
            SHARED[made](name)
    assert (
        "is to be one for all workers (shared_name='exits' on /job:ps), but with EPL each of them has its own"
        in str(caught.value)
    )


def heard():
    return True


def test_elements_come_out_in_the_order_in_which_they_were_put():
    state = BootstrapState(2)
    for number, value in enumerate([b"a", b"b"]):
        state.queue_call("put", "q", value, -1, 0, (number, number), 0.0, heard)
    state.queue_call("put", "other", b"c", -1, 1, (0, 0), 0.0, heard)
    assert state.queue_size("q") == 2 and state.queue_size("nobody's") == 0
    assert [state.queue_call("take", "q", b"", -1, 1, (n, n), 0.0, heard) for n in (1, 2)] == [b"a", b"b"]
    assert state.queue_size("q") == 0


def test_a_call_that_comes_again_does_what_it_is_for_once():
    state = BootstrapState(2)
    for _ in range(2):
        state.queue_call("put", "q", b"a", 1, 0, (0, 0), 0.0, heard)
    state.queue_call("put", "q", b"b", 2, 1, (0, 0), 0.0, heard)  # another worker's number
    assert state.queue_size("q") == 2
    assert [state.queue_call("take", "q", b"", -1, 0, (1, 1), 0.0, heard) for _ in range(2)] == [b"a", b"a"]
    assert state.queue_call("take", "q", b"", -1, 0, (2, 2), 0.0, heard) == b"b"


def test_a_full_and_an_empty_queue_are_waited_for_and_named():
    state = BootstrapState(2)
    with pytest.raises(WaitError, match="the queue 'q' is empty within 0 s") as caught:
        state.queue_call("take", "q", b"", -1, 1, (0, 0), 0.0, heard)
    assert caught.value.code == "timeout"
    state.queue_call("put", "q", b"a", 1, 0, (0, 0), 0.0, heard)
    with pytest.raises(WaitError, match="the queue 'q' is full within 0 s"):
        state.queue_call("put", "q", b"b", 1, 0, (1, 1), 0.0, heard)
    taken = []
    waiting = threading.Thread(
        target=lambda: taken.append(state.queue_call("take", "late", b"", -1, 1, (1, 1), 60.0, heard))
    )
    waiting.start()
    state.queue_call("put", "late", b"c", -1, 0, (2, 2), 0.0, heard)
    waiting.join(60)
    assert taken == [b"c"]


def test_a_worker_that_is_lost_ends_those_who_wait():
    state = BootstrapState(2)
    state.join(1, "process")
    state.lose(1, "worker 1 is gone")
    with pytest.raises(WaitError, match=r"worker 1 is gone \(the queue 'q' is empty") as caught:
        state.queue_call("take", "q", b"", -1, 0, (0, 0), 60.0, heard)
    assert caught.value.code == "lost"


def model(ask):
    """A model with a queue that workers share; `ask` uses it."""
    with tf.device("/job:ps/task:0/cpu:0"):
        queue = tf.FIFOQueue(3, [tf.float32, tf.string], shapes=[(), ()], shared_name="exits")
    asked = ask(queue)
    x = tf.placeholder(tf.float32, [None, 3])
    loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1)))
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    return asked


def compiled(ask):
    with planning.capture() as graph, epl.replicate(1):
        asked = model(ask)
    return asked, planning.compiled(graph, workers=2, devices=1)


def test_what_is_asked_of_a_shared_queue_is_asked_of_worker_0(monkeypatch):
    workers_of(monkeypatch, 2)
    asked, program = compiled(lambda queue: [queue.enqueue((1.0, "a")), queue.dequeue()[0].op, queue.size().op])
    nodes = [program.graph.nodes[op.name] for op in asked]
    assert [node.op for node in nodes] == ["PyFunc"] * 3
    kinds = [queue_of(node.attr["token"].s.decode()) for node in nodes]
    assert kinds == [(kind, "exits", 3) for kind in ("put", "take", "size")]
    float32, string, int32 = 1, 7, 3
    assert [list(node.attr["Tin"].list.type) for node in nodes] == [[float32, string], [], []]
    assert [list(node.attr["Tout"].list.type) for node in nodes] == [[], [float32, string], [int32]]


def test_what_worker_0_does_not_serve_is_refused_by_name(monkeypatch):
    workers_of(monkeypatch, 2)
    with pytest.raises(UnsupportedError, match=r"\(QueueCloseV2\) cannot be used with the queue 'fifo_queue'"):
        compiled(lambda queue: queue.close())


def test_a_queue_that_stays_with_this_worker_is_found(monkeypatch):
    workers_of(monkeypatch, 2)
    with planning.capture() as graph:
        taker = model(lambda queue: queue.size()).op.name
    graph = make_program(graph).graph
    said = "'%s' takes the queue 'fifo_queue', which is this worker's alone" % taker
    assert PROMISES["share_queues"].broken(graph, graph, None) == [said]


def test_an_element_of_several_tensors_travels_as_bytes():
    one, texts = np.float32(2.5), np.array([b"a\n", b"\x00"], object)
    found = unpacked(packed([one, texts], [tf.float32, tf.string]))
    assert found[0] == one and found[0].dtype == np.float32
    assert found[1].tolist() == texts.tolist()
