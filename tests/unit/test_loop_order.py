"""Loops of control flow v1 in the order of a graph and of its collectives: what leaves a loop waits for what enters."""

import contextlib
import ctypes
import functools

import hypothesis
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import strategies as st
from tensorflow.core.framework import graph_pb2

from epl import compiler
from epl.communicators import library, native
from epl.errors import PassError
from epl.graph.frames import Gate
from epl.graph.index import Graph
from epl.graph.node_defs import Type, make_node, set_attr
from epl.plan.exchange.order import needed, out_of_order, settle
from epl.plan.facts.loops import find_loops
from tests.helpers import planning
from tests.helpers.control_flow import control_flow

FLOAT = Type(1)


def graph_of(*nodes):
    return Graph.from_graph_def(graph_pb2.GraphDef(node=[each for given in nodes for each in given]))


def node(op, name, *inputs):
    return [make_node(op, name, list(inputs))]


def loop(name, start, *invariants, frame="frame", body=()):
    """A loop with one variable, and invariants that no result depends on."""
    made = node("Enter", name + "/enter", start)
    for number, each in enumerate(invariants):
        made += node("Enter", "%s/invariant_%d" % (name, number), each)
        made += node("Tanh", "%s/use_%d" % (name, number), "%s/invariant_%d" % (name, number), "^%s/switch" % name)
    made += node("Merge", name + "/merge", name + "/enter", name + "/next")
    made += node("LoopCond", name + "/goes_on", name + "/merge")
    made += node("Switch", name + "/switch", name + "/merge", name + "/goes_on")
    made += list(body) + node("NextIteration", name + "/next", name + "/switch:1")
    made += node("Exit", name + "/exit", name + "/switch")
    for each in made:
        if each.op == "Enter":
            set_attr(each, "frame_name", "%s" % frame)
    return made


def source(name, *inputs):
    return node("Identity", name, *inputs)


def behind(graph, *names):
    """Whether each of some nodes has a higher number than the one before."""
    order = [graph.order[name] for name in names]
    return order == sorted(order)


def test_what_leaves_a_loop_comes_behind_what_enters_it():
    graph = graph_of(source("x"), loop("l", "x", "late"), source("behind", "l/exit"), source("late", "slow"))
    graph = graph_of(graph.nodes.values(), source("slow", "slower"), source("slower", "x"))
    assert behind(graph, "x", "slower", "slow", "late", "l/invariant_0", "l/exit", "behind")
    assert len(graph.order) == len(graph.nodes)
    assert graph.gates == (Gate(("l/enter", "l/invariant_0"), ("l/exit",)),)


def test_loops_in_loops():
    """The outer loop's body waits for what enters the inner one, whatever it is called."""
    slow = [source("slow_%d" % number, "slow_%d" % (number - 1) if number else "x") for number in range(9)]
    inner = loop("inner", "outer/switch:1", "outer/use_0", frame="outer/inner")
    outer = loop("outer", "x", "slow_8", frame="outer", body=inner)
    graph = graph_of(source("x"), outer, *slow)
    assert behind(graph, "slow_8", "outer/invariant_0", "outer/use_0", "inner/invariant_0", "inner/exit")
    assert behind(graph, "outer/invariant_0", "outer/exit")
    assert sorted(graph.gates) == [
        Gate(("inner/enter", "inner/invariant_0"), ("inner/exit",)),
        Gate(("outer/enter", "outer/invariant_0"), ("outer/exit",)),
    ]


def test_loops_are_told_in_the_order_in_which_they_were_made():
    """Also where what the first of them takes was made last."""
    graph = graph_of(
        loop("first", "late", frame="a"),
        loop("second", "early", frame="b"),
        source("early"),
        source("late", "second/exit"),
    )
    assert behind(graph, "second/exit", "first/enter")
    loops = find_loops(graph, frozenset(), frozenset())
    assert [each.frame for each in loops.all] == ["a", "b"]


