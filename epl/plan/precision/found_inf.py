"""How the workers with stages of one copy of a model come to know whether all gradients are finite (amp.loss_scale).

Each looks at the gradients of its own stages. What they say together is in all of them, and so is what follows from it:
the loss scale, its counts, and whether a step is left out.
"""

from dataclasses import dataclass
from typing import Optional, Tuple

from epl.graph import tags
from epl.graph.types import DTYPE_BYTES, INT32
from epl.plan.facts.names import PREFIX
from epl.program.collective import ALL_REDUCE, FOUND_INF, LAST, collective


@dataclass(frozen=True)
class StagesFoundInf:
    """What all workers of a pipeline say together of the gradients of a FoundInf; where copies of the pipeline share
    the state of optimizers (zero.level), all workers of these.

    Attributes:
      name: of the collective.
      packed: the node that packs what is known of each gradient.
      flags: (node that says it of one gradient, the place in the pipeline of its worker, which of the copies has it,
        None for all) triples.
      copies: how many have some alone; 1 where all have all of their stages.
    """

    name: str
    packed: str
    flags: Tuple[Tuple[str, int, Optional[int]], ...]
    copies: int

    def flags_of(self, place, copy=0):
        """The nodes of one of the workers."""
        return [name for name, own, keeper in self.flags if own == place and keeper in (None, copy)]


def stages_found_infs(plan):
    """A StagesFoundInf for each FoundInf on gradients of stages that lie in several workers."""
    if plan.mesh.pipeline.num_workers == 1:
        return []
    found = []
    for found_inf in plan.found_infs:
        flags = tuple((f, plan.owners[f], plan.keepers.get(f)) for f in found_inf.flags if f in plan.owners)
        if flags:
            copies = plan.zero.shard_group.num_workers if plan.shares_among_workers else 1
            found.append(StagesFoundInf("%s_stages/%s" % (PREFIX, found_inf.packed), found_inf.packed, flags, copies))
    return found


def judging(graph, flag):
    """The nodes that make a flag of a FoundInf of one gradient, in order; the flag comes last."""
    return [name for name in (flag + "/row", flag + "/each", flag) if name in graph.nodes]


def joined_nodes(model):
    """The nodes of a Program that join what updates of several owners say."""
    return packed_found_infs(model).union(each.joined for each in model.row_sums)


def packed_found_infs(model):
    """The nodes of a Program that all workers of a pipeline have alike, though they follow from gradients."""
    return frozenset(found_inf.packed for found_inf in model.scaled)


def gated_writes(model):
    """The operations of a Program that a step with gradients that are not finite leaves out."""
    return frozenset(write for found_inf in model.scaled for write in found_inf.gates)


def found_inf_collective(found_inf, flags, group):
    """The Collective of what workers say of gradients: a number of each.

    Args:
      found_inf: a StagesFoundInf, or an epl.plan.zero.zero.OwnersFoundInf.
      flags: the nodes that say it of one gradient.
      group: who takes part.
    """
    return collective(
        found_inf.name,
        ALL_REDUCE,
        FOUND_INF,
        flags,
        group,
        0,
        DTYPE_BYTES[INT32],
        INT32,
        tags.BACKWARD,
        consumers=((found_inf.packed, 0),),
        turn=LAST,  # when all gradients are there
        after=(),
        shift=-0.5,
    )


def stages_collectives(plan):
    """A Collective of each StagesFoundInf."""
    return [
        found_inf_collective(each, tuple(name for name, _, _ in each.flags), plan.owning_group)
        for each in stages_found_infs(plan)
    ]
