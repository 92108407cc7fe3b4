"""What a call of a session does to variables."""

import collections
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Tuple

from epl.graph import tags
from epl.plan.facts.analysis import touched_by, variable_of
from epl.plan.facts.constant_values import constant_digests
from epl.plan.facts.names import saved_name
from epl.program.placement import TURNED
from epl.session.added import own_beside, restored_with


@dataclass(frozen=True)
class Changes:
    """The variables, by name, that a call gives values, changes or takes.

    Attributes:
      writes: the operations that change variables, in whatever way.
      updated: the variables that these change.
      touched: those that they may change, slots of optimizers too.
      trains: whether the call applies gradients.
      shared: those that it changes in the same way in every copy of this worker.
      initialises: those that it gives first values.
      constants: those of `initialises` that every worker gives the same value, made of constants alone, to a digest of
        that.
      restores: those that passes have added, and that a checkpoint may hold from which the call reads others, to the
        tensor that is its name.
      begins_anew: those that passes have added for each rank, and that begin anew with what it initialises.
      added: other variables which passes have added and which the call needs.
      saved: those that a checkpoint takes, and that may be fed to it (local_sgd).
      averaged: whether copies may be averaged after it, as they have trained by themselves (local_sgd).
    """

    writes: FrozenSet[str] = frozenset()
    updated: FrozenSet[str] = frozenset()
    touched: FrozenSet[str] = frozenset()
    trains: bool = False
    shared: FrozenSet[str] = frozenset()
    initialises: FrozenSet[str] = frozenset()
    constants: Dict[str, bytes] = field(default_factory=dict)
    restores: Dict[str, str] = field(default_factory=dict)
    begins_anew: FrozenSet[str] = frozenset()
    added: FrozenSet[str] = frozenset()
    saved: Tuple[str, ...] = ()
    averaged: bool = False

    @property
    def is_nothing(self):
        return not (self.writes or self.initialises or self.shared or self.added or self.saved)


def changes_of(rewritten, reach):
    """The Changes of a call by its Reach."""
    plan, graph = rewritten.plan, rewritten.graph
    initialises = frozenset(reach.initial.values())
    updated = frozenset(variable_of(graph, write) for write in reach.writes).difference([None])
    local = plan.local_sgd is not None
    return Changes(
        writes=reach.writes,
        updated=updated,
        touched=frozenset().union(*(touched_by(graph, write) for write in reach.writes)),
        trains=any(tags.phase(graph.nodes[write]) == tags.APPLY for write in reach.writes),
        shared=rewritten.changed_by(reach.writes),
        initialises=initialises,
        constants=_constants(rewritten, reach) if plan.mesh.num_workers > 1 else {},
        restores=restored_with(plan, graph, reach.initial),
        begins_anew=own_beside(plan, reach.given),
        added=frozenset(v.name for v in plan.added if v.name in reach.nodes and plan.is_here(v.name)) - initialises,
        saved=tuple(name for name in plan.variables if saved_name(name) in reach.nodes) if local else (),
        averaged=local and bool(updated & plan.averaged),
    )


def _constants(rewritten, reach):
    # Each worker turns the state of a generator of random numbers after it has got worker 0's.
    plan, placed = rewritten.plan, rewritten.plan.placed
    # Only the worker of the first copy gives a variable its first value; of others it may be the second.
    initial = {w: v for w, v in reach.initial.items() if placed(v).data.begins != TURNED and not plan.is_spread(v)}
    digests = constant_digests(rewritten.graph, initial, reach.fed)
    several = {v for v, times in collections.Counter(initial.values()).items() if times > 1}
    return {initial[w]: digest for w, digest in digests.items() if initial[w] not in several}
