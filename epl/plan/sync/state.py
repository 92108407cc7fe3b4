"""State that training changes outside of optimizers: moving averages, metrics' totals, counters.

Every copy of the model changes its own copy of such a variable. Where the change differs from copy to copy, it is
merged, so that the copies stay the same, as if one device had seen all data. How follows from how the change is made
(see epl.plan.facts.merging); where that does not tell, what is added to integers and to local variables is summed,
other floating-point values become their mean, and the user is told. What is added to a metric's variable is summed
even where it is the same everywhere, such as the size of a batch.
"""

import logging
from dataclasses import dataclass, replace
from typing import Optional, Tuple

from epl.graph import tags, types
from epl.graph.index import canonical_tensor, node_of, parse_input
from epl.graph.types import FLOAT32
from epl.partition.facts import Facts
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.consistency import differing, merged_edges
from epl.plan.facts.merge_points import in_shard_rank
from epl.plan.facts.merging import MEAN, ROWS, SUM, Merging
from epl.plan.facts.names import PREFIX, micro_batch_name, micro_batch_tensor
from epl.plan.facts.numbers import number
from epl.plan.facts.variable_sizes import known_bytes
from epl.plan.layout.fixed_batch import known_rows
from epl.program.collective import ALL_GATHER, ALL_REDUCE, STATE, collective
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
      how: "mean", "sum", "max" or "min" over instances, or "rows" for additions to rows of one variable: the values are
        indices and updates, which are gathered.
      shard_rank: as for gradients.
      sizes: bytes of each value; None where the data says it.
      micro_batch: whose copy it is.
    """

    name: str
    values: Tuple[str, ...]
    consumers: Tuple[Tuple[str, int], ...]
    dtype: int
    how: str
    shard_rank: Optional[int] = None
    sizes: Tuple[Optional[int], ...] = ()
    micro_batch: int = 0

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
        name = in_shard_rank("%s_state/%s" % (PREFIX, consumers[0][0]), self.shard_rank)
        sizes = tuple(self.sizes[i] for i in own)
        return replace(
            self,
            name=name,
            values=tuple(values),
            consumers=consumers,
            sizes=sizes,
            micro_batch=micro_batch,
        )

    @property
    def gathered(self):
        """Names of the collectives of indices and of updates, of additions to rows."""
        return self.name + "/indices", self.name + "/updates"


def changing_writes(model, analysis, aggregation):
    """The operations that change a variable outside of an optimizer: by what differs from copy to copy once gradients
    are aggregated, or, for a metric's counts, by as much for every batch."""
    graph = model.graph
    differ = differing(graph, analysis.varying, merged_edges(aggregation, ()))
    of_rows, found = counting_writes(model, analysis), []
    for write in analysis.writes:
        node = graph.nodes[write]
        known = model.variables.get(variable_of(graph, write))
        counts = known is not None and known.is_metric and node.op in effects.ADDS | effects.SCATTER_ADDS
        counts = counts or write in of_rows
        own = known is not None and known.is_own
        if tags.phase(node) != tags.APPLY and not own and (counts or _varies(node, differ)):
            found.append(write)
    return found


def counting_writes(model, analysis):
    """The operations that add to a variable a constant which is the number of rows of a batch, as the graph knows it:
    `tf.size(labels)` of a batch of fixed size is one."""
    graph, found = model.graph, set()
    rows = known_rows(model, analysis.cloned)
    facts = None if rows is None else Facts(graph, model.spec_of)
    for write in analysis.writes if rows is not None else ():
        node = graph.nodes[write]
        if node.op in effects.ADDS and tags.phase(node) != tags.APPLY:
            value = parse_input(node.input[effects.VALUE_INPUT])
            if value.node not in analysis.varying and number(graph, facts, value) == rows:
                found.add(write)
    return found


def plan_state(model, analysis, aggregation, owners=None, stage_of=None):
    """The StateGroups of a Model; warns of changes that cannot be merged.

    Args:
      model, analysis: the Model and its Analysis.
      aggregation: of its gradients.
      owners: node to the place of its worker in a pipeline over several; what one worker changes travels together.
      stage_of: node to stage, for models of several stages. Their changes travel apart, or the next work of a stage on
        its device would wait for those behind it.
    """
    owners, stage_of = owners or {}, stage_of or {}
    graph = model.graph
    keyed, unmerged, unclear, rows, seen = {}, [], [], [], set()
    writes = changing_writes(model, analysis, aggregation)
    merging = _merging(model, analysis, aggregation, writes)
    of_rows = counting_writes(model, analysis)
    for write in writes:
        node = graph.nodes[write]
        known = model.variables.get(variable_of(graph, write))
        if known is None or write in analysis.in_control_flow or types.base(known.dtype) not in types.SUMMED_TYPES:
            unmerged.append(write)
            continue
        if node.op in effects.SCATTER_ADDS and (known.is_local or types.base(known.dtype) not in types.FLOAT_TYPES):
            rows.append(_rows(graph, write, types.base(known.dtype)))
            continue
        cuts, clear = _cuts(graph, merging, node, known, write in of_rows)
        if cuts is None:
            unmerged.append(write)
            continue
        if not clear:
            unclear.append(write)
        # Writes that the same operations wait for always run together, so they may travel together.
        waiting = tuple(sorted({consumer for consumer, _ in graph.consumers.get(write, ())})) or (write,)
        place = (owners.get(write, 0), stage_of.get(write, 0))
        for tensor, how, edge in cuts:
            if edge not in seen:
                seen.add(edge)
                keyed.setdefault((types.base(known.dtype), how, place, waiting), []).append((tensor, edge))
    _warn_of_unmerged(unmerged)
    remembered = _warn_of_memories(graph, analysis, [w for w in unclear if graph.nodes[w].op in effects.SETS])
    _warn_of_unclear(graph, [w for w in unclear if variable_of(graph, w) not in remembered])
    groups = [_group(key[0], key[1], members) for key, members in keyed.items()]
    groups += [_group(FLOAT32, SUM, [(tensor, tuple(edge))]) for tensor, edge in model.counts]
    return tuple(with_sizes(model, groups + rows))


