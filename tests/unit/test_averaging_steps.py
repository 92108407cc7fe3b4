"""LocalSGD: when copies are averaged, and what a checkpoint is fed; nothing is run."""

import math
import struct

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given
from hypothesis import strategies as st

import epl
from epl.errors import UnsupportedError
from epl.plan.facts.names import saved_name
from epl.plan.report.plan_table import plan_table
from epl.plan.sync.local_sgd import LocalSgd
from epl.session.local_steps import LocalSteps
from tests.helpers import planning

AVERAGED = frozenset(["w"])


def due(plan, steps, first=0):
    """The steps after which copies are averaged, of a session that begins at the global step `first`."""
    local, found = LocalSteps(), []
    local.begin(first, {})
    for step in range(first + 1, first + steps + 1):
        if local.taken(plan):
            local.averaged({}, plan, None)
            found.append(step)
    return found


@given(k_steps=st.integers(1, 7), begin_step=st.integers(0, 12), steps=st.integers(0, 40))
def test_when_copies_are_averaged(k_steps, begin_step, steps):
    want = [n for n in range(1, steps + 1) if n <= begin_step or (n - begin_step) % k_steps == 0]
    assert due(LocalSgd(k_steps, begin_step, ()), steps) == want


@given(k_steps=st.integers(1, 7), begin_step=st.integers(0, 12), data=st.data())
def test_from_any_average_on_it_goes_on_as_before(k_steps, begin_step, data):
    plan = LocalSgd(k_steps, begin_step, ())
    whole = due(plan, 40)
    stopped = data.draw(st.sampled_from([0] + whole))
    assert due(plan, 40 - stopped, first=stopped) == [step for step in whole if step > stopped]


@given(
    losses=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8), first=st.integers(1, 9), begin_step=st.integers(0, 3)
)
def test_adaptive_periods_follow_from_the_losses_of_all_workers(losses, first, begin_step):
    """One loss for all steps of a period, in this worker; the other one has three times as much."""
    plan, local = LocalSgd(8, begin_step, (), min(first, 8), (("loss:0", "seed"),)), LocalSteps()
    local.begin(0, {})
    periods = []
    for loss in [1.0] * begin_step + losses:
        periods.append(0)
        done = False
        while not done:
            assert local.without_losses([np.array(7), np.array(loss)], 1, 1) == [np.array(7)]
            periods[-1] += 1
            done = local.taken(plan)
        local.averaged({}, plan, lambda own: [own, struct.pack("<d", 3 * struct.unpack("<d", own)[0])])
    assert periods[:begin_step] == [1] * begin_step
    assert periods[begin_step] == min(first, 8)
    for before, period in zip(losses, periods[begin_step + 1 :]):
        exact = math.sqrt(before / losses[0]) * min(first, 8)
        assert period == min(8, max(1, math.ceil(exact - 1e-6)))


def test_losses_that_tell_nothing_leave_the_period_as_it_is():
    plan = LocalSgd(8, 0, (), 4, (("loss:0", "seed"),))
    assert [plan.next_period(1.0, loss, 5) for loss in (math.nan, math.inf, -1.0)] == [5, 5, 5]
    assert plan.next_period(0.0, 1.0, 5) == 5 and plan.next_period(1.0, 0.0, 5) == 1


def test_checkpoints_are_fed_what_was_averaged_last():
    local, plan = LocalSteps(), LocalSgd(2, 0, ())
    local.begin(0, {"w": 1.0, "rate": 0.1})
    assert local.fed(("w", "rate")) == {}  # nothing has changed since
    assert not local.taken(plan) and local.behind
    assert local.fed(("w", "rate", "new")) == {saved_name("w") + ":0": 1.0, saved_name("rate") + ":0": 0.1}
    local.given({"rate"}, AVERAGED)  # by the program, hence what is to be saved
    assert local.fed(("w", "rate")) == {saved_name("w") + ":0": 1.0}
    assert local.taken(plan)
    local.averaged({"w": 2.0}, plan, None)
    assert local.fed(("w",)) == {} and not local.behind and local.steps == 2


