r"""Puts a node where the copies of a model that is to be divided (epl.split) merge what they have.

    gradient -> ApplyAdam      becomes      gradient -> merge point -> ApplyAdam

Found in the whole model: of parts it could not be told any more what is a gradient, and what a mean over a batch.
"""

from dataclasses import replace

from epl.graph import tags
from epl.graph.build import Type, make_node
from epl.graph.index import canonical_tensor, node_of
from epl.partition.table import ROWS_OF_COPY
from epl.passes.nodes import dtype_of, with_originals
from epl.plan.facts.analysis import analyse
from epl.plan.facts.consistency import check_after_all_reduce, check_updates
from epl.plan.facts.merge_points import MergePoints
from epl.plan.facts.merging import MEAN, SUM
from epl.plan.facts.names import PREFIX
from epl.plan.layout.layout import is_split
from epl.plan.layout.stages import used_taskgraphs
from epl.plan.pipeline.micro_batches import has_micro_batches
from epl.plan.plan import mesh_of
from epl.plan.sync.gradients import find_gradients, plan_aggregation
from epl.plan.sync.state import plan_state
from epl.program.program import Gradient


def mark_merges(program, target):
    """The program with its MergePoints; the same program where nothing is divided or nothing merged.

    Raises:
      CaptureError, PlanError: copies of the model would drift apart; as of models that are not divided.
    """
    config, taskgraphs = target.config, used_taskgraphs(program)
    if program.role is not None or not is_split(taskgraphs):
        return program
    mesh = mesh_of(taskgraphs, config, target.cluster)
    if mesh.copies.size == 1 and not has_micro_batches(program, config):
        return program
    analysis = analyse(program)
    link = target.cluster.machine.link_between(target.cluster.hosts)
    aggregation = plan_aggregation(program, analysis, config.communication, link)
    if config.communication.clip_after_allreduce or program.scaled or program.short:
        check_after_all_reduce(program, analysis, aggregation)
    state = plan_state(program, analysis, aggregation)
    check_updates(program, analysis, aggregation, state)
    found = find_gradients(program, analysis, config.communication, warn=False)
    marking = _Marking(program)
    points = MergePoints(
        marking.gradients(found),
        marking.state(state),
        marking.outputs(program.merges, program.loss_sources),
        tuple(marking.whole),
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

    def gradients(self, found):
        points, made = [], {}
        for call, gradients in found.gradients:
            for gradient, variable in gradients:
                values, indices = (text and canonical_tensor(text) for text in gradient)
                if indices is not None:
                    made[indices] = self._put(indices, found.consumers[indices], is_whole=True)
                op = "Identity" if indices is None else ROWS_OF_COPY
                made[values] = self._put(values, found.consumers[values], op)
                points.append((call, Gradient(made[values], made.get(indices)), variable))
        return tuple(points)

    def state(self, groups):
        found = []
        for group in groups:
            is_whole = group.how not in (SUM, MEAN)
            nodes = [self._put(t, [edge], is_whole=is_whole) for t, edge in zip(group.values, group.consumers)]
            found.append(replace(group, values=tuple(nodes), consumers=tuple((node, 0) for node in nodes)))
        return tuple(found)

    def outputs(self, merges, sources):
        tensors = sorted({canonical_tensor(tensor) for names in merges.values() for tensor in names})
        return {tensor: self._put(sources.get(tensor, tensor), [], is_whole=True) for tensor in tensors}

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
