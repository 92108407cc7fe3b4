"""Optimizers' state divided over workers: who owns what, what travels, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import epl
from epl.capture.record import make_program
from epl.errors import UnsupportedError
from epl.graph import tags
from epl.passes.worker.broadcast import sync_orders
from epl.plan.cost import device_memory
from epl.plan.exchange.order import collective_keys, settle
from epl.plan.memory.apply_groups import APPLY_GROUP
from epl.plan.zero.zero import gathered_groups, scattered_groups
from epl.plan.zero.zero_owners import plan_zero
from epl.rules import effects
from epl.session.estimated_program import estimate_program
from tests.helpers.planning import batch, capture, compiled, layers, of_op, plan_of, variable

pytestmark = pytest.mark.either_line

SLOTS = {"momentum": 1, "adam": 2, "rmsprop": 3, "adagrad": 1, "adadelta": 2, "ftrl": 2}
OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: tf.train.AdamOptimizer(0.01),
    "rmsprop": lambda: tf.train.RMSPropOptimizer(0.01, centered=True),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "adadelta": lambda: tf.train.AdadeltaOptimizer(0.1),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.1),
}


def training(optimizer="adam", count=3, resource=False):
    with capture() as graph:
        OPTIMIZERS[optimizer]().minimize(layers(count, resource))
        tf.train.Saver()
    return graph


def workers(graph, count=2, level="v1", **config):
    return [compiled(graph, count, 1, index, zero__level=level, **config) for index in range(count)]


def variables_of(program):
    return set(program.graph.find(effects.VARIABLES.__contains__))


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("optimizer", sorted(SLOTS))
def test_each_slot_is_in_one_worker(optimizer, resource):
    graph = training(optimizer, resource=resource)
    programs = workers(graph)
    trained = {v.op.name for v in graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES)}
    first, second = (variables_of(program) for program in programs)
    zero = programs[0].plan.zero
    slots = {slot for update in zero.updates for slot in update.slots}
    assert len(slots) == SLOTS[optimizer] * len(trained)
    assert first & second & slots == set() and slots <= first | second and trained <= first & second
    for index, held in enumerate((first, second)):
        assert {slot for slot in slots if zero.owners[slot] == index} == held & slots
    assert zero == programs[1].plan.zero


@pytest.mark.parametrize("resource", [False, True])
def test_each_slot_is_on_one_device(resource):
    graph = training(count=4, resource=resource)
    programs = [compiled(graph, 2, 2, index, zero__level="v1") for index in range(2)]
    zero = programs[0].plan.zero
    assert max(zero.state_bytes) - min(zero.state_bytes) <= 2 * 4 * 16
    for worker, program in enumerate(programs):
        for slot in {slot for update in zero.updates for slot in update.slots}:
            copies = [program.graph.nodes[name] for name in variables_of(program) if name.endswith(slot)]
            where = ["CPU:%d" % (zero.owners[slot] % 2)] if zero.owners[slot] // 2 == worker else []
            assert [node.device[-5:] for node in copies] == where
        updates = of_op(program.graph, "ResourceApplyAdam" if resource else "ApplyAdam")
        assert len(updates) == sum(update.owner // 2 == worker for update in zero.updates)
        for node in updates:  # each of the variable on its own device
            assert all(program.graph.nodes[name].device == node.device for name in node.input[:3])
    (strategy,) = programs[0].plan.strategies
    assert strategy.kept_bytes == sum(zero.state_bytes[:2]) - 2 * sum(zero.state_bytes)


def test_each_owner_makes_its_updates_in_groups():
    with capture() as graph:
        epl.optimizers.LambOptimizer(0.01).minimize(layers(8))
    for worker in range(2):
        program = compiled(graph, 2, 2, worker, zero__level="v1", optimizer__num_apply_group=2)
        ends = [n for n in program.graph.nodes.values() if tags.get_str(n, tags.ROLE) == APPLY_GROUP]
        assert [node.device[-5:] for node in ends] == ["CPU:0"] * 2 + ["CPU:1"] * 2
        zero, made = program.plan.zero, [{text[1:] for text in node.input} for node in ends]
        for rank, (first, second) in zip(zero.of_worker(worker), zip(made[::2], made[1::2])):
            own = {w for update in zero.updates if update.owner == rank for w in update.writes}
            assert first and second and own <= first | second and not first & second
            assert not program.graph.ancestors(first) & second and all(
                program.graph.ancestors([write]) & first == first for write in second
            )


def test_owners_agree_on_whether_gradients_are_finite():
    config = {"amp__level": "O1", "amp__dtype": "float16"}
    for count, devices in ((2, 1), (1, 2)):
        for index in range(count):
            program = compiled(training(), count, devices, index, zero__level="v1", **config)
            (found_inf,) = program.plan.found_infs
            (agreement,) = [n for n in of_op(program.graph, "EplAllReduce") if n.attr["reduce_op"].s == b"min"]
            assert agreement.attr["R"].i == devices
            assert found_inf.flags and all(flag in program.plan.zero.owners for flag in found_inf.flags)
            judged = {flag for flag in found_inf.flags if program.plan.is_here(flag)}
            assert judged == program.graph.nodes.keys() & set(found_inf.flags)
            assert program.graph.ancestors([agreement.name]) & set(found_inf.flags) == judged


def test_collectives_of_a_step():
    for level, fp16, reductions in (
        ("v0", False, "EplReduceScatter"),
        ("v1", False, "EplReduceScatter"),
        ("v0", True, "EplAllReduce"),
        ("v1", True, "EplReduceScatter"),
    ):
        for program in workers(training(), level=level, communication__fp16=fp16):
            found = [op for op in ("EplAllReduce", "EplReduceScatter") if of_op(program.graph, op)]
            travels = of_op(program.graph, reductions)[0].attr["T"].type
            assert (travels == 19) == (fp16 and reductions == "EplReduceScatter")
            assert found == [reductions] and len(of_op(program.graph, "EplAllGather")) == 1
            plan = program.plan
            updated = sum(u.num_bytes for u in plan.zero.updates if u.owner == plan.mesh.worker_index)
            gradients = sum(g.num_bytes for g in plan.aggregation.groups)
            assert plan.bytes_per_step() == (gradients // 2 if fp16 else gradients) + updated


@pytest.mark.parametrize("scaled", [False, True])
def test_what_half_precision_cannot_hold_is_an_error_or_a_step_that_is_left_out(scaled):
    amp = {"amp__level": "O1", "amp__dtype": "float16"} if scaled else {}
    program = workers(training(), communication__fp16=True, **amp)[0]
    checks = [n for n in of_op(program.graph, "CheckNumerics") if "half-precision" in n.attr["message"].s.decode()]
    assert len(checks) == (not scaled)
    for check in checks:
        message = check.attr["message"].s.decode()
        assert "which end at 65504" in message and "communication.fp16_scale is 128" in message
    finite = {node.name for node in of_op(program.graph, "IsFinite")}
    assert bool(finite) == scaled


def test_nothing_but_checkpoints_takes_a_slot_of_another_worker():
    for program in workers(training()):
        assert {program.part.whole.nodes[c].op for m in program.part.messages for c in m.consumers} == {"SaveV2"}


@settings(max_examples=25)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(2, 4))
def test_balance(widths, count):
    with capture() as graph:
        x = batch()
        loss = tf.add_n([tf.reduce_sum(tf.matmul(x, variable("w%d" % i, (4, n)))) for i, n in enumerate(widths)])
        OPTIMIZERS["adam"]().minimize(loss)
    _, plan = plan_of(graph, count, 1, zero__level="v1")
    sizes = [4 * 4 * 2 * n for n in widths]
    state = plan.zero.state_bytes
    assert len(state) == count and sum(state) == sum(sizes)
    assert max(state) - min(state) <= max(sizes)
    gathered = [u.variable for g in gathered_groups(plan) for u in g.updates]
    assert sorted(gathered) == sorted(u.variable for u in plan.zero.updates)
    for group in scattered_groups(plan).values():
        assert [u.owner for u in group.updates] == sorted(u.owner for u in group.updates)
        assert group.size_of(range(count)) * 4 == sum(u.num_bytes for u in group.updates)


def test_owners_stay_when_the_graph_grows():
    graph = training("momentum")
    before = plan_of(graph, 2, 1, zero__level="v0")[1].zero
    with graph.as_default():
        other = tf.reduce_sum(variable("later", (64, 64)))
        OPTIMIZERS["adam"]().minimize(other, var_list=[v for v in tf.global_variables() if v.op.name == "later"])
        tf.summary.histogram("slot", [v for v in tf.global_variables() if v.op.name == "w0/Momentum"][0])
        tf.train.Saver(name="another")
    after = plan_of(graph, 2, 1, zero__level="v0")[1].zero
    assert all(after.owners[slot] == before.owners[slot] for update in before.updates for slot in update.slots)
    assert len(after.updates) == len(before.updates) + 1


def test_what_else_takes_a_slot_gets_it_from_its_owner():
    graph = training("momentum")
    with graph.as_default():
        slot = [v for v in tf.global_variables() if v.op.name == "w1/Momentum"][0]
        tf.reduce_sum(slot, name="norm")
    programs = workers(graph)
    owner = programs[0].plan.zero.owners["w1/Momentum"]
    for program in programs:
        found = [m for m in program.part.messages if "norm" in m.consumers]
        assert [(m.source, m.target) for m in found] == [(owner, 1 - owner)]
        assert "norm" in program.graph.nodes


@pytest.mark.parametrize("level", ["v0", "v1"])
def test_one_worker_is_as_without(level):
    graph = training()
    want, got = compiled(graph, 1, 1), compiled(graph, 1, 1, zero__level=level)
    assert want.graph.to_graph_def(tf.GraphDef) == got.graph.to_graph_def(tf.GraphDef)


def test_optimizers_without_state_are_as_they_were(caplog):
    graph = training("sgd")
    want, got = compiled(graph, 2, 1), compiled(graph, 2, 1, zero__level="v1")
    assert want.graph.to_graph_def(tf.GraphDef) == got.graph.to_graph_def(tf.GraphDef)
    assert "there is nothing to divide" in caplog.text


def test_variables_of_unknown_shape_stay_whole(caplog):
    with capture() as graph:
        free = tf.get_variable("free", initializer=np.ones([4, 4], np.float32), use_resource=False)
        loss = tf.reduce_sum(tf.matmul(batch(), free)) + layers(1)
        OPTIMIZERS["momentum"]().minimize(loss)
    program = make_program(graph)
    program.variables["free"] = program.variables["free"].__class__("free", 1, None)
    got = compiled(program, 2, 1, zero__level="v1")
    assert "free" not in {update.variable for update in got.plan.zero.updates} and "'free' stays whole" in caplog.text
    assert "free/Momentum" in got.graph.nodes


@pytest.mark.parametrize("devices", [1, 2])
def test_who_holds_its_updates_takes_those_of_others_only(devices):
    for index in range(2):
        (gather,) = of_op(compiled(training(count=4), 2, devices, index, zero__level="v1").graph, "EplAllGather")
        assert gather.attr["others_only"].b == (devices == 1)


@pytest.mark.parametrize("resource", [False, True])
def test_a_variable_keeps_nothing_of_others_that_travelled_with_it(resource):
    for program in workers(training(resource=resource)):
        graph, plan = program.graph, program.plan
        (parts,) = [n.name for n in of_op(graph, "EplParts") if graph.nodes[n.input[0]].op == "EplAllGather"]
        takers = [graph.nodes[name] for name in graph.edges.data_consumers[parts]]
        assert {node.op for node in takers} == {"DeepCopy" if resource else "Assign"}
        assert len(takers) == sum(update.owner != plan.mesh.worker_index for update in plan.zero.updates)
        for copy in takers if resource else ():
            assert [graph.nodes[name].op for name in graph.edges.data_consumers[copy.name]] == ["AssignVariableOp"]


def test_each_worker_has_all_state_once_at_a_degree_of_its_devices():
    graph = training(count=4)
    programs = [compiled(graph, 2, 2, index, zero__level="v1", zero__degree=2) for index in range(2)]
    plain = compiled(graph, 2, 2, 0).plan
    for program in programs:
        zero, held = program.plan.zero, variables_of(program)
        slots = {slot for update in zero.updates for slot in update.slots}
        assert len(zero.state_bytes) == 2 and not program.plan.owners.keys() & slots
        for slot in slots:
            (copy,) = [name for name in held if name.endswith(slot)]
            assert program.graph.nodes[copy].device.endswith("CPU:%d" % zero.owners[slot])
        assert not of_op(program.graph, "EplReduceScatter")
        assert all(node.attr["workers"].i == 1 for node in of_op(program.graph, "EplAllGather"))
        assert all(node.attr["workers"].i == 2 for node in of_op(program.graph, "EplAllReduce"))
        assert program.plan.bytes_per_step() == plain.bytes_per_step()
        (strategy,) = program.plan.strategies
        assert strategy.kept_bytes == -sum(zero.state_bytes)


@pytest.mark.parametrize("level", ["v1", "v2"])
def test_each_group_of_workers_has_all_state_once(level):
    """Of two groups of two: gradients are summed over all, variables come from the own group, first values to all."""
    graph = training(count=4)
    programs = [compiled(graph, 4, 1, index, zero__level=level, zero__degree=2) for index in range(4)]
    zero = programs[0].plan.zero
    assert all(program.plan.zero == zero for program in programs) and len(zero.state_bytes) == 2
    slots = {slot for update in zero.updates for slot in update.slots}
    for index, program in enumerate(programs):
        plan = program.plan
        assert variables_of(program) & slots == {slot for slot in slots if zero.owners[slot] == index % 2}
        assert list(plan.zero.shard_group.workers) == [index - index % 2, index - index % 2 + 1]
        assert not of_op(program.graph, "EplReduceScatter")
        for op, group in (("EplAllReduce", plan.mesh.copies), ("EplAllGather", plan.zero.shard_group)):
            nodes = of_op(program.graph, op)
            assert nodes and {node.attr["workers"].i for node in nodes} == {group.num_workers}
            assert {node.attr["comm"].i for node in nodes} <= {group.communicator(n) for n in range(4)}
        for slot in sorted(slots & variables_of(program)):
            assert list(sync_orders(plan, slot)) == [plan.zero.replicate_group.communicator(0)]
        assert list(plan.zero.replicate_group.workers) == [index % 2, index % 2 + 2]


@pytest.mark.parametrize("layout, degree", [((4, 1), 3), ((1, 4), 3), ((2, 2), 1), ((2, 2), 8)])
def test_degrees_that_are_refused(layout, degree):
    with pytest.raises(UnsupportedError, match="zero.degree=%d does not divide the 4 copies of the model" % degree):
        plan_of(training(), *layout, zero__level="v1", zero__degree=degree)


def test_groups_of_workers_that_have_stages_are_refused():
    with capture() as graph:
        loss = tf.constant(0.0)
        for stage in range(2):
            with epl.replicate(1, name="stage_%d" % stage):
                loss = loss + tf.reduce_mean(tf.square(tf.matmul(batch(), variable("w_%d" % stage))))
        OPTIMIZERS["momentum"]().minimize(loss)
    with pytest.raises(UnsupportedError, match="zero.degree=2, groups of several workers but not of all, cannot"):
        plan_of(graph, 8, 1, zero__level="v1", zero__degree=2)


def test_the_degree_of_all_copies_is_as_none():
    graph = training()
    want = compiled(graph, 2, 2, 0, zero__level="v1").plan.zero
    assert compiled(graph, 2, 2, 0, zero__level="v1", zero__degree=4).plan.zero == want


class Coupled(tf.train.MomentumOptimizer):
    """Divides gradients by the norm of them all."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        pairs = list(grads_and_vars)
        norm = tf.global_norm([g for g, _ in pairs])
        return super(Coupled, self).apply_gradients([(g / norm, v) for g, v in pairs], global_step, name)


