"""Which workers have which node of a graph that several have parts of, see `epl.passes.worker.cut`."""

from epl.graph import tags
from epl.passes.node_workers import owner_of
from epl.plan.facts.names import clone_name


def holders_of(graph, plan):
    """dict of node to the places in `plan.owning_group` of the workers that have it, in order; all have the others.

    Nodes that passes have made are where their tags say, or where what they take is, or else what takes them.
    """
    workers, known = _Workers(plan), {}
    names = plan.owners.keys() | plan.keepers.keys()
    own = {name: workers.of(plan.owners.get(name), plan.keepers.get(name)) for name in names}
    for instance in plan.mesh.instances[1:]:
        others = own
        if plan.mesh.is_spread:
            others = {name: workers.of(plan.owner(name, instance), None) for name in own}
        known.update((clone_name(name, instance.index), owner) for name, owner in others.items())
    known.update(own)
    found, made = {}, []
    for name, node in graph.nodes.items():
        if name in known:
            found[name] = known[name]
            continue
        place, keeper = owner_of(node)
        if place is not None or keeper is not None:
            found[name] = workers.of(place, keeper)
        elif tags.EVERYWHERE not in node.attr:
            made.append(name)
    for name in made:
        near = [found[producer] for producer, index in graph.inputs[name] if index >= 0 and producer in found]
        if near:
            found[name] = tuple(sorted(set().union(*near))) if is_shared(graph.nodes[name]) else near[0]
    # A gradient that one worker alone takes still comes from all copies of the model.
    for name in reversed(made if plan.owners else ()):
        near = {found.get(c) for c, p in graph.consumers.get(name, ()) if graph.inputs[c][p].index >= 0}
        near = {workers.of_stage(each) for each in near}
        if name not in found and len(near) == 1 and None not in near:
            found[name] = near.pop()
    return found


class _Workers(object):
    """The workers that have what `Plan.owners` and `Plan.keepers` say, by their places in `Plan.owning_group`."""

    def __init__(self, plan):
        self._pipeline_workers = plan.mesh.pipeline.num_workers
        self._keepers = plan.zero.shard_group.num_workers if plan.shares_among_workers else 1
        self._known = {}

    def of(self, place, keeper):
        """Those at a place of a pipeline, None for all, of a keeper's or of all."""
        if (place, keeper) not in self._known:
            places = range(self._pipeline_workers) if place is None else [place]
            keepers = range(self._keepers) if keeper is None else [keeper]
            self._known[place, keeper] = tuple(k * self._pipeline_workers + p for k in keepers for p in places)
        return self._known[place, keeper]

    def of_stage(self, holders):
        """Those that have the same stages as some do; None for what all have."""
        if holders is None or self._keepers == 1:
            return holders
        places = {holder % self._pipeline_workers for holder in holders}
        return tuple(k * self._pipeline_workers + p for k in range(self._keepers) for p in sorted(places))


def is_shared(node):
    """Whether several workers take part in a node that passes have made, each with its own inputs."""
    return tags.get_str(node, tags.ROLE) == "collective" and "workers" in node.attr and node.attr["workers"].i > 1
