r"""Puts a node where the copies of a model that is to be divided (epl.split) merge what they have.

    gradient -> ApplyAdam      becomes      gradient -> merge point -> ApplyAdam

Found in the whole model: of parts it could not be told any more what is a gradient, and what a mean over a batch.
"""

from dataclasses import replace

from epl.graph import tags
from epl.graph.index import canonical_tensor, node_of
from epl.graph.node_defs import Type, make_node
from epl.partition.table import ROWS_OF_COPY
from epl.passes.nodes import dtype_of, with_originals
from epl.plan.facts.merging import MEAN, SUM
from epl.plan.facts.names import PREFIX
from epl.plan.sync.batch_norm import SyncedMean
from epl.program.program import Gradient, MergePoints


def mark_merges(program, merged):
    """The program with its MergePoints, for an epl.plan.sync.merge_marks.Merged."""
    marking = _Marking(program)
    norms = marking.norms(merged.norms)  # first: what else takes a statistic takes it as it is for all copies
    points = MergePoints(
        marking.gradients(merged),
        marking.state(merged.state),
        marking.outputs(merged.outputs),
        tuple(marking.whole),
        norms,
    )
    short = {canonical_tensor(n): program.short[t] for n, t in marking.originals.items() if t in program.short}
    program = with_originals(program, marking.originals)
    return replace(program, graph=marking.edit.finish(), merge_points=points, short={**program.short, **short})


class _Marking(object):
    """Adds the nodes.

    Attributes:
      edit: the Editor that gets them.
      originals: node to the tensor for which it stands.
      whole: those of which the tensor is to be whole.
    """

    def __init__(self, program):
        self._graph = program.graph
        self.edit = program.graph.editor()
        self.originals, self.whole = {}, []

    def gradients(self, merged):
        points, made = [], {}
        for call, gradient, variable in merged.gradients:
            values, indices = (text and canonical_tensor(text) for text in gradient)
            if indices is not None:
                made[indices] = self._put(indices, merged.consumers[indices], is_whole=True)
            op = "Identity" if indices is None else ROWS_OF_COPY
            made[values] = self._put(values, merged.consumers[values], op)
            points.append((call, Gradient(made[values], made.get(indices)), variable))
        return tuple(points)

    def state(self, groups):
        found = []
        for group in groups:
            is_whole = group.how not in (SUM, MEAN)
            nodes = [self._put(t, [edge], is_whole=is_whole) for t, edge in zip(group.values, group.consumers)]
            found.append(replace(group, values=tuple(nodes), consumers=tuple((node, 0) for node in nodes)))
        return tuple(found)

    def outputs(self, sources):
        return {tensor: self._put(source, [], is_whole=True) for tensor, source in sources.items()}

    def norms(self, norms):
        return tuple(self._mean(each) if isinstance(each, SyncedMean) else each for each in norms)

    def _mean(self, norm):
        node = self._put(norm.tensor, norm.consumers, is_whole=True)
        return replace(norm, tensor=canonical_tensor(node), consumers=((node, 0),))

    def _put(self, tensor, consumers, op="Identity", is_whole=False):
        source = self._graph.nodes[node_of(tensor)]
        name = "%s_merge_point/%d/%s" % (PREFIX, len(self.originals), source.name)
        node = make_node(op, name, [tensor], source.device, T=Type(dtype_of(self._graph, tensor)))
        tagged = self._graph.nodes[consumers[0][0]] if consumers else source
        tags.inherit(node, tagged, (tags.TASKGRAPH, tags.PHASE, tags.APPLY_CALL))
        self.edit.add(node)
        for consumer, position in consumers:
            self.edit.set_input(consumer, position, name)
        self.originals[name] = tensor
        if is_whole:
            self.whole.append(name)
        return name
