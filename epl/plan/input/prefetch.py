"""Which data sets' batches lie on the devices that compute before their step begins (io.prefetch_to_device)."""

import logging
from dataclasses import dataclass
from typing import Tuple

from epl.graph import tags, types
from epl.graph.bodies import Bodies
from epl.plan.facts import data_ops
from epl.plan.facts.names import PREFIX, clone_name, micro_batch_name

_LOG = logging.getLogger("epl")

_KEY = "io.prefetch_to_device"
_HANDLES = data_ops.ITERATOR_HANDLES | {"Identity"}
_SAVES = frozenset(["SerializeIterator", "DeserializeIterator"])
# Strings, handles and variants live on the host.
_OF_HOST = types.HANDLES | {types.STRING}


@dataclass(frozen=True)
class Prefetched:
    """An iterator that training reads.

    Attributes:
      iterator: its node.
      get_next: the node that gives its elements.
      makers: those that begin its data, each time they are run.
    """

    iterator: str
    get_next: str
    makers: Tuple[str, ...]

    @property
    def load(self):
        """The node whose run reads a batch for each copy of the model, and puts it on the copy's device."""
        return "%s_ahead/load/%s" % (PREFIX, self.get_next)

    @property
    def clear(self):
        """The node whose run throws away what has been read so."""
        return "%s_ahead/clear/%s" % (PREFIX, self.get_next)

    def copies(self, graph, plan):
        """(name, Instance) of the nodes of a rewritten graph that give the copies their batches, in the order in which
        these are read."""
        count = plan.micro_batches.count if plan.micro_batches is not None else 1
        every = [
            (clone_name(micro_batch_name(self.get_next, m), instance.index), instance)
            for m in range(count)
            for instance in plan.instances_with(self.get_next)
        ]
        return [(name, instance) for name, instance in every if graph.edges.data_consumers.get(name)]


def find_prefetched(model, analysis, mesh, config):
    """A tuple of Prefetched. What is left as it is, data sets or all of a model, is named in the log with the reason.

    Args:
      model: the Program, with one copy of the model.
      analysis: its Analysis.
      mesh: the Mesh.
      config: an epl.Config.
    """
    io = config.io
    if not io.prefetch_to_device or not model.apply_calls:
        return ()
    if len(mesh.stages) > 1 or mesh.num_shards > 1 or model.partitioned is not None:
        return _passed_over(
            "the model has several stages, or one copy of it computes on several devices (replicate or split with a "
            "device_count above 1), and these share batches"
        )
    if io.equal_steps == "repeat":
        return _passed_over('with io.equal_steps="repeat" workers agree on each batch before its step')
    if config.checkpoint.data_position:
        return _passed_over("with checkpoint.data_position data sets stand where the step has read them")
    graph, main = model.graph, Bodies(model.graph).main
    updates = [name for name in analysis.writes if tags.phase(graph.nodes[name]) == tags.APPLY]
    reads = graph.in_order(graph.find(data_ops.GET_NEXT.__contains__))

    def iterator_of(name, position=0):
        return data_ops.iterator_of(main, graph.nodes[name].input[position])

    iterators = {name: iterator_of(name) for name in reads}
    saved = {iterator_of(name) for name in graph.find(_SAVES.__contains__)}
    makers = graph.in_order(graph.find("MakeIterator".__eq__))
    used, found, left = graph.ancestors(updates), [], []
    for name in reads:
        if name not in used:
            continue
        iterator, why = iterators[name], None
        if name in analysis.in_control_flow:
            why = "is read in a branch or a loop"
        elif iterator is None:
            why = "takes data from an iterator that is fed as a string handle"
        elif list(iterators.values()).count(iterator) > 1:
            why = "is not the only get_next() of its iterator"
        elif iterator in saved:
            why = "takes data from an iterator whose place is saved in checkpoints, which would be a batch ahead"
        elif _OF_HOST & {types.base(dtype) for dtype in graph.nodes[name].attr["output_types"].list.type}:
            why = "gives strings or other things that are no numbers, which devices do not hold"
        elif any(graph.nodes[other].op not in _HANDLES for other in graph.ancestors([name]) - {name}):
            why = "waits for other operations"
        if why is None:
            found.append(Prefetched(iterator, name, tuple(n for n in makers if iterator_of(n, 1) == iterator)))
        else:
            left.append("'%s' %s" % (name, why))
    for each in left:
        _LOG.warning("%s: %s; it is read in the step, as without the key", _KEY, each)
    if not found:
        return _passed_over(
            "training reads no data set (tf.data) whose batches could lie on the device beforehand. It is for numbers "
            "that get_next() gives outside of functions, branches and loops, once for each iterator; what is fed and "
            "what queues give comes with the step"
        )
    return tuple(found)


def _passed_over(why):
    """No Prefetched at all, which the log says."""
    _LOG.warning("%s has no effect: %s.", _KEY, why)
    return ()