def with_sizes(model, groups):
    """StateGroups of a Program that know how large their values are."""
    return [replace(group, sizes=tuple(known_bytes(model, value) for value in group.values)) for group in groups]


def _merging(model, analysis, aggregation, writes):
    graph = model.graph
    if not writes:
        return None
    differ = differing(graph, analysis.varying, merged_edges(aggregation, ()))
    used = [name for name, node in graph.nodes.items() if tags.phase(node) == tags.BACKWARD]
    used += [node_of(name) for names in model.merges.values() for name in names]
    return Merging(graph, writes, differ, graph.ancestors(used, data_only=True))


def _cuts(graph, merging, node, variable, counts):
    """(where and how a change is merged, whether that follows from how it is made); None where it cannot be merged.
    `counts`: it adds the number of rows of a batch.

    As Merging.cuts has it.
    """
    edge = (node.name, effects.VALUE_INPUT)
    value = canonical_tensor(node.input[effects.VALUE_INPUT])
    is_float = types.base(variable.dtype) in types.FLOAT_TYPES
    adds = node.op in effects.ADDS
    if counts or adds and variable.is_metric:
        return [(value, SUM, edge)], True
    cuts = merging.cuts(*edge) if adds or node.op in effects.SETS else None
    if cuts is not None and (is_float or all(how != MEAN for _, how, _ in cuts)):
        return cuts, True
    if adds and not (is_float and _reads(graph, node, variable)) and (variable.is_local or not is_float):
        return [(value, SUM, edge)], True  # whatever it is, it adds up
    if is_float and (adds or node.op in effects.SETS):
        return [(value, MEAN, edge)], False
    return None, False


def _reads(graph, node, variable):
    """Whether what is added to a variable depends on what it holds."""
    values = [node_of(text) for text in node.input[effects.VALUE_INPUT :] if text[0] != "^"]
    return variable.name in graph.ancestors(values, data_only=True)


def _warn_of_unmerged(writes):
    if writes:
        _LOG.warning(
            "%d operations change variables by values that differ between the copies of the model, in a way that "
            "cannot be "
            "merged ('%s'%s); each copy keeps its own value, and a checkpoint holds that of the first.",
            len(writes),
            writes[0],
            ", ..." if len(writes) > 1 else "",
        )


def _warn_of_unclear(graph, writes):
    names = sorted({variable_of(graph, write) for write in writes})
    if names:
        _LOG.warning(
            "each copy of the model changes %s by what it computes from its own data, in a way that does not tell what "
            "one device would make of all data; the copies' values are averaged. Sums, means, maxima and minima over "
            "the rows of a batch, and what follows from these by additions and by factors that are the same "
            "everywhere, are merged exactly.",
            ", ".join("'%s'" % name for name in names[:_SHOWN]) + (" and others" if len(names) > _SHOWN else ""),
        )


# Names of variables in a warning.
_SHOWN = 5


def _warn_of_memories(graph, analysis, writes):
    """A variable that is set from the data and that gradients depend on may be what a recurrent network remembers of
    each row. It is merged like a moving average, but not in silence. Returns such variables."""
    stop = frozenset(analysis.writes)
    found = []
    for variable in sorted({variable_of(graph, write) for write in writes}):
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
    return found


def _varies(node, differ):
    values = node.input[effects.VALUE_INPUT :]
    return any(parse_input(text).node in differ for text in values if text[0] != "^")


def _rows(graph, write, dtype):
    positions = (effects.VALUE_INPUT, effects.VALUE_INPUT + 1)
    values = tuple(canonical_tensor(graph.nodes[write].input[position]) for position in positions)
    name = "%s_state/%s" % (PREFIX, write)
    return StateGroup(name, values, tuple((write, p) for p in positions), dtype, ROWS)


def _group(dtype, how, members):
    """A StateGroup of (tensor, (node, input position)) pairs."""
    node, position = members[0][1]
    name = "%s_state/%s" % (PREFIX, node)
    if position != effects.VALUE_INPUT:
        name += "/input_%d" % position
    return StateGroup(name, tuple(t for t, _ in members), tuple(e for _, e in members), dtype, how)


def state_collectives(plan):
    """The Collectives of a Plan's StateGroups; two of additions to rows."""
    found = []
    for group in plan.state:
        rows = group.how == ROWS
        first = group.values[0]
        if rows:
            copies = len(plan.mesh.givers(group.shard_rank, plan.stage(first)))
            sizes = [size * copies if size is not None else None for size in group.sizes]
            parts = list(zip(group.gathered, zip(group.values), zip(group.consumers), sizes))
        else:
            total = sum(group.sizes) if None not in group.sizes else None
            parts = [(group.name, group.values, group.consumers, total)]
        for name, tensors, consumers, num_bytes in parts:
            found.append(
                collective(
                    name,
                    ALL_GATHER if rows else ALL_REDUCE,
                    STATE,
                    tensors,
                    plan.group_of(first),
                    0,
                    num_bytes,
                    None if rows and name == group.gathered[0] else group.dtype,
                    tags.FORWARD,
                    consumers=consumers,
                    shard_rank=group.shard_rank,
                    stage=plan.stage(first),
                    micro_batch=group.micro_batch,
                    takes_part=plan.has_stage(node_of(first)),
                    after=group.values,
                )
            )
    return found
