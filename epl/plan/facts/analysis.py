"""What the nodes of a model do: which change variables, which every copy of the model needs, which differ by copy."""

from dataclasses import dataclass, replace
from typing import Dict, FrozenSet, Tuple

from epl.graph import tags
from epl.graph.control_flow import inside_control_flow
from epl.graph.functions import Functions
from epl.graph.index import node_of
from epl.plan.facts import data_ops
from epl.plan.facts.merge_points import merged_outputs
from epl.rules import effects, tensors

# A constant above this stays one for all copies of the model instead of being copied with them.
_LARGE_CONSTANT_BYTES = 64 * 1024


@dataclass(frozen=True)
class Analysis:
    """Facts about a Program.

    Attributes:
      writes: operations that change a variable in training; they run in every instance. In creation order.
      initial_writes: operation to the variable that it gives its first value (initialisers, restores).
      of_queues: variables that only say how far the filling of queues has come, such as the epochs that
        tf.train.input_producer counts. The threads that fill the queues change them at any time, so each worker has one
        of its own for all of its copies of the model, and no training step touches it.
      cloned: nodes that every instance has a copy of.
      varying: nodes whose value differs from instance to instance.
      in_control_flow: nodes inside a loop or a branch of control flow v1, at any depth; what closes it is among them.
    """

    writes: Tuple[str, ...]
    initial_writes: Dict[str, str]
    of_queues: FrozenSet[str]
    cloned: FrozenSet[str]
    varying: FrozenSet[str]
    in_control_flow: FrozenSet[str]


def analyse(model):
    """Analyses a Program. Of one that is partitioned each device needs first values of its own as well, and a copy of
    all that is divided."""
    graph = model.graph
    functions = Functions(graph.library)
    initial = initial_writes(model)
    callers = functions.callers(graph.nodes.values())
    changing = {name for name in graph.find(effects.is_write) if variable_of(graph, name) is not None}
    changing.update(n.name for n in callers if changes_variable(n, graph, functions))
    changing = changing.difference(initial)
    of_queues = _of_queues(graph, changing, initial)
    filling = {name for name in changing if variable_of(graph, name) in of_queues}
    writes = graph.in_order(changing - filling)
    shared = _shared(graph) | of_queues | filling
    merged = merged_outputs(model)
    collectives = graph.find(effects.COLLECTIVES.__contains__)
    of_workers = {v.name for v in model.variables.values() if v.is_own}  # for all copies of the model in each
    in_copies = [write for write, variable in initial.items() if variable not in of_workers]
    divided = _divided(model, in_copies) if model.partitioned is not None else []
    cloned = graph.ancestors(writes + merged + collectives + divided, stop=shared) - shared
    sources = graph.find(effects.DIFFERING.__contains__)
    sources += [name for name in graph.find(effects.PLACEHOLDERS.__contains__) if _fed_data(graph, graph.nodes[name])]
    sources += [n.name for n in callers if functions.calls(n, lambda body: body.op in effects.DIFFERING, "impure")]
    varying = graph.descendants(sources, stop=frozenset(writes), data_only=True)
    inside = inside_control_flow(graph).union(graph.find(effects.CONTROL_FLOW_CLOSES.__contains__))
    return Analysis(tuple(writes), initial, of_queues, frozenset(cloned), frozenset(varying), inside)


def with_copies_of(model, analysis, names):
    """The Analysis of a Program of which every instance has copies of some further nodes, and of what they need."""
    shared = _shared(model.graph) | analysis.of_queues
    return replace(analysis, cloned=analysis.cloned | (model.graph.ancestors(names, stop=shared) - shared))


def _shared(graph):
    """Nodes of which all copies of the model use one."""
    return frozenset(name for name in graph.find(_may_be_shared) if _is_shared(graph, graph.nodes[name]))


def _divided(model, initial):
    """The nodes of a partitioned program whose tensors are divided, and those that give variables values."""
    done = model.partitioned
    found = {node_of(tensor) for tensor in done.placements}
    found.update(each.node for each in done.collectives)
    found.update(done.per_shard)
    return sorted(found.union(initial), key=model.graph.creation_index.__getitem__)


def _of_queues(graph, changing, initial):
    """The variables that are changed for the filling of queues, and that nothing else comes from."""
    filling = graph.ancestors(graph.find(data_ops.ENQUEUES.__contains__)) & changing
    found = set()
    for variable in {variable_of(graph, name) for name in filling}:
        reached = graph.descendants([variable], stop=frozenset(initial))
        changes = reached & changing
        trains = any(tags.phase(graph.nodes[name]) in (tags.BACKWARD, tags.APPLY) for name in reached)
        if variable is not None and not trains and all(variable_of(graph, name) == variable for name in changes):
            found.add(variable)
    return frozenset(found)


def variable_of(graph, write):
    """The variable that a write changes, or None."""
    node = graph.nodes[write]
    while True:
        if node.op in effects.VARIABLES:
            return node.name
        if not node.input or node.input[0][0] == "^":
            return None
        node = graph.nodes[node_of(node.input[0])]