class Counting(tf.train.MomentumOptimizer):
    """Counts updates in a variable that all of them have in common."""

    def _apply_dense(self, grad, var):
        with tf.variable_scope("", reuse=tf.AUTO_REUSE):
            total = tf.get_variable("total", [], initializer=tf.zeros_initializer(), trainable=False)
        return tf.group(super(Counting, self)._apply_dense(grad, var), tf.assign_add(total, tf.reduce_sum(grad)))


@pytest.mark.parametrize("kind, words", [(Coupled, "'global_norm/stack'"), (Counting, "Assign.*")])
def test_optimizers_that_cannot_be_divided(kind, words):
    with capture() as graph:
        kind(0.1, 0.9).minimize(layers(2))
    words = "cannot divide the updates of %s: '.*%s.* is part of those of several" % (kind.__name__, words.strip("'"))
    with pytest.raises(UnsupportedError, match=words):
        plan_of(graph, 2, 1, zero__level="v1")


def test_updates_in_a_branch_cannot_be_divided():
    model, plan = plan_of(training(), 2, 1)
    analysis = replace(plan.analysis, in_control_flow=frozenset(plan.analysis.writes))
    with pytest.raises(UnsupportedError, match="which changes '.*', stands in a branch or a loop"):
        plan_zero(model, analysis, "v0", plan.mesh.state_groups)


