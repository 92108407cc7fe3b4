"""What it takes, and costs, to have a tensor otherwise along the one axis that it is partitioned over.

Sizes in bytes are of the whole tensor. A cost is what each shard sends, with the best known algorithms over a ring, and
for each collective a constant besides: one of few bytes is not free (epl.cluster.machine.Link.start_bytes).
"""

from epl.program.placement import SUM, WHOLE, WHOLE_SHAPE


def shard_sizes(size, shards):
    """How many of `size` things each shard has: the first ones have one more where it does not divide."""
    quotient, rest = divmod(size, shards)
    return [quotient + (index < rest) for index in range(shards)]


def shard_starts(size, shards):
    """The first of the things that each shard has."""
    quotient, rest = divmod(size, shards)
    return [index * quotient + min(index, rest) for index in range(shards)]


def conversion(have, want):
    """The collective that makes one placement of another, or None where each shard does it by itself.

    Returns:
      "all_reduce", "all_gather", "reduce_scatter", "all_to_all" or None.
    """
    if have == want or have == WHOLE or (want == WHOLE_SHAPE and have.kind == "partial"):
        return None
    if have.kind == "partial":
        return "reduce_scatter" if want.kind == "sharded" and have.combine == SUM else "all_reduce"
    return "all_to_all" if want.kind == "sharded" else "all_gather"


def collective_bytes(kind, num_bytes, shards):
    """Bytes that each shard sends in a collective, its start not counted.

    Args:
      kind: as `conversion` gives it.
      num_bytes: of the whole tensor.
      shards: how many there are.
    """
    sent = num_bytes * (shards - 1) / float(shards)
    return {"all_reduce": 2 * sent, "all_gather": sent, "reduce_scatter": sent, "all_to_all": sent / shards}[kind]


def route_cost(row_bytes, id_bytes, shards, link):
    """What it costs to send rows from or to their owners, in bytes over the link.

    Args:
      row_bytes: of all rows.
      id_bytes: of all their ids; 0 where the owners know them already.
      shards: how many parts.
      link: the epl.cluster.machine.Link between them.
    """
    sent = link.start_bytes + collective_bytes("all_to_all", row_bytes, shards)
    return sent if not id_bytes else sent + link.start_bytes + collective_bytes("all_to_all", id_bytes, shards)


def conversion_cost(have, want, num_bytes, shards, link):
    """What it costs to make one placement of another, in bytes over the link; 0.0 without communication."""
    kind = conversion(have, want)
    return 0.0 if kind is None else link.start_bytes + collective_bytes(kind, num_bytes, shards)
