"""State that training changes outside of optimizers: moving averages, metrics' totals, counters.

Every copy of the model changes its own copy of such a variable. Where the change differs from copy to copy, it is
merged, so that the copies stay the same: the mean for floating-point values, as if one device had seen the mean of the
copies' statistics; the sum for counters and for local variables (metrics' totals), as if one device had seen all data.
"""

import logging
from dataclasses import dataclass
from typing import Tuple

from epl.graph import tags
from epl.graph.index import canonical_tensor, parse_input
from epl.plan import ops
from epl.plan.analysis import variable_of
from epl.plan.names import PREFIX, original_name, tag_of

_LOG = logging.getLogger("epl")


@dataclass(frozen=True)
class StateGroup:
    """Changes of variables that are merged together.

    Attributes:
      name: of the all-reduce node.
      values: canonical names of the merged tensors.
      consumers: for each, the (node, input position) pairs that must see the merged value.
      dtype: DataType number.
      mean: True for the mean over instances, False for the sum.
      slot, tag: as for gradients.
    """

    name: str
    values: Tuple[str, ...]
    consumers: Tuple[Tuple[str, int], ...]
    dtype: int
    mean: bool
    slot: int
    tag: int


def changing_writes(model, analysis):
    """The operations that change a variable outside of an optimizer, by what differs from copy to copy."""
    nodes = model.graph.nodes
    return [w for w in analysis.writes if tags.phase(nodes[w]) != tags.APPLY and _varies(nodes[w], analysis)]


def plan_state(model, analysis):
    """The StateGroups of a Model; warns of changes that cannot be merged."""
    graph = model.graph
    keyed, unmerged = {}, []
    for write in changing_writes(model, analysis):
        node = graph.nodes[write]
        variable = variable_of(graph, write)
        known = model.variables.get(variable)
        inside = write in analysis.in_control_flow
        mergeable = node.op in ops.ADDS or node.op in ops.SETS
        if known is None or inside or not mergeable or known.dtype % 100 not in ops.FLOAT_TYPES | ops.INTEGER_TYPES:
            unmerged.append(write)
            continue
        adds = node.op in ops.ADDS
        dtype = known.dtype % 100
        if not adds and dtype not in ops.FLOAT_TYPES:
            unmerged.append(write)
            continue
        mean = not (adds and (known.is_local or dtype not in ops.FLOAT_TYPES))
        # Writes that the same operations wait for always run together, so they may travel together.
        micro_batch = tags.get_int(node, tags.MICRO_BATCH)
        waiting = _waiting(graph, original_name(write, micro_batch)) or (write,)
        keyed.setdefault((dtype, mean, micro_batch, waiting), []).append(write)
    if unmerged:
        _LOG.warning(
            "%d operations change variables by values that differ between the copies of the model, in a way that "
            "cannot be "
            "merged ('%s'%s); each copy keeps its own value, and a checkpoint holds that of the first.",
            len(unmerged),
            unmerged[0],
            ", ..." if len(unmerged) > 1 else "",
        )
    return tuple(_group(graph, dtype, mean, writes) for (dtype, mean, _, _), writes in keyed.items())


def _waiting(graph, write):
    """The user's own operations that wait for a write."""
    waiting = {consumer for consumer, _ in graph.consumers.get(write, ())}
    return tuple(sorted(c for c in waiting if not {tags.MICRO_BATCH, tags.ROLE} & set(graph.nodes[c].attr)))


def _varies(node, analysis):
    values = node.input[ops.VALUE_INPUT :]
    return any(parse_input(text).node in analysis.varying for text in values if text[0] != "^")


def _group(graph, dtype, mean, writes):
    values = tuple(canonical_tensor(graph.nodes[w].input[ops.VALUE_INPUT]) for w in writes)
    name = "%s_state/%s" % (PREFIX, writes[0])
    return StateGroup(name, values, tuple((w, ops.VALUE_INPUT) for w in writes), dtype, mean, 0, tag_of(name))
