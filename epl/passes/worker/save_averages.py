"""Lets checkpoints be fed what variables were when the copies of the model were averaged last (local_sgd).

v -> SaveV2   becomes   v -> read -> PlaceholderWithDefault -> SaveV2
"""

from epl.graph import types
from epl.graph.index import node_of
from epl.graph.node_defs import Type, make_node
from epl.partition.checkpoints import FIRST_SAVED
from epl.passes.nodes import read_node
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.names import saved_name, saved_value_name
from epl.rules import tensors


def save_averages(program, plan):
    """A node saved_value_name(v) for each global variable v, and saved_name(v), of which each SaveV2 takes it."""
    if plan.local_sgd is None:
        return program
    graph = program.graph
    edit = graph.editor()
    variables = {name: known for name, known in plan.variables.items() if not known.is_local and name in graph.nodes}
    for name, variable in variables.items():
        dtype = types.base(variable.dtype)
        edit.add(read_node(graph.nodes[name], saved_value_name(name), dtype))
        held = make_node(
            "PlaceholderWithDefault",
            saved_name(name),
            [saved_value_name(name)],
            plan.mesh.host_device,
            dtype=Type(dtype),
        )
        held.attr["shape"].shape.unknown_rank = True
        edit.add(held)
    for save in graph.find(lambda op: op == "SaveV2"):
        for position, text in enumerate(graph.nodes[save].input):
            variable = _read_by(graph, text) if position >= FIRST_SAVED and text[0] != "^" else None
            if variable in variables:
                edit.set_input(save, position, saved_name(variable))
    return program.with_graph(edit.finish())


def _read_by(graph, text):
    """The variable whose value a tensor is; None for anything else."""
    node = graph.nodes[node_of(text)]
    while node.op in tensors.READS:
        node = graph.nodes[node_of(node.input[0])]
    return variable_of(graph, node.name) if node.input == [] else None
