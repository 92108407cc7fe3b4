"""Groups of some of a worker's copies of the model, each of which has all of the state once (zero.degree)."""

import pytest
import tensorflow.compat.v1 as tf

from epl.plan.cost.device_memory import SLOTS
from epl.rules import effects
from epl.session.estimated_program import estimate_program
from tests.helpers.planning import capture, compiled, layers, of_op

pytestmark = pytest.mark.either_line

LAYOUTS = [(1, 4), (2, 4)]


def programs(level, workers=1, devices=4, resource=False, **config):
    """Of layers that Adam trains, two copies of the model to a group."""
    with capture() as graph:
        tf.train.AdamOptimizer(0.01).minimize(layers(4, resource))
        tf.train.Saver()
    config.update(zero__level=level, zero__degree=2)
    return [compiled(graph, workers, devices, index, **config) for index in range(workers)]


def group_of(node):
    """Which two devices a node is on."""
    return int(node.device[-1]) // 2


def updates_of(program):
    return [n for op in ("ApplyAdam", "ResourceApplyAdam") for n in of_op(program.graph, op)]


def copies_of(graph, names):
    """dict of a variable to the nodes that hold it."""
    held = [graph.nodes[name] for name in graph.find(effects.VARIABLES.__contains__)]
    return {name: [n for n in held if n.name == name or n.name.endswith("/" + name)] for name in names}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("level, resource", [("v1", False), ("v3", True)])
def test_each_group_has_all_of_the_state_once(level, resource, layout):
    for program in programs(level, *layout, resource=resource):
        zero, graph = program.plan.zero, program.graph
        assert (zero.replicate_group.local, zero.shard_group.local, len(zero.state_bytes)) == (2, 2, 2)
        owned = {name: update.owner for update in zero.updates for name in update.slots}
        if level == "v3":
            owned.update((update.variable, update.owner) for update in zero.updates)
        assert set(owned.values()) == {0, 1}
        for name, nodes in copies_of(graph, owned).items():
            assert sorted(node.device[-5:] for node in nodes) == ["CPU:%d" % (owned[name] + first) for first in (0, 2)]
        updates = updates_of(program)
        assert len(updates) == 2 * len(zero.updates) and {group_of(node) for node in updates} == {0, 1}
        for update in updates:  # all that it changes is its own
            holders = [graph.nodes[name] for name in update.input if name in graph.nodes]
            held = [n for n in holders if n.op in effects.VARIABLES and "beta" not in n.name]
            assert len(held) == 3 and {node.device for node in held} == {update.device}
        reduced = of_op(graph, "EplAllReduce")
        assert reduced and {(node.attr["R"].i, node.attr["workers"].i) for node in reduced} == {(4, layout[0])}
        (strategy,) = program.plan.strategies
        assert strategy.kept_bytes == -2 * sum(zero.state_bytes)


def test_a_copy_of_the_model_gets_what_its_own_group_updates():
    (program,) = programs("v1")
    graph, found = program.graph, set()
    for op in ("Assign", "NoOp"):  # what an owner has updated, it has
        for node in of_op(graph, op):
            if node.name.startswith("epl_zero/"):
                near = [n for n in updates_of(program) if n.name in graph.ancestors([node.name])]
                assert near and {group_of(update) for update in near} == {group_of(node)}
                found.add((node.device, op))
    assert len(found) == 8


@pytest.mark.parametrize("level", ["v2", "v3"])
def test_a_copy_of_the_model_computes_with_the_parameters_of_its_own_group(level):
    (program,) = programs(level)
    graph = program.graph
    products = of_op(graph, "MatMul")
    assert {node.device[-1] for node in products} == set("0123")
    forward = [node for node in products if "gradients" not in node.name]
    for node in forward:
        near = [graph.nodes[name] for name in graph.ancestors([node.name])]
        weights = [n for n in near if n.op in effects.VARIABLES]
        assert weights and {group_of(n) for n in weights} == {group_of(node)}


def test_all_copies_of_what_is_owned_get_its_first_value():
    (program,) = programs("v2")
    for update in program.plan.zero.updates:
        for name in (update.variable,) + update.slots:
            (copy,) = [n for n in program.graph.ancestors(["epl_copy/" + name]) if n.endswith("/assign_1")]
            assert group_of(program.graph.nodes[copy]) == 1


def test_the_memory_plan_counts_the_state_of_each_device():
    (program,) = programs("v1")
    devices, _ = estimate_program(program, 8)
    for device in range(4):
        scalars = devices["CPU:%d" % device].lasting[SLOTS] - program.plan.zero.state_bytes[device % 2]
        assert scalars in (0, 8)  # the powers of beta