def test_slots_that_the_program_changes_too():
    graph = training("momentum")
    with graph.as_default():
        slot = [v for v in tf.global_variables() if v.op.name == "w1/Momentum"][0]
        tf.assign(slot, 0.5 * slot)
    with pytest.raises(UnsupportedError, match="'w1/Momentum' is changed by more than the update of one variable"):
        plan_of(graph, 2, 1, zero__level="v0")


def test_updates_by_hand():
    with capture() as graph:
        weight = variable("w")
        tf.assign_sub(weight, 0.1 * tf.gradients(tf.reduce_mean(tf.matmul(batch(), weight)), weight)[0])
    with pytest.raises(UnsupportedError, match="this program assigns to 'w' what it makes of gradients itself"):
        plan_of(graph, 2, 1, zero__level="v1")


def test_a_gradient_that_something_else_takes_too_stays_whole():
    graph = training("adam")
    _, plan = plan_of(graph, 2, 1, zero__level="v1")
    (group,) = plan.aggregation.groups
    assert set(scattered_groups(plan)) == {group.name}
    consumers = {t: edges + (("elsewhere", 0),) for t, edges in plan.aggregation.consumers.items()}
    other = replace(plan, aggregation=replace(plan.aggregation, consumers=consumers))
    assert scattered_groups(other) == {}


