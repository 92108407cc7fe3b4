"""What a strategy that exchanges something adds to EPL: four places, and all that is made of the list of collectives
follows. The example is added and removed: each step, workers agree on the largest loss before they make updates."""

import os

import pytest

from epl import compiler
from epl.config import Config
from epl.graph import tags
from epl.graph.types import FLOAT32
from epl.passes import promises
from epl.passes.nodes import all_reduce_node
from epl.passes.promises.footprint import EXCHANGE
from epl.plan.exchange import collectives
from epl.plan.facts.names import clone_name
from epl.program.collective import ALL_REDUCE, NORMS, collective
from epl.session.estimated_program import estimate_exchanges
from epl.session.rewritten import Rewritten
from tests.helpers import planning

NAME, LOSS = "epl_example/largest_loss", "loss"

# 1. A module in a room of epl/plan says what is exchanged.


def loss_collectives(plan):
    group = plan.mesh.copies
    return [collective(NAME, ALL_REDUCE, NORMS, (LOSS,), group, 0, 4, FLOAT32, tags.BACKWARD)]


# 2. A module in epl/passes makes the node of it, in its place.


def agree_on_the_loss(program, plan):
    edit = program.graph.editor()
    edit.add(all_reduce_node(plan, NAME, [LOSS], FLOAT32, 1.0, "max"))
    for write in plan.analysis.writes:
        for instance in plan.instances_with(write):
            edit.node(clone_name(write, instance.index)).input.append("^" + NAME)
    return program.with_graph(edit.finish())


@pytest.fixture
def added(monkeypatch):
    # 3. The list of collectives has its part, and the list of passes the pass. 4. The pass makes its promise.
    monkeypatch.setattr(collectives, "_PARTS", collectives._PARTS + (loss_collectives,))
    place = compiler.PASSES.index(compiler.aggregate_gradients)
    monkeypatch.setattr(compiler, "PASSES", compiler.PASSES[:place] + (agree_on_the_loss,) + compiler.PASSES[place:])
    made = promises.Promise(promises.allows([EXCHANGE], waits=True))
    monkeypatch.setitem(promises.PROMISES, "agree_on_the_loss", made)


def model():
    with planning.capture() as graph:
        planning.sgd(planning.layers(2), name="train")
    return graph


def of_workers(graph):
    return [planning.compiled(graph, 2, 2, index) for index in range(2)]


@pytest.mark.once
def test_all_that_is_made_of_the_list_follows(added):
    graph = model()
    programs = of_workers(graph)
    for program in programs:
        node, each = program.graph.nodes[NAME], program.plan.collective(NAME)
        assert (node.op, node.attr["comm"].i, node.attr["tag"].i) == ("EplAllReduce", each.communicator, each.tag)
        assert len([text for text in node.input if text[0] != "^"]) == 2  # of both copies of the model here
        row = next(row for row in estimate_exchanges(program, 8) if row.name == NAME)
        assert (row.operation, row.axis, row.devices, row.num_bytes, row.times) == ("all_reduce", "data", 4, 4, 1)
    orders = [[name for name, _ in sorted(program.order.items(), key=lambda item: item[1])] for program in programs]
    assert orders[0] == orders[1] and NAME in orders[0]


@pytest.mark.once
def test_workers_compare_it(added):
    step = Rewritten(model(), Config({}), planning.cluster(2, 2, 0), 7).step((), ("train",), ())
    assert any(line.startswith(NAME + ": all_reduce of norms, 2 workers") for line in step.lines())


@pytest.mark.once
def test_nothing_of_it_stays():
    program = of_workers(model())[0]
    assert NAME not in program.graph.nodes and NAME not in {each.name for each in program.plan.collectives}


@pytest.mark.once
def test_contributing_names_the_places():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(root, "CONTRIBUTING.md"), encoding="utf-8") as stream:
        text = stream.read()
    for module in (collectives, compiler, promises):
        assert os.path.relpath(module.__file__, root) in text