def test_loops_of_one_name_are_told_apart():
    """As in a graph that was imported twice: one takes what the other gives."""
    graph = graph_of(source("x"), loop("a", "x", "x"), loop("b", "a/exit", "a/exit"))
    assert len(graph.order) == len(graph.nodes) and len(graph.gates) == 2
    assert behind(graph, "a/exit", "b/invariant_0", "b/exit")


def test_a_loop_does_not_wait_for_what_needs_its_results():
    """A gradient's counter enters the loop behind the loop's own result; other results may wait for it."""
    one = loop("l", "x", "behind", "early")
    more = node("Enter", "l/enter_2", "x") + node("Merge", "l/merge_2", "l/enter_2", "l/next_2")
    more += node("Switch", "l/switch_2", "l/merge_2", "l/goes_on")
    more += node("NextIteration", "l/next_2", "l/switch_2:1") + node("Exit", "l/exit_2", "l/switch_2")
    graph = graph_of(source("x"), one, more, source("behind", "l/exit"), source("early", "x"))
    assert len(graph.order) == len(graph.nodes)
    assert behind(graph, "l/invariant_1", "l/exit", "behind", "l/invariant_0", "l/exit_2")
    assert sorted(graph.gates) == [
        Gate(("l/enter", "l/invariant_1", "l/enter_2"), ("l/exit", "l/exit_2")),
        Gate(("l/invariant_0",), ("l/exit_2",)),
    ]


def test_loops_behind_loops_wait_for_what_is_not_late():
    """Both loops take something in that waits for the second one's result."""
    first, second = loop("a", "x", "behind"), loop("b", "a/exit", "behind", "a/exit", frame="other")
    graph = graph_of(source("x"), first, second, source("behind", "b/exit"))
    assert len(graph.order) == len(graph.nodes)
    assert graph.gates == (Gate(("a/enter",), ("a/exit",)), Gate(("b/enter", "b/invariant_1"), ("b/exit",)))


def test_loops_that_wait_for_each_other():
    """Each has a result that the other takes in later."""
    graph = graph_of(source("x"), loop("a", "x", "b/exit"), loop("b", "x", "a/exit", frame="other"))
    assert len(graph.order) == len(graph.nodes)
    assert graph.gates == (Gate(("a/enter",), ("a/exit",)), Gate(("b/enter",), ("b/exit",)))


def test_a_circle_beside_loops_has_no_order():
    graph = graph_of(source("x"), loop("l", "x", "x"), source("p", "q"), source("q", "p"), source("behind", "q"))
    assert set(graph.nodes) - set(graph.order) == {"p", "q", "behind"}


def test_what_collectives_need():
    graph = graph_of(
        source("a", "x"),
        source("x"),
        source("b", "a"),
        loop("l", "x", "b"),
        source("c", "l/exit"),
        source("d", "b", "c"),
    )
    assert needed(graph, {"a", "b", "c", "d"}) == {"a": [], "b": ["a"], "c": ["b"], "d": ["b", "c"]}


def keys_of(*names):
    return {name: (place, name, 0, 100 + place) for place, name in enumerate(names)}


def test_collectives_that_come_before_what_they_need_are_found():
    graph = graph_of(source("x"), source("first", "x"), loop("l", "x", "first"), source("second", "l/exit"))
    assert out_of_order(graph, keys_of("first", "second")) == []
    assert out_of_order(graph, keys_of("second", "first")) == [
        "'second' has number 0 in the order of collectives, before 'first' with 1, whose result it needs"
    ]


def test_through_what_goes_back_to_the_beginning_of_loops_in_loops():
    """What enters the inner loop comes to the outer one's result in a later iteration."""
    inner = loop("inner", "outer/switch_2:1", frame="outer/inner")
    outer = loop("outer", "x", frame="outer", body=inner)
    more = node("Enter", "outer/enter_2", "first") + node("Merge", "outer/merge_2", "outer/enter_2", "outer/next_2")
    more += node("Switch", "outer/switch_2", "outer/merge_2", "outer/goes_on")
    more += node("NextIteration", "outer/next_2", "inner/exit") + node("Exit", "outer/exit_2", "outer/switch_2")
    graph = graph_of(source("x"), source("first", "x"), outer, more, source("second", "outer/exit_2"))
    assert len(out_of_order(graph, keys_of("second", "first"))) == 1
    assert out_of_order(graph, keys_of("first", "second")) == []