def test_new_variables_travel_behind_all_that_does_not_need_them():
    with capture() as graph:
        loss = layers(4)
        train = OPTIMIZERS["adam"]().minimize(loss)
        with tf.control_dependencies([train]):
            after = tf.reduce_sum(batch() * 2.0, name="after")
        for tensor in (loss, after):
            epl.add_to_collection(tensor, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    for program in workers(graph, communication__fuse_size_mb=1e-4):
        plan = program.plan
        keys = settle(collective_keys(plan, program.whole), program.whole, plan)
        places = {name: place for place, (_, name, _, _) in enumerate(sorted(keys.values()))}
        updates = [places[group.name] for group in gathered_groups(plan)]
        gradients = [places[group.name] for group in plan.aggregation.groups]
        late, early = (next(places[m.name] for m in plan.merges if t.op.name in m.name) for t in (after, loss))
        assert len(updates) == len(gradients) > 1 and max(gradients + [early]) < min(updates) and max(updates) < late


def test_the_memory_plan_counts_what_each_worker_holds():
    for index, program in enumerate(workers(training())):
        devices, _ = estimate_program(program, 8)
        scalars = 8  # the powers of beta, which all workers have
        assert devices["CPU:0"].lasting[device_memory.SLOTS] == program.plan.zero.state_bytes[index] + scalars
