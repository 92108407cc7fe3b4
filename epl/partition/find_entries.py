"""Finds the Regions of a graph: where ids of a batch are flattened, and where rows of a batch come of its entries."""

from epl.graph.index import NodeInput as Tensor
from epl.graph.index import format_input
from epl.graph.types import INDEX_TYPES
from epl.partition.entries import COMBINES, ENTRIES, RegionFinder
from epl.rules import tensors

# What may lie between ids and what combines rows.
_FORWARD = tensors.LOOKUPS | tensors.SAME_OR_CAST | frozenset("Unique Mul".split())


def regions(facts, marks):
    """The Regions of a graph, none of which has nodes of another.

    Args:
      facts: Facts of the graph.
      marks: epl.partition.marks.Marks.
    """
    if not marks.rows or not marks.variables:
        return []
    found, taken = [], set()
    for name in sorted(facts.graph.find((COMBINES | {"Reshape"}).__contains__), key=facts.graph.order.__getitem__):
        if name in taken:
            continue
        make = _flattened if facts.graph.nodes[name].op == "Reshape" else _combined
        finder = make(facts, marks, name)
        region = finder.region() if finder is not None else None
        if region is not None and taken.isdisjoint(region.strategies):
            found.append(region)
            taken.update(region.strategies)
    return found


def _combined(facts, marks, name):
    """A RegionFinder for what an operation combines that gives the rows of a batch; None where it does not."""
    if name not in marks.rows:
        return None
    inputs = facts.inputs(name)
    op, segments = facts.graph.nodes[name].op, inputs[1 if facts.graph.nodes[name].op == "SegmentSum" else 2]
    finder = RegionFinder(facts, marks, format_input(*segments))
    behind = facts.graph.ancestors([name], data_only=True)
    if op != "SegmentSum" and finder.table_of(inputs[0]):
        ids = inputs[1]
    else:
        lookups = [each for each in behind if finder.looks_up_once(each)]
        if not lookups:
            return None
        last = max(lookups, key=facts.graph.order.__getitem__)
        ids = facts.inputs(facts.inputs(last)[1].node)[0]
    finder.cut(ids, ("ids", ENTRIES))
    finder.cut(segments, ("segments",))
    finder.begin_at([name] + [each for each in behind if facts.graph.nodes[each].op in _FORWARD])
    finder.wanted.add(name)
    return finder


def _flattened(facts, marks, name):
    """A RegionFinder for the lookups of ids that a Reshape flattens; None where it does something else."""
    given, out = facts.inputs(name)[0], Tensor(name, 0)
    before, after, target = facts.shape(given), facts.shape(out), facts.value(facts.inputs(name)[1])
    if not before or len(before) < 2 or after is None or len(after) != 1 or None in before[1:]:
        return None
    if facts.dtype(out) not in INDEX_TYPES or target is None or list(target) != [-1]:
        return None
    if before[0] is not None and (before[0] < marks.shards or before[0] % marks.shards == 0):
        return None  # parts of equal size need nothing of this
    finder = RegionFinder(facts, marks, format_input(*out), given)
    lookups = [c for c in facts.graph.edges.data_consumers.get(name, ()) if finder.looks_up(c, out)]
    if not lookups or not any(each in marks.rows for each in lookups):
        return None
    finder.begin_at([name])
    return finder