def test_after_an_end_copies_are_averaged_first():
    local, plan = LocalSteps(), LocalSgd(4, 2, ())
    local.begin(0, {"w": 1.0})
    for _ in range(2):
        assert local.taken(plan)
        local.averaged({"w": 2.0}, plan, None)
    assert not local.taken(plan)
    local.end()
    assert local.ended and local.behind and local.steps == 0 and local.fed(("w",)) == {saved_name("w") + ":0": 2.0}
    local.averaged({"w": 3.0}, plan, None)
    assert not local.ended and not local.behind
    assert [local.taken(plan) for _ in range(4)] == [False, False, False, True]


def test_with_late_averages_checkpoints_are_fed_the_latest_that_has_come():
    local, plan = LocalSteps(), LocalSgd(2, 0, (), overlap=True)

    def period(momentum):
        assert not local.taken(plan) and local.taken(plan)
        local.overlapped({"m": momentum, "rate": 0.1})

    local.begin(0, {"w": 1.0, "m": 0.0})
    period(5.0)
    first = {saved_name("w") + ":0": 1.0, saved_name("m") + ":0": 0.0}
    assert local.fed(("w", "m")) == first and local.behind
    local.came({"w": 2.0})
    period(6.0)  # of which the average has not come
    assert local.fed(("w", "m")) == {saved_name("w") + ":0": 2.0, saved_name("m") + ":0": 5.0}
    local.given({"rate"}, AVERAGED)
    local.came({"w": 3.0})
    assert local.fed(("w", "rate")) == {saved_name("w") + ":0": 3.0} and local.behind
    local.averaged({"w": 4.0}, plan, None)
    assert not local.behind and local.place == 4


def test_new_values_begin_anew():
    local, plan = LocalSteps(), LocalSgd(3, 0, ())
    local.begin(0, {"w": 1.0})
    local.taken(plan)
    local.given({"w"}, AVERAGED)
    assert not local.started and not local.behind and local.steps == 0 and local.fed(("w",)) == {}


def test_collectives_of_the_program_are_refused(monkeypatch):
    with planning.capture() as graph:
        monkeypatch.setattr(epl.Env.get(), "_cluster", planning.cluster(2, 1))
        planning.sgd(planning.layers(x=epl.ops.all_reduce(planning.batch(), name="mine")))
    with pytest.raises(UnsupportedError, match=r"collectives of the program itself \(epl.ops\), 'mine' for one"):
        planning.plan_of(graph, workers=2, devices=1, local_sgd__k_steps=2)


def test_adaptive_needs_a_loss():
    """The gradient of a sum of squares, written out."""
    with planning.capture() as graph:
        w = tf.get_variable("w", [3, 1], initializer=tf.ones_initializer())
        x = planning.batch(features=3)
        gradient = tf.matmul(x, tf.matmul(x, w), transpose_a=True)
        tf.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, w)])
    with pytest.raises(UnsupportedError, match="local_sgd.adaptive needs to know the loss"):
        planning.plan_of(graph, workers=2, devices=1, local_sgd__k_steps=2, local_sgd__adaptive=True)


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("resource", [False, True])
def test_what_is_averaged(resource, slots):
    with planning.capture() as graph:
        step = tf.train.get_or_create_global_step()
        loss = planning.layers(resource=resource)
        tf.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
    trained = {variable.op.name for variable in graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES)}
    _, plan = planning.plan_of(graph, local_sgd__k_steps=4, local_sgd__average_slots=slots)
    want = {name + end for name in trained for end in ("", "/Adam", "/Adam_1")} if slots else trained
    assert plan.local_sgd.variables == want and trained
    assert plan.aggregation.groups == () and plan.state == ()
    # Float32 variables of the two copies, in as many collectives as can be under way at once.
    assert len(plan.local_sgd.groups) == 2


