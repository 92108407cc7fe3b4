"""What a partition gives: one graph for all shards, with what differs between them."""

from dataclasses import dataclass
from typing import Dict, Tuple

from epl.graph.index import Graph
from epl.program.placement import Placement

# Operation types of the collectives in the graph of a shard; whoever makes the shards' copies joins them.
ALL_REDUCE, ALL_GATHER = "EplShardAllReduce", "EplShardAllGather"
REDUCE_SCATTER, ALL_TO_ALL = "EplShardReduceScatter", "EplShardAllToAll"
# Rows, and how many of them are for each shard; gives those that come, and how many from each. An all-to-all.
SEND_ROWS = "EplShardSendRows"
COLLECTIVES = {
    "all_reduce": ALL_REDUCE,
    "all_gather": ALL_GATHER,
    "reduce_scatter": REDUCE_SCATTER,
    "all_to_all": ALL_TO_ALL,
}
EXCHANGES = frozenset(COLLECTIVES.values()) | {SEND_ROWS}


@dataclass(frozen=True)
class ShardCollective:
    """One exchange between the shards.

    Attributes:
      node: its name in the graph of a shard.
      kind: "all_reduce", "all_gather", "reduce_scatter" or "all_to_all".
      tensor: what is exchanged, by its name in the graph that was partitioned; of what an operation exchanges while it
        is computed in parts, that operation.
      num_bytes: of the whole tensor.
      phase: of the step (epl.graph.tags).
      wanted_by: the operation that the tensor is brought into place for first.
    """

    node: str
    kind: str
    tensor: str
    num_bytes: int
    phase: str
    wanted_by: str


@dataclass(frozen=True)
class WholeInputs:
    """An operation without a rule that takes what is divided: it gets it whole.

    Attributes:
      node: its name.
      op: its type.
      num_bytes: of what is gathered or added up for it.
    """

    node: str
    op: str
    num_bytes: int


@dataclass(frozen=True)
class Partitioned:
    """A partitioned graph.

    Attributes:
      graph: what each shard runs. All tensors of the graph that was partitioned are in it under their names.
      shards: how many run it.
      placements: canonical tensor name to Placement, of those that are not whole.
      per_shard: node to (name of an attribute, its values by shard, each an AttrValue's bytes).
      collectives: all ShardCollectives, in the order of the graph.
      without_rule: all WholeInputs.
      brought: of tensors that were brought into another place, their canonical names to (that of the tensor in the
        graph that was partitioned, the Placement there).
    """

    graph: Graph
    shards: int
    placements: Dict[str, Placement]
    per_shard: Dict[str, Tuple[str, Tuple[bytes, ...]]]
    collectives: Tuple[ShardCollective, ...]
    without_rule: Tuple[WholeInputs, ...]
    brought: Dict[str, Tuple[str, Placement]]


def for_shard(partitioned, shard):
    """The Graph of one shard, counted from 0, with everything filled in that is its own."""
    edit = partitioned.graph.editor()
    for name, (key, values) in partitioned.per_shard.items():
        edit.node(name).attr[key].ParseFromString(values[shard])
    return edit.finish()
