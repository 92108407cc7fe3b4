"""The plan's one list of collectives against the compiled graphs, for each strategy."""

import pytest
import tensorflow.compat.v1 as tf

from epl.graph.index import node_of
from epl.plan.exchange.collectives import collectives_in
from epl.plan.exchange.order import collective_keys
from epl.program import collective as kinds
from epl.program.collective import OPERATIONS
from epl.session.estimated_program import estimate_exchanges, estimate_program
from tests.helpers import planning
from tests.helpers.exchanging import CASES, NOT_PLANNED

ROWS = 32


def made(case, index=0):
    model, (workers, devices), config, _ = CASES[case]
    with planning.capture() as graph:
        model()
    return planning.compiled(graph, workers, devices, index, **config)


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.once
def test_the_list_is_what_the_graph_has(case):
    program = made(case)
    plan, whole = program.plan, program.whole
    nodes = {
        name: whole.nodes[name] for name in whole.find(OPERATIONS.__contains__) if not name.startswith(NOT_PLANNED)
    }
    planned = {each.name: each for each in plan.collectives}
    assert len(planned) == len(plan.collectives)
    assert set(CASES[case][-1]) <= {each.purpose for each in plan.collectives}
    missing = [each for name, each in planned.items() if name not in nodes]
    # Shards of one worker are joined by plain operations; these models have no savers.
    assert all(
        each.purpose == kinds.CHECKPOINTS or each.purpose == kinds.SHARDS and each.workers == 1 for each in missing
    )
    assert set(nodes) <= set(planned)
    keys = collective_keys(plan, whole)
    assert {n for n in keys if not n.startswith(NOT_PLANNED)} == {
        n for n in nodes if planned[n].turn != kinds.UNORDERED
    }
    for name, node in nodes.items():
        each, attr = planned[name], node.attr
        assert (each.operation, each.tag) == (OPERATIONS[node.op], attr["tag"].i), name
        assert (each.communicator, each.workers) == (attr["comm"].i, max(1, attr["workers"].i)), name


# What gives variables their first values on all workers, and what joins the micro-batches of one device.
BEFORE_STEPS = ("epl_broadcast/", "epl_micro_batches/")


@pytest.mark.parametrize("case, saves", [(case, False) for case in sorted(CASES)] + [("split", True), ("v1", True)])
@pytest.mark.once
def test_a_finished_graph_has_nothing_besides(case, saves):
    """Messages, data that workers compare and what they send to checkpoints are in the list of a compiled program."""
    model, (workers, devices), config, _ = CASES[case]
    purposes = set()
    for index in range(min(2, workers)):
        with planning.capture() as graph:
            model()
            if saves:
                tf.train.Saver()
        program = planning.compiled(graph, workers, devices, index, **config)
        carriers = dict(OPERATIONS, **kinds.SENDS)
        nodes = {name for name in program.graph.find(carriers.__contains__) if not name.startswith(BEFORE_STEPS)}
        known = {each.name: each for each in collectives_in(program)}
        assert nodes <= set(known)
        for name in nodes:
            node, each = program.graph.nodes[name], known[name]
            assert (each.carrier, each.tag, each.communicator) == (node.op, node.attr["tag"].i, node.attr["comm"].i)
        purposes.update(known[name].purpose for name in nodes)
    assert kinds.MESSAGES in purposes or not (case.startswith("stages_in_workers") or saves and case == "v1")


# TensorFlow tells no shapes of messages and of what encoders give; nor, before they are looked up, of rows.
UNTOLD = {"user", "sparse", "int8", "bfloat16_on_the_wire", "stages_in_workers", "stages_in_workers_scaled"}


@pytest.mark.parametrize("case", sorted(set(CASES) - UNTOLD))
@pytest.mark.once
def test_bytes_are_those_that_the_graph_hands_in(case):
    compared = 0
    for index in range(CASES[case][1][0]):
        program = made(case, index)
        unknown = set(estimate_program(program, ROWS, orders=1)[1])
        rows = {row.name: row for row in estimate_exchanges(program, ROWS) if node_of(row.tensor) not in unknown}
        for each in program.plan.collectives:
            row = rows.get(each.result or each.name)
            if row is not None and each.num_bytes is not None:
                compared += 1
                assert row.num_bytes == each.device_bytes, each
                assert row.devices == each.devices and row.operation == each.operation
    assert compared


@pytest.mark.once
def test_gradients_of_a_stage_count_where_it_is():
    counted = [made("stages_in_workers", index).plan.bytes_per_step() for index in range(4)]
    assert counted == [4 * 4 * 4] * 4  # each worker has one of the two kernels