def batch_placeholder(graph, name):
    """True for placeholders whose first dimension is unknown: they are fed this worker's whole share of the batch. So
    is the shape of a sparse batch.

    Not for those that only give variables a value, as `variable.load` and its like do.
    """
    node = graph.nodes[name]
    is_fixed = tags.get_str(node, tags.SPARSE) == tags.FIXED
    if node.op not in effects.PLACEHOLDERS or is_fixed or _only_assigned(graph, name):
        return False
    shape, sparse = node.attr["shape"].shape, tags.sparse_of(node)
    is_shape = sparse is not None and sparse[1] == name
    return shape.unknown_rank or (len(shape.dim) > 0 and shape.dim[0].size < 0) or is_shape


def fixed_placeholder(graph, name):
    """True for placeholders whose first dimension is known: all copies of the model are fed the same, which may be the
    rows of a batch. Not for the parts of sparse tensors."""
    node = graph.nodes[name]
    shape = node.attr["shape"].shape
    if node.op not in effects.PLACEHOLDERS or tags.sparse_of(node) is not None or _only_assigned(graph, name):
        return False
    return not shape.unknown_rank and len(shape.dim) > 0 and shape.dim[0].size > 1


def _only_assigned(graph, name):
    """True when nothing but assignments to variables takes the node's value."""
    consumers = [graph.nodes[consumer].op for consumer, _ in graph.consumers.get(name, ())]
    return bool(consumers) and all(op in effects.SETS for op in consumers)


def _fed_data(graph, node):
    """True for placeholders that each worker, if not each copy, feeds with data of its own."""
    if _only_assigned(graph, node.name):
        return False
    shape = node.attr["shape"].shape
    return shape.unknown_rank or len(shape.dim) > 0


def _may_be_shared(op):
    return _is_always_shared(op) or op in effects.PLACEHOLDERS or op == "Const"


def _is_always_shared(op):
    return op in effects.SHARED_RESOURCES or op in effects.SHARED_EFFECTS


def _is_shared(graph, node):
    if _is_always_shared(node.op):
        return True
    if node.op in effects.PLACEHOLDERS:
        return not batch_placeholder(graph, node.name)
    return is_large_constant(node)


def is_large_constant(node):
    """True for a constant that would be a waste to copy."""
    return node.op == "Const" and node.ByteSize() > _LARGE_CONSTANT_BYTES


def initial_writes(model):
    """dict of the operations that give variables their first values, or those of a checkpoint, to the variable."""
    graph = model.graph
    found = {}
    for variable in model.variables.values():
        for name in variable.initializers:
            if name in graph.nodes:
                found[name] = variable.name
    for name in graph.find(effects.SETS.__contains__):
        if name not in found and _is_restore(graph.nodes[name], graph):
            variable = variable_of(graph, name)
            if variable is not None:
                found[name] = variable
    return found


def _is_restore(node, graph):
    """True for an assignment made by a Saver, or of a value read from a checkpoint."""
    if tags.phase(node) == tags.SAVE:
        return True
    while node.input:
        node = graph.nodes[node_of(node.input[effects.VALUE_INPUT if node.op in effects.SETS else 0])]
        if node.op in effects.RESTORES:
            return True
        if node.op not in tensors.KEEPS_NUMBERS:
            return False
    return False


def changes_variable(node, graph, functions):
    """True for a node that hands a variable to a function which changes variables."""
    if not functions.calls(node, lambda n: effects.is_write(n.op), "writes"):
        return False
    return any(_is_handle(graph, text) for text in node.input)


def _is_handle(graph, text):
    """True for a variable, also where it comes into a loop or a branch."""
    return _holder(graph, text) is not None


def _holder(graph, text):
    """The variable that an input is itself, not its value, also where it comes into a loop or a branch; or None."""
    node = graph.nodes[node_of(text)]
    while node.op in effects.HANDS_ON and node.input:
        node = graph.nodes[node_of(node.input[0])]
    return node.name if node.op in effects.VARIABLES else None


def touched_by(graph, write):
    """The variables that a write is given themselves, not their values, so that it may change them: slots too."""
    holders = {_holder(graph, text) for text in graph.nodes[write].input if text[0] != "^"}
    return holders.union([variable_of(graph, write)]) - {None}


def of_kernel(graph, write):
    """The variables that an optimizer's own operation is given, all of which it changes: slots too."""
    if "Apply" not in graph.nodes[write].op:
        return frozenset()
    return frozenset(p for p, _ in graph.inputs[write] if graph.nodes[p].op in effects.VARIABLES)


def variables_of(graph, write, functions):
    """The variables that an operation changes, itself or in the functions that it calls."""
    node = graph.nodes[write]
    if not functions.called_by(node):
        return {variable_of(graph, write)} - {None}
    texts = [text for text in node.input if text[0] != "^"]
    changed = functions.changed_inputs(node, effects.is_write)
    return {_holder(graph, text) for place, text in enumerate(texts) if place in changed} - {None}
