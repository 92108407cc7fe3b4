"""What the nodes of a model do: which change variables, which every copy of the model needs, which differ by copy."""

from dataclasses import dataclass
from typing import Dict, FrozenSet, Tuple

from epl.errors import CaptureError
from epl.graph import tags
from epl.graph.functions import Functions
from epl.graph.index import node_of, parse_input
from epl.plan import ops

# A constant above this stays one for all copies of the model instead of being copied with them.
_LARGE_CONSTANT_BYTES = 64 * 1024


@dataclass(frozen=True)
class Analysis:
    """Facts about a Model.

    Attributes:
      writes: operations that change a variable in training; they run in every instance. In creation order.
      initial_writes: operation to the variable that it gives its first value (initialisers, restores).
      cloned: nodes that every instance has a copy of.
      varying: nodes whose value differs from instance to instance.
      in_control_flow: nodes inside a loop or a branch of control flow v1.
    """

    writes: Tuple[str, ...]
    initial_writes: Dict[str, str]
    cloned: FrozenSet[str]
    varying: FrozenSet[str]
    in_control_flow: FrozenSet[str]


def analyse(model):
    """Analyses a Model.

    Raises:
      CaptureError: a variable is updated with gradients that EPL has not seen.
    """
    graph = model.graph
    functions = Functions(graph.library)
    initial = _initial_writes(model)
    writes = [n.name for n in graph.nodes.values() if n.name not in initial and _changes_variable(n, graph, functions)]
    shared = frozenset(n.name for n in graph.nodes.values() if _is_shared(n))
    merged = [node_of(name) for names in model.merges.values() for name in names]
    cloned = graph.ancestors(writes + merged, stop=shared) - shared
    sources = [n.name for n in graph.nodes.values() if _differs_by_instance(n, functions)]
    varying = graph.descendants(sources, stop=frozenset(writes), data_only=True)
    inside = graph.descendants(
        [n.name for n in graph.nodes.values() if n.op in ops.CONTROL_FLOW_OPENS],
        stop=frozenset(n.name for n in graph.nodes.values() if n.op in ops.CONTROL_FLOW_CLOSES),
    )
    _check_gradients_seen(graph, writes, varying)
    return Analysis(tuple(writes), initial, frozenset(cloned), frozenset(varying), frozenset(inside))


def variable_of(graph, write):
    """The variable that a write changes, or None."""
    node = graph.nodes[write]
    while True:
        if node.op in ops.VARIABLES:
            return node.name
        if not node.input or node.input[0][0] == "^":
            return None
        node = graph.nodes[node_of(node.input[0])]
    return None


def batch_placeholder(node):
    """True for placeholders whose first dimension is unknown: they are fed this worker's whole share of the batch."""
    if node.op not in ops.PLACEHOLDERS:
        return False
    shape = node.attr["shape"].shape
    return shape.unknown_rank or (len(shape.dim) > 0 and shape.dim[0].size < 0)


def _is_shared(node):
    if node.op in ops.SHARED_RESOURCES or node.op in ops.SHARED_EFFECTS:
        return True
    if node.op in ops.PLACEHOLDERS:
        return not batch_placeholder(node)
    return is_large_constant(node)


def is_large_constant(node):
    """True for a constant that would be a waste to copy."""
    return node.op == "Const" and node.ByteSize() > _LARGE_CONSTANT_BYTES


def _initial_writes(model):
    graph = model.graph
    found = {}
    for variable in model.variables.values():
        for name in variable.initializers:
            if name in graph.nodes:
                found[name] = variable.name
    for node in graph.nodes.values():
        if node.op in ops.SETS and node.name not in found and _is_restore(node, graph):
            variable = variable_of(graph, node.name)
            if variable is not None:
                found[node.name] = variable
    return found


def _is_restore(node, graph):
    """True for an assignment made by a Saver, or of a value read from a checkpoint."""
    if tags.phase(node) == tags.SAVE:
        return True
    while node.input:
        producer = node_of(node.input[-1 if node.op in ops.SETS and len(node.input) == ops.VALUE_INPUT + 1 else 0])
        node = graph.nodes[producer]
        if node.op in ("RestoreV2", "Restore", "RestoreSlice"):
            return True
        if node.op not in ("Identity", "Reshape", "Cast"):
            return False
    return False


def _changes_variable(node, graph, functions):
    if ops.is_write(node.op):
        return variable_of(graph, node.name) is not None
    if not functions.calls(node, lambda n: ops.is_write(n.op), "writes"):
        return False
    return any(graph.nodes[node_of(text)].op in ops.VARIABLES for text in node.input)


def _differs_by_instance(node, functions):
    if node.op in ops.SOURCES or _is_impure(node) or batch_placeholder(node):
        return True
    return functions.calls(node, _is_impure, "impure")


def _is_impure(node):
    return node.op in ops.RANDOM or node.op in ops.IMPURE


def _check_gradients_seen(graph, writes, varying):
    """An optimizer that EPL did not see would train every copy on its own data alone, and they would drift apart."""
    for name in writes:
        node = graph.nodes[name]
        if "Apply" not in node.op or tags.phase(node) == tags.APPLY:
            continue
        if any(parse_input(text).node in varying for text in node.input if text[0] != "^"):
            raise CaptureError(
                "operation '%s' (%s) updates a variable with a gradient that EPL has not seen, so it could not be "
                "aggregated "
                "over the copies of the model. Call epl.init() before the optimizer is made, and build the training "
                "graph in "
                "this program (tf.train.import_meta_graph of a training graph cannot be parallelised)."
                % (name, node.op)
            )
