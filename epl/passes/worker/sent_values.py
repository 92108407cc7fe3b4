r"""Values of reference variables that another worker of a pipeline needs as they are before a change of the variable.

    v -> Identity -> EplBroadcastSend      becomes      v -> Identity -> Snapshot -> EplBroadcastSend
                     Assign(v)                                                   \ (control)
                                                                                  Assign(v)

On one device the change waits, by control edges, for what uses the value. Where that is in another worker it cannot:
the change here could come before the value is sent, and what an Identity gives of a reference variable lies in the
variable's own memory. A change that takes what follows from the use there comes after it as it is: a gradient, say.
"""

from epl.graph import types
from epl.graph.control_flow import frames_of
from epl.graph.index import node_of
from epl.graph.node_defs import Type, make_node
from epl.passes.nodes import dtype_of, tagged
from epl.plan.facts.analysis import of_kernel, variable_of
from epl.plan.facts.names import PREFIX
from epl.rules import effects, tensors


def changes_after_use(graph, part):
    """dict of tensors that this worker sends to the changes here that wait for their use elsewhere.

    Args:
      graph: the whole Graph.
      part: an epl.passes.messages.Part.
    """
    found, writes, frames = {}, None, None
    for message in part.messages:
        variable = _aliased(graph, message.tensor) if message.source == part.index else None
        if variable is None:
            continue
        if writes is None:
            writes, frames = _writes(graph, part), frames_of(graph)
        mine = [write for write in writes.get(variable, ()) if write not in frames]
        if not mine:
            continue
        waiting = graph.descendants(message.consumers) - graph.descendants(message.consumers, data_only=True)
        later = [write for write in mine if write in waiting]
        if later:
            found[message.tensor] = sorted(set(found.get(message.tensor, []) + later))
    return found


def _aliased(graph, tensor):
    """The reference variable in whose memory a tensor lies, or None."""
    node = graph.nodes[node_of(tensor)]
    while node.op in tensors.ALIASES:
        node = graph.nodes[node_of(node.input[0])]
    return node.name if node.op in effects.REFERENCE_VARIABLES else None


def _writes(graph, part):
    """dict of variable to what changes it in this worker."""
    found = {}
    for name in graph.find(effects.is_write):
        if part.is_here(name):
            for variable in of_kernel(graph, name).union([variable_of(graph, name)]):
                found.setdefault(variable, []).append(name)
    return found


def add_copies(graph, edit, part):
    """Adds a copy of each such value before its changes; returns a dict of the tensors to their copies."""
    made = {}
    for tensor, changes in changes_after_use(graph, part).items():
        dtype = types.base(dtype_of(graph, tensor))
        if dtype not in types.DTYPE_BYTES:
            continue
        name, device = "%s_sent/%s" % (PREFIX, tensor.replace(":", "_output_")), graph.nodes[node_of(tensor)].device
        copy = make_node("Snapshot", name, [tensor], device, T=Type(dtype))
        made[tensor] = edit.add(tagged(copy, "copy")).name
        for change in changes:
            edit.node(change).input.append("^" + name)
    return made