def test_the_runner_refuses_a_program_that_would_wait_for_itself(monkeypatch):
    with planning.capture() as graph:
        planning.sgd(planning.layers())

    def backwards(keys, *others):
        after = settle(keys, *others)
        return {name: (-key[0],) + key[1:] for name, key in after.items()}

    config = {"zero__level": "v3", "communication__max_splits": 4}
    assert planning.compiled(graph, 2, 1, **config).order
    monkeypatch.setattr("epl.passes.worker.number_collectives.settle", backwards)
    with pytest.raises(PassError, match="after the pass 'number_collectives'.* has number .* whose result it needs"):
        planning.compiled(graph, 2, 1, **config)
    names = [pass_.__name__ for pass_ in compiler.PASSES]
    assert names.index("save_by_file") < names.index("number_collectives")  # which makes messages anew


# ---------------------------------------------------------------------------------------------------------------------
# Random programs with loops, run as they are with a communicator of one worker: it waits for itself or for nobody.


@contextlib.contextmanager
def communicator_of_one(**settings):
    """Slot 0 of the pool has a communicator between one worker; gives what declares the order of a step's tags."""

    def gather(context, topic, rank, size, value, length, timeout_s, take, argument):
        take(argument, rank, ctypes.string_at(value, length), length)
        return native.OK

    def refuse(*_):
        return 1

    functions = native.STORE_SET(refuse), native.STORE_GET(refuse), native.STORE_GATHER(gather)
    settings.setdefault("timeout_s", 5.0)
    options = native.Options(backend=b"shm", name=b"one", size=1, host=b"127.0.0.1", token=b"token", **settings)
    error, comm = ctypes.create_string_buffer(999), native.comm()
    made = comm.epl_comm_create(ctypes.byref(options), ctypes.byref(native.Store(None, *functions)), error, len(error))
    assert made, error.value
    comm.epl_pool_set(0, made)
    try:
        yield lambda tags: comm.epl_comm_expect(made, (ctypes.c_int64 * len(tags))(*tags), len(tags))
    finally:
        comm.epl_pool_set(0, None)
        comm.epl_comm_destroy(made)


def test_a_worker_that_waits_for_itself_says_so_before_it_gives_up(capfd):
    with tf.Graph().as_default():
        reduce = functools.partial(library.load().epl_all_reduce, N=1, R=1, workers=2, reduce_op="sum")
        first = reduce([tf.ones([3])], tag=7, name="first")[0]
        second = reduce([first], tag=8, name="second")[0]
        with communicator_of_one(timeout_s=1.5, stall_warning_s=0.3) as expect, tf.Session() as session:
            assert expect([8, 7]) == native.OK
            with pytest.raises(tf.errors.DeadlineExceededError, match="waited 1.5 s for its own request with tag 8"):
                session.run(second)
    told = [line for line in capfd.readouterr().err.splitlines() if "'first'" in line and "has waited" in line]
    assert len(told) == 1 and told[0].endswith("own request with tag 8, whose turn it is; it gives up after 1.5 s")


