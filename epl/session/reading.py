"""From where a call of a session takes batches on this worker, and when these are read."""

import collections
from dataclasses import dataclass
from typing import Tuple

from epl.graph.bodies import Bodies
from epl.plan.facts import data_ops
from epl.plan.facts.names import time_names
from epl.plan.input.prefetch import Prefetched
from epl.rules import effects
from epl.session.ahead import loads_of


@dataclass(frozen=True)
class Reading:
    """Of one call.

    Attributes:
      sources: names of the operations here from which it takes a batch: iterators, queues, readers.
      loads: the Prefetched of which it takes the batches that were read ahead.
      restarts: those whose iterators it makes anew.
      iterators: (iterator, how many elements it takes of it) for those whose position checkpoints keep.
      begun: (iterator, initializer) for those of them that it makes begin their data.
      times: of a training step, tensors with when each operation that gives a batch began and ended (io.stats).
    """

    sources: Tuple[str, ...] = ()
    loads: Tuple[Prefetched, ...] = ()
    restarts: Tuple[Prefetched, ...] = ()
    iterators: Tuple[Tuple[str, int], ...] = ()
    begun: Tuple[Tuple[str, str], ...] = ()
    times: Tuple[str, ...] = ()
    timed: bool = False

    @property
    def is_plain(self):
        """Whether the operations of the call do all that there is to it."""
        return not (self.loads or self.restarts or self.times)


def sources_of(rewritten, nodes):
    """Those of the nodes of the whole graph that this worker has and that give batches, in order."""
    graph = rewritten.graph
    return tuple(graph.in_order({n for n in nodes if graph.nodes[n].op in effects.SOURCES and rewritten.has(n)}))


def reading_of(rewritten, nodes, sources, changes):
    """The Reading of a call that runs these nodes of the whole graph.

    Args:
      rewritten: the Rewritten.
      nodes: names.
      sources: what `sources_of` gives.
      changes: the Changes of the call.
    """
    plan, held = rewritten.plan, rewritten.own_graph.nodes
    loads, restarts = loads_of(plan, rewritten.own_graph, nodes)
    times = ()
    if plan.io_stats and changes.writes:
        timed = [time_names(name) for name in rewritten.graph.in_order(nodes) if time_names(name)[1] in held]
        times = tuple(name + ":0" for names in timed for name in names)
    iterators, begun = _positions(rewritten, nodes, sources) if plan.positions else ((), ())
    timed = plan.io_stats and bool(changes.writes) and bool(times or loads)
    return Reading(sources, loads, restarts, iterators, begun, times, timed)


def _positions(rewritten, nodes, sources):
    """(iterators, begun) of a Reading. One that is read by a handle may be any of those that have one."""
    main = Bodies(rewritten.own_graph).main
    kept = {each.iterator for each in rewritten.plan.positions}
    counts = collections.OrderedDict()
    for name in sources:
        node = main.nodes[name]
        if node.op in data_ops.GET_NEXT:
            iterator = data_ops.iterator_of(main, node.input[0])
            for each in kept if iterator is None else kept & {iterator}:
                counts[each] = counts.get(each, 0) + 1
    makers = (name for name in nodes if name in main.nodes and main.nodes[name].op == "MakeIterator")
    begun = ((data_ops.iterator_of(main, main.nodes[name].input[1]), name) for name in makers)
    return tuple(sorted(counts.items())), tuple(sorted(each for each in begun if each[0] in kept))
