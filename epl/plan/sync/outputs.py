"""Tensors of which a fetch gets what the copies of the model come to together (epl.GraphKeys)."""

from dataclasses import dataclass

from epl.graph.index import canonical_tensor
from epl.plan.facts.merge_points import source_of
from epl.plan.facts.names import merged_name, tag_of


@dataclass(frozen=True)
class Merge:
    """A tensor whose fetched value is merged over instances.

    Attributes:
      tensor: canonical name.
      source: the tensor that is merged: this one, or what stands for it in a model that is divided.
      name: the node that merges it.
      how: "mean", "sum" or "concat".
      over_workers: over all workers' instances, or this worker's only.
      tag: of the collective.
    """

    tensor: str
    source: str
    name: str
    how: str
    over_workers: bool
    tag: int


def merges_of(model):
    """The Merges of a Program, for each tensor in each collection."""
    found = []
    for key in sorted(model.merges):
        where, how, _ = key.split("_")
        for tensor in model.merges[key]:
            tensor = canonical_tensor(tensor)
            name = merged_name(tensor, key)
            found.append(Merge(tensor, source_of(model, tensor), name, how, where == "global", tag_of(name)))
    return tuple(found)
