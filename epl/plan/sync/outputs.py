"""Tensors of which a fetch gets what the copies of the model come to together (epl.GraphKeys)."""

from dataclasses import dataclass, replace
from typing import Optional

from epl.graph import tags
from epl.graph.index import canonical_tensor, node_of
from epl.plan.facts.merge_points import source_of
from epl.plan.facts.names import merged_name
from epl.plan.facts.variable_sizes import known_bytes
from epl.program.collective import ALL_GATHER, ALL_REDUCE, OUTPUTS, UNORDERED, collective

_CONCAT = "concat"


@dataclass(frozen=True)
class Merge:
    """A tensor whose fetched value is merged over instances.

    Attributes:
      tensor: canonical name.
      source: the tensor that is merged: this one, or what stands for it in a model that is divided.
      name: the node that merges it.
      how: "mean", "sum" or "concat".
      over_workers: over all workers' instances, or this worker's only.
      num_bytes: of what each copy of the model gives; None where the data says it.
    """

    tensor: str
    source: str
    name: str
    how: str
    over_workers: bool
    num_bytes: Optional[int] = None


def merges_of(model):
    """The Merges of a Program, for each tensor in each collection."""
    found = []
    for key in sorted(model.merges):
        where, how, _ = key.split("_")
        for tensor in model.merges[key]:
            tensor = canonical_tensor(tensor)
            name = merged_name(tensor, key)
            source = source_of(model, tensor)
            size = known_bytes(model, source)
            found.append(Merge(tensor, source, name, how, where == "global", size))
    return tuple(found)


def output_collectives(plan):
    """A Collective of each Merge of a Plan; no step of training needs them, but who fetches them."""
    found = []
    for merge in plan.merges:
        gathers, num_bytes = merge.how == _CONCAT, merge.num_bytes
        here = len(plan.mesh.givers(stage=plan.stage(merge.source)))
        if gathers and num_bytes is not None:
            num_bytes *= here
        each = collective(
            merge.name,
            ALL_GATHER if gathers else ALL_REDUCE,
            OUTPUTS,
            (merge.source,),
            plan.group_of(merge.source),
            0,
            num_bytes,
            None,
            tags.FORWARD,
            stage=plan.stage(merge.source),
            times=0,
            takes_part=plan.has_stage(node_of(merge.source)),
        )
        if not merge.over_workers:
            each = replace(each, workers=1, devices=here, turn=UNORDERED)
        found.append(each)
    return found
