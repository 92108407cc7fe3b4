"""epl.ops with a single worker, what the functions refuse, and where plans put the collectives of a user's graph."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl import compiler
from epl.capture.caught import INNER
from epl.capture.record import make_program
from epl.cluster import Cluster
from epl.config import Config
from epl.env import Env
from epl.errors import PlanError, UnsupportedError
from epl.plan.exchange.order import collective_keys, settle
from tests.helpers.planning import by_hand


@pytest.fixture(autouse=True)
def graph():
    Env.get().reset()
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def two_workers(monkeypatch):
    """The graph is built as in a job of two workers; nothing is run."""
    env = Env.get()
    monkeypatch.setattr(env, "_cluster", cluster(2))


def cluster(workers, devices=1, index=0):
    hosts = tuple("127.0.0.1:%d" % (7000 + w) for w in range(workers))
    return Cluster(worker_num=workers, worker_index=index, gpu_num_per_worker=devices, hosts=hosts)


def plan_of(graph, workers=2, devices=1, index=0):
    return compiler.planned(make_program(graph), Config(), cluster(workers, devices, index)).plan


def run(fetches):
    with tf.Session() as session:
        return session.run(fetches)


X = np.arange(6.0).reshape([3, 2])


@pytest.mark.parametrize("op", ["sum", "mean", "min", "max", "prod"])
def test_reductions_of_one_worker_give_the_tensor(op):
    x = tf.constant(X)
    made = [epl.ops.all_reduce(x, op), epl.ops.reduce(x, 0, op)]
    made += [epl.ops.reduce_scatter(x, op), epl.ops.reduce_scatter(x, op, sizes=[3])]
    for value in run(made):
        np.testing.assert_array_equal(value, X)


def test_moves_of_one_worker_give_the_tensor():
    x = tf.constant(X)
    received, splits = epl.ops.all_to_all(x, splits=[3])
    made = [epl.ops.broadcast(x), epl.ops.all_gather(x), epl.ops.all_to_all(x), received]
    made += [epl.ops.recv(epl.ops.send(x, 0, 0)), epl.ops.recv(epl.ops.send(x, 0, 0), [3, 2], tf.float64)]
    for value in run(made):
        np.testing.assert_array_equal(value, X)
    with tf.control_dependencies([epl.ops.barrier()]):
        assert run(tf.identity(splits)).tolist() == [3]


@pytest.mark.parametrize(
    "collective",
    [
        lambda x: epl.ops.all_reduce(x),
        lambda x: epl.ops.all_reduce(x, "mean"),
        lambda x: epl.ops.reduce(x),
        lambda x: epl.ops.reduce(x, op="mean"),
        lambda x: epl.ops.broadcast(x),
        lambda x: epl.ops.all_gather(x),
        lambda x: epl.ops.reduce_scatter(x),
        lambda x: epl.ops.reduce_scatter(x, "mean", [3]),
        lambda x: epl.ops.all_to_all(x),
        lambda x: epl.ops.all_to_all(x, [3])[0],
        lambda x: epl.ops.recv(epl.ops.send(x, 0, 0)),
    ],
)
def test_gradients_of_one_worker(collective):
    x = tf.constant(X)
    gradient = tf.gradients(tf.square(collective(x)), x)[0]
    assert gradient.shape.as_list() == [3, 2]
    np.testing.assert_array_equal(run(gradient), 2 * X)


@pytest.mark.parametrize("op", ["min", "max", "prod"])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce", "reduce_scatter"])
def test_reductions_without_a_gradient_say_so(collective, op):
    x = tf.constant(X)
    y = getattr(epl.ops, collective)(x, op=op, name="extreme")
    with pytest.raises(UnsupportedError, match=r"'extreme' \(Epl\w+\) is a \"%s\" over workers" % op):
        tf.gradients(y, x)


def test_known_shapes(two_workers):
    x = tf.zeros([4, 3])
    unknown = tf.placeholder(tf.float32, [None, 3])
    shapes = {
        epl.ops.all_reduce(x): [4, 3],
        epl.ops.reduce(x): [4, 3],
        epl.ops.broadcast(unknown): [None, 3],
        epl.ops.all_gather(x): [None, 3],
        epl.ops.reduce_scatter(x): [2, 3],
        epl.ops.reduce_scatter(unknown): [None, 3],
        epl.ops.reduce_scatter(x, sizes=[1, 3]): [None, 3],
        epl.ops.all_to_all(x): [None, 3],
        epl.ops.all_to_all(x, [1, 3])[1]: [2],
        epl.ops.recv(epl.ops.send(unknown, 0, 1)): [None, 3],
        epl.ops.recv(epl.ops.send(unknown, 0, 1), [5, 3]): [5, 3],
    }
    for tensor, shape in shapes.items():
        assert tensor.shape.as_list() == shape, tensor


@pytest.mark.parametrize(
    "make, error, told",
    [
        (lambda x: epl.ops.all_reduce(x, "median"), PlanError, 'op is \'median\'; it must be one of "sum", "mean"'),
        (lambda x: epl.ops.all_reduce(tf.ones([2], tf.int32), "mean"), PlanError, "has the type int32.*cast it"),
        (lambda x: epl.ops.reduce(x, root=2), PlanError, "root is 2; .*this job has the workers 0 to 1"),
        (lambda x: epl.ops.broadcast(x, root=-1), PlanError, "root is -1"),
        (lambda x: epl.ops.send(x, 0, 2), PlanError, "target is 2"),
        (lambda x: epl.ops.send(x, 0.5, 1), PlanError, "source is 0.5"),
        (lambda x: epl.ops.recv(x), PlanError, "takes what epl.ops.send returned"),
        (lambda x: epl.ops.recv(epl.ops.send(x, 0, 1), [2], tf.int32), PlanError, "holds float32, not int32"),
        (lambda x: epl.ops.all_gather(1.0), ValueError, "at least rank 1"),
        (lambda x: epl.ops.all_reduce("text"), (TypeError, ValueError), "string"),
    ],
)
def test_wrong_arguments(two_workers, make, error, told):
    with pytest.raises(error, match=told):
        make(tf.zeros([2]))


def test_a_message_is_received_once(two_workers):
    message = epl.ops.send(tf.zeros([2]), 0, 1)
    epl.ops.recv(message)
    with pytest.raises(PlanError, match="is received already"):
        epl.ops.recv(message)


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda: epl.ops.reduce_scatter(X, sizes=[2]), r"sizes \[2\] do not add up to the 3 rows"),
        (lambda: epl.ops.reduce_scatter(X, sizes=[1, 2]), "sizes has 2 numbers for 1 workers"),
        (lambda: epl.ops.all_to_all(X, [-3])[0], "splits has -3 rows for worker 0"),
        (lambda: epl.ops.recv(epl.ops.send(X, 0, 0), [2, 3]), r"shape \[2,3\] is expected, but one of shape \[3,2\]"),
    ],
)
def test_wrong_numbers_at_run_time(make, told):
    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
        run(make())


def test_outside_of_a_job(two_workers):
    setattr(tf.get_default_graph(), INNER, True)  # a session of it is none of EPL's, whatever ran before this test
    made = [epl.ops.all_reduce(X), epl.ops.reduce(X), epl.ops.broadcast(X), epl.ops.all_gather(X), epl.ops.barrier()]
    made += [epl.ops.reduce_scatter(X, sizes=[1, 2]), epl.ops.all_to_all(X, [1, 2])[0], epl.ops.send(X, 0, 1)]
    for each in made:
        with pytest.raises(tf.errors.FailedPreconditionError, match="runs only in a session of epl"):
            run(each)


def test_plan_holds_the_collectives(graph, two_workers):
    x = tf.zeros([2])
    first = epl.ops.all_reduce(x)
    received = epl.ops.recv(epl.ops.send(first, 1, 0))
    epl.ops.barrier()
    for index, takes_part in ((0, [True, False, True, True]), (1, [True, True, False, True])):
        plan = plan_of(graph, index=index)
        found = plan.user_collectives
        assert [c.name for c in found] == ["all_reduce", "send", "recv", "barrier"]
        assert [c.takes_part for c in found] == takes_part
        assert found[1].tag == found[2].tag and found[2].partner == "send"
        assert len({c.tag for c in found}) == 3
        keys = collective_keys(plan, make_program(graph).graph)
        assert keys["send"][0] == keys["recv"][0]
        assert sorted(keys, key=keys.get) == ["all_reduce", "recv", "send", "barrier"]
    assert received.shape.as_list() == [2]
    assert plan_of(graph, workers=1).user_collectives == ()


def test_order_follows_what_needs_what(graph, two_workers):
    epl.ops.recv(epl.ops.send(tf.zeros([2]), 1, 0))
    plan = plan_of(graph)
    keys = {"group": (9, "group", 1, 5), "send": (2.5, "send", 0, 6), "recv": (2.5, "recv", 0, 6)}
    keys["other"] = (4, "other", 0, 7)
    after = settle(keys, by_hand(("group", []), ("send", ["group"]), ("recv", ["send"]), ("other", [])), plan)
    assert sorted(after, key=after.get) == ["other", "group", "recv", "send"]
    assert {name: key[1:] for name, key in after.items()} == {name: key[1:] for name, key in keys.items()}
    circle = by_hand(("group", ["send"]), ("send", []), ("recv", ["send", "^group"]), ("other", []))
    with pytest.raises(PlanError, match="no order in which these collectives can run.*'group', 'recv'"):
        settle(keys, circle, plan)


def test_loops_and_branches_are_refused(graph, two_workers):
    tf.while_loop(lambda i: i < 3.0, lambda i: epl.ops.all_reduce(i, name="inside"), [tf.constant(0.0)])
    with pytest.raises(UnsupportedError, match=r"inside\w*' \(EplAllReduce\) stands in"):
        plan_of(graph)


def test_functions_are_refused(graph, two_workers):
    data = tf.data.Dataset.range(3).map(lambda x: epl.ops.all_reduce(x, name="inside"))
    tf.data.make_one_shot_iterator(data)
    iterator = tf.data.make_initializable_iterator(data)
    assert iterator.get_next().dtype == tf.int64
    with pytest.raises(UnsupportedError, match=r"'inside' \(EplAllReduce\) stands in the body of function"):
        plan_of(graph)


def test_several_devices_in_a_worker(graph, two_workers):
    epl.ops.all_gather(epl.ops.all_reduce(tf.zeros([2])))
    assert len(plan_of(graph, devices=2).user_collectives) == 2
    epl.ops.broadcast(tf.zeros([2]), name="mine")
    with pytest.raises(UnsupportedError, match=r"'mine' \(EplBroadcast\) works with one copy.*each worker has 2"):
        plan_of(graph, devices=2)


def test_message_that_nobody_receives(graph, two_workers):
    epl.ops.send(tf.zeros([2]), 0, 1, name="lost")
    with pytest.raises(PlanError, match=r"'lost' \(EplSend\) is received 0 times"):
        plan_of(graph)


def test_result_of_a_collective_counts_as_different_on_each_worker(graph, two_workers):
    total = tf.get_variable("total", [1], trainable=False, use_resource=False)
    write = tf.assign_add(total, epl.ops.reduce_scatter(tf.ones([2])))
    plan = plan_of(graph)
    assert write.op.name in plan.analysis.writes and "reduce_scatter" in plan.analysis.varying