def test_what_is_averaged_late():
    """What is trained, and nothing that must not become negative."""
    with planning.capture() as graph:
        loss = planning.layers()
        moved = tf.get_variable("variance", [], initializer=tf.ones_initializer(), trainable=False)
        move = moved.assign(0.9 * moved + 0.1 * loss)
        with tf.control_dependencies([move]):
            tf.train.AdamOptimizer(0.1).minimize(loss)
    trained = {variable.op.name for variable in graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES)}
    settings = {"local_sgd__k_steps": 4, "local_sgd__average_slots": False}
    assert planning.plan_of(graph, **settings)[1].local_sgd.variables == trained | {"variance"}
    assert planning.plan_of(graph, local_sgd__overlap=True, **settings)[1].local_sgd.variables == trained and trained


@pytest.mark.parametrize("layout, config", [((2, 2), {}), ((4, 1), {"zero__degree": 2})])
def test_copies_that_train_by_themselves_have_no_state_to_divide(layout, config, caplog):
    with planning.capture() as graph:
        table = tf.get_variable("table", [8192, 8], use_resource=True)  # rows of which would be divided
        tf.train.AdamOptimizer(0.1).minimize(planning.layers() + tf.reduce_sum(table))
    want = planning.compiled(graph, *layout, local_sgd__k_steps=4)
    assert "nothing to divide" not in caplog.text
    got = planning.compiled(graph, *layout, local_sgd__k_steps=4, zero__level="v0", **config)
    assert "there is nothing to divide, as with local_sgd.k_steps each copy" in caplog.text
    assert got.graph.to_graph_def(tf.GraphDef) == want.graph.to_graph_def(tf.GraphDef) and got.plan.zero is None


@pytest.mark.parametrize("scopes, devices", [([2], 2), ([1, 1], 2)])
def test_of_one_copy_nothing_is_averaged(scopes, devices, caplog):
    with planning.capture() as graph:
        x = tf.placeholder(tf.float32, [None, 4])
        for number, count in enumerate(scopes):
            with epl.replicate(count):
                x = tf.matmul(x, planning.variable("kernel_%d" % number, [4, 4]))
                loss = tf.reduce_sum(tf.square(x))
        planning.sgd(loss)
    one, other = (planning.compiled(graph, 1, devices, local_sgd__k_steps=k) for k in (0, 4))
    assert one.graph.to_graph_def(tf.GraphDef) == other.graph.to_graph_def(tf.GraphDef)
    assert other.plan.local_sgd is None
    assert ("there is nothing to average, as all devices compute parts of one copy" in caplog.text) == (scopes == [2])


def test_copies_that_train_by_themselves_have_whole_gradients(caplog):
    """What is said of gradients that others add to holds for none, or for each."""
    with planning.capture() as graph:
        table = tf.get_variable("table", [8, 4])
        loss = planning.layers(x=tf.nn.embedding_lookup(table, tf.placeholder(tf.int64, [None])))
        optimizer = tf.train.AdamOptimizer(0.1)
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        optimizer.apply_gradients(zip(tf.clip_by_global_norm(gradients, 1.0)[0], variables))

    def compiled(**config):  # as bytes, as clipping has a number that is none, and so differs from itself
        made = planning.compiled(graph, 2, 1, local_sgd__k_steps=4, **config).graph
        return made.to_graph_def(tf.GraphDef).SerializeToString(deterministic=True)

    want = compiled()
    for key in ("communication__clip_after_allreduce", "communication__sparse_as_dense"):
        assert compiled(**{key: True}) == want, key
    assert "communication.sparse_as_dense: there is nothing to send densely" in caplog.text


def test_the_table_says_what_is_sent():
    with planning.capture() as graph:
        planning.sgd(planning.layers())
    _, plan = planning.plan_of(graph, workers=2, devices=1, local_sgd__k_steps=4, local_sgd__begin_step=9)
    assert plan.bytes_per_step() == plan.local_sgd.num_bytes // 4 > 0
    text = plan_table(plan)
    assert "averaged every 4 steps, every step until step 9" in text and "gradients" not in text