class Drawn(object):
    """A program with loops between collectives, while it is drawn."""

    def __init__(self, seed):
        self.draw, self.names = np.random.RandomState(seed), []
        # Gradients that wait for something, and enter the loops late: TensorFlow itself fails with loops in loops, and
        # waits for ever where a loop waits too, as it begins no more iterations at once.
        self.waits = self.draw.randint(2)
        x = tf.placeholder_with_default(np.ones([2, 3], np.float32), [2, 3])
        self.pool = [x, 2.0 * x]
        for _ in range(self.draw.randint(3, 8)):
            kinds = ["_collective", "_collective", "_loop", "_array", "_sum"] + ([] if self.waits else ["_nested"])
            self.pool.append(getattr(self, self.draw.choice(kinds))())
        loss = tf.add_n([tf.reduce_sum(each) for each in self.pool])
        late = [self._collective()] if self.waits else []
        with tf.control_dependencies(late) if late else contextlib.suppress():
            self.fetches = [loss] + tf.gradients(loss, x)

    def _one(self):
        return self.pool[-1 - min(self.draw.geometric(0.4) - 1, len(self.pool) - 1)]

    def _collective(self):
        @tf.custom_gradient
        def exchange(x):
            return self._exchanged(x), self._exchanged

        return exchange(self._one())

    def _exchanged(self, x):
        tag = len(self.names)
        made = library.load().epl_all_reduce([x], N=1, R=1, workers=2, reduce_op="sum", tag=tag)[0]
        self.names.append(made.op.name)
        return made

    def _sum(self):
        return tf.tanh(self._one() + self._one())

    def _while(self, body, start):
        times, at_once = self.draw.randint(2, 5), 10 if self.waits else int(self.draw.choice([1, 2, 10]))
        return tf.while_loop(lambda i, *_: i < times, body, (0,) + start, parallel_iterations=at_once)[1:]

    def _loop(self):
        """The invariant does not come to the result, or does."""
        invariant, which = self._one(), self.draw.randint(2)
        return self._while(lambda i, s, t: (i + 1, tf.tanh(s), t + invariant * s), (self._one(), self._one()))[which]

    def _nested(self):
        outer, inner, count = self._one(), self._one(), self.draw.randint(1, 3)

        def body(i, s, t):
            made = tf.while_loop(lambda j, _: j < count, lambda j, u: (j + 1, tf.tanh(u + inner)), (0, t))[1]
            return i + 1, tf.sin(s), made * outer

        return self._while(body, (self._one(), self._one()))[self.draw.randint(2)]

    def _array(self):
        given = self._one()
        array = tf.TensorArray(tf.float32, 6).unstack(tf.tile(given[None], [6, 1, 1]))
        made = tf.TensorArray(tf.float32, 6)

        def body(i, s, written):
            return i + 1, tf.tanh(s), written.write(i, array.read(i) * 0.5)

        at_once = 10 if self.waits else 2
        start = (0, self._one(), made)
        _, state, written = tf.while_loop(lambda i, *_: i < 6, body, start, parallel_iterations=at_once)
        return state if self.draw.randint(2) else tf.reduce_mean(written.stack(), 0)


@functools.lru_cache(maxsize=1)
def plan_of_two_workers():
    with planning.capture() as graph:
        planning.sgd(planning.layers())
    return planning.plan_of(graph, workers=2, devices=1)[1]


# Without making it smaller: what is wrong waits for seconds.
@hypothesis.settings(max_examples=40, phases=[hypothesis.Phase.generate])
@hypothesis.given(st.integers(0, 10**6), st.booleans())
def test_no_random_program_waits_for_itself(seed, by_graph):
    with tf.Graph().as_default() as drawn_in, control_flow("v1"):
        drawn = Drawn(seed)
        graph = Graph.from_graph_def(drawn_in.as_graph_def())
        wanted = {name: (drawn.draw.rand(), name, 0, place) for place, name in enumerate(drawn.names)}
        keys = settle(wanted, graph, plan_of_two_workers(), micro_batches=by_graph)
        assert set(keys) == set(wanted) and len({key[0] for key in keys.values()}) == len(keys)
        assert out_of_order(graph, keys) == []
        fetches = [each for each in drawn.fetches if each is not None]
        reached = graph.ancestors([each.op.name for each in fetches])
        order = [drawn.names.index(name) for name in sorted(reached & keys.keys(), key=keys.get)]
        config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
        config.operation_timeout_in_ms = 30000
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with communicator_of_one() as expect, tf.Session(config=config) as session:
            assert expect(order) == native.OK
            session.run(fetches)
            assert expect([]) == native.OK  # all that was declared has run
