"""What is known of a partition before it is made."""

from dataclasses import dataclass, field
from typing import Dict, FrozenSet, Optional

from epl.cluster.machine import NOMINAL, Machine
from epl.program.placement import Placement


@dataclass(frozen=True)
class Marks:
    """What is to be divided, and how.

    Attributes:
      shards: how many parts.
      variables: names of the variables that are to be divided.
      tensors: canonical name of a tensor to the Placement that it is to have.
      preferred: the same of tensors which follow where that costs no more than something else.
      placements: variable to the Placement that it is to have.
      rows: nodes that compute on a batch, of which each shard is to compute its rows.
      batches: nodes that give the batch.
      machine: what the devices and the links between them can do, by which costs are compared.
      scope: "file:line" of the scope that is to hold variables which can be divided, if there is one.
    """

    shards: int
    variables: FrozenSet[str] = frozenset()
    tensors: Dict[str, Placement] = field(default_factory=dict)
    preferred: Dict[str, Placement] = field(default_factory=dict)
    placements: Dict[str, Placement] = field(default_factory=dict)
    rows: FrozenSet[str] = frozenset()
    batches: FrozenSet[str] = frozenset()
    machine: Machine = NOMINAL
    scope: Optional[str] = None
