"""Which updates that epl.optimizers.fused_updates has tagged are made by kernels: those that still are what was built.

The native part decides that (csrc/ops/fuse_layer_wise.cc) when a session has given operations devices; here it is
estimated from the graph alone.
"""

from epl.graph import tags
from epl.rules import tensors

_VARIABLE_WRITE = "write_var"


def kernel_nodes(graph, on_cpu):
    """Names of the nodes in whose place kernels are put.

    Args:
      graph: the epl.graph.index.Graph of one worker.
      on_cpu: function of a node's name to whether it is on a CPU.
    """
    found = set()
    for name, node in graph.nodes.items():
        if tags.LAYER_WISE in node.attr and _id(node) == _VARIABLE_WRITE and on_cpu(name):
            found |= _update(graph, name)
    return frozenset(found)


def _tag(node):
    """(kind, id, operation type, what it takes) as epl.optimizers.fused_updates has written it."""
    kind, own, op, inputs = tags.get_str(node, tags.LAYER_WISE).split("|")
    return kind, own, op, inputs.split(",")


def _id(node):
    return _tag(node)[1]


def _update(graph, write):
    """The nodes of the update that ends in a write of its variable; none where something of it has changed."""
    found, waiting, given, read = {write}, [write], {}, {}
    while waiting:
        name = waiting.pop()
        producers, consumers = _built_from(graph, name, given, read), _taken_by(graph, name)
        if producers is None or consumers is None:
            return frozenset()
        for other in producers + consumers:
            if other not in found:
                found.add(other)
                waiting.append(other)
    is_whole = all(given.get(variable) == read[variable] for variable in read)
    return frozenset(found) if is_whole else frozenset()


def _built_from(graph, name, given, read):
    """Those of the update that a node takes; None where it takes something else now. See Update::Walk there.

    Notes in `given` what comes from outside, and in `read` the variables that are read, by their names.
    """
    _, _, op, texts = _tag(graph.nodes[name])
    if graph.nodes[name].op != op:
        return None
    found = []
    for text, source in zip(texts, graph.inputs[name]):
        if text[:1] in ("@", "="):
            noted, source = (given, source) if text[0] == "@" else (read, _variable_of(graph, source))
            if noted.setdefault(text[1:], source) != source:
                return None
        elif text[:1] != "*":  # a constant
            node = graph.nodes[source.node]
            if tags.LAYER_WISE not in node.attr or _id(node) != text.lstrip("~"):
                return None
            found.append(source.node)
    return found


def _variable_of(graph, source):
    """The variable whose value a tensor is."""
    while graph.nodes[source.node].op in tensors.READS:
        source = graph.inputs[source.node][0]
    return source


def _taken_by(graph, name):
    """Those that take what a node makes; None where one is not of an update."""
    found = []
    for consumer, _ in graph.consumers.get(name, ()):
        if not any(each.node == name and each.index >= 0 for each in graph.inputs[consumer]):
            continue
        if tags.LAYER_WISE not in graph.nodes[consumer].attr:
            return None
        found.append(consumer)
    return found
