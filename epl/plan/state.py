"""State that training changes outside of optimizers: moving averages, metrics' totals, counters.

Every copy of the model changes its own copy of such a variable. Where the change differs from copy to copy, it is
merged, so that the copies stay the same: the mean for floating-point values, as if one device had seen the mean of the
copies' statistics; the sum for counters and for local variables (metrics' totals), as if one device had seen all data.
What is added to a metric's variable is summed even where it is the same everywhere, such as the size of a batch.
"""

import logging
from dataclasses import dataclass, replace
from typing import Tuple

from epl.graph import tags, types
from epl.graph.index import canonical_tensor, parse_input
from epl.plan.analysis import variable_of
from epl.plan.names import PREFIX, micro_batch_name, micro_batch_tensor, tag_of
from epl.rules import effects

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
      rows: True for additions to rows of one variable: the values are indices and updates, which are gathered.
      slot, tag: as for gradients.
    """

    name: str
    values: Tuple[str, ...]
    consumers: Tuple[Tuple[str, int], ...]
    dtype: int
    mean: bool
    slot: int
    tag: int
    rows: bool = False

    def for_micro_batch(self, nodes, micro_batch):
        """The same for the copies of a micro-batch; None where there are none.

        Args:
          nodes: names of those that have copies.
          micro_batch: its number.
        """
        own = [i for i, (write, _) in enumerate(self.consumers) if write in nodes]
        if not own:
            return None
        chosen = [self.values[i] for i in own]
        values = [micro_batch_tensor(v, micro_batch) if parse_input(v).node in nodes else v for v in chosen]
        consumers = tuple((micro_batch_name(self.consumers[i][0], micro_batch), self.consumers[i][1]) for i in own)
        name = "%s_state/%s" % (PREFIX, consumers[0][0])
        return replace(self, name=name, values=tuple(values), consumers=consumers, tag=tag_of(name))

    def collectives(self):
        """(node name, tag) of the collectives that merge it."""
        if not self.rows:
            return [(self.name, self.tag)]
        return [(name, tag_of(name)) for name in (self.name + "/indices", self.name + "/updates")]


def changing_writes(model, analysis):
    """The operations that change a variable outside of an optimizer: by what differs from copy to copy, or, for a
    metric's counts, by as much for every batch."""
    graph = model.graph
    found = []
    for write in analysis.writes:
        node = graph.nodes[write]
        known = model.variables.get(variable_of(graph, write))
        counts = known is not None and known.is_metric and node.op in effects.ADDS | effects.SCATTER_ADDS
        if tags.phase(node) != tags.APPLY and (counts or _varies(node, analysis)):
            found.append(write)
    return found


def plan_state(model, analysis, positions=None, stage_of=None):
    """The StateGroups of a Program; warns of changes that cannot be merged.

    Args:
      model, analysis: the Program and its Analysis.
      positions: node to the position of its worker in a crew of several; what one worker changes travels together.
      stage_of: node to stage, for models of several stages. Their changes travel apart, or the next work of a stage on
        its device would wait for those behind it.
    """
    positions, stage_of = positions or {}, stage_of or {}
    graph = model.graph
    keyed, unmerged, rows = {}, [], []
    for write in changing_writes(model, analysis):
        node = graph.nodes[write]
        known = model.variables.get(variable_of(graph, write))
        how = None if known is None or write in analysis.in_control_flow else _how(node, known)
        if how is None:
            unmerged.append(write)
        elif how == "rows":
            rows.append(_rows(graph, write, known.dtype % 100))
        else:
            # Writes that the same operations wait for always run together, so they may travel together.
            waiting = tuple(sorted({consumer for consumer, _ in graph.consumers.get(write, ())})) or (write,)
            place = (positions.get(write, 0), stage_of.get(write, 0))
            kind = (known.dtype % 100, how == "mean", place, waiting)
            keyed.setdefault(kind, []).append(write)
    if unmerged:
        _LOG.warning(
            "%d operations change variables by values that differ between the copies of the model, in a way that "
            "cannot be "
            "merged ('%s'%s); each copy keeps its own value, and a checkpoint holds that of the first.",
            len(unmerged),
            unmerged[0],
            ", ..." if len(unmerged) > 1 else "",
        )
    _warn_of_memories(graph, analysis, [w for (_, mean, _, _), writes in keyed.items() if mean for w in writes])
    return tuple(_group(graph, dtype, mean, writes) for (dtype, mean, _, _), writes in keyed.items()) + tuple(rows)


def _warn_of_memories(graph, analysis, writes):
    """A variable that is set from the data and that gradients depend on may be what a recurrent network remembers of
    each row. Nothing tells it from a moving average, so it is merged like one, but not in silence."""
    stop = frozenset(analysis.writes)
    found = []
    for variable in sorted({variable_of(graph, write) for write in writes if graph.nodes[write].op in effects.SETS}):
        users = graph.descendants([variable], stop=stop, data_only=True)
        if any(tags.phase(graph.nodes[user]) == tags.BACKWARD for user in users):
            found.append(variable)
    if found:
        _LOG.warning(
            "the model computes with '%s'%s, which each copy of the model sets from its own data; the copies' values "
            "are averaged. That is right for moving averages. It is wrong for what belongs to the rows of a batch, "
            "such as the state of a recurrent network that goes on from step to step: fetch that with "
            "epl.GraphKeys.LOCAL_CONCAT_OBJECTS and feed it to a placeholder whose first dimension is None.",
            found[0],
            " and %d other variables" % (len(found) - 1) if len(found) > 1 else "",
        )


def _how(node, variable):
    """How a change of a variable is merged: "mean", "sum", "rows", or None where it cannot be."""
    dtype = variable.dtype % 100
    is_sum = variable.is_local or dtype not in types.FLOAT_TYPES
    if dtype not in types.SUMMED_TYPES:
        return None
    if node.op in effects.SCATTER_ADDS:
        return "rows" if is_sum else None
    if node.op in effects.ADDS:
        return "sum" if is_sum else "mean"
    return "mean" if node.op in effects.SETS and dtype in types.FLOAT_TYPES else None


def _varies(node, analysis):
    values = node.input[effects.VALUE_INPUT :]
    return any(parse_input(text).node in analysis.varying for text in values if text[0] != "^")


def _rows(graph, write, dtype):
    positions = (effects.VALUE_INPUT, effects.VALUE_INPUT + 1)
    values = tuple(canonical_tensor(graph.nodes[write].input[position]) for position in positions)
    name = "%s_state/%s" % (PREFIX, write)
    return StateGroup(name, values, tuple((write, p) for p in positions), dtype, False, 0, tag_of(name), rows=True)


def _group(graph, dtype, mean, writes):
    values = tuple(canonical_tensor(graph.nodes[w].input[effects.VALUE_INPUT]) for w in writes)
    name = "%s_state/%s" % (PREFIX, writes[0])
    return StateGroup(name, values, tuple((w, effects.VALUE_INPUT) for w in writes), dtype, mean, 0, tag_of(name))
