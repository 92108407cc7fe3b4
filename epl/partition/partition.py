"""Partitions a tensor program over the shards of one axis: from what is marked to the program of each shard.

    facts    what is known of tensors: shapes, types, small values
    spread   how each operation is computed in parts
    routes   where rows go to the shards that have them in their parts of tables
    postpone where partial sums are made up
    narrow   nothing is computed whole only to be divided
    rewrite  one graph with the shapes of a shard and explicit collectives

All shards run the same graph, but for some attributes (where a shard's part begins, how large it is where the parts
differ by one), which `for_shard` fills in.
"""

from epl.partition.facts import Facts
from epl.partition.narrow import narrow
from epl.partition.postpone import postpone
from epl.partition.rewrite import rewrite
from epl.partition.routes import route
from epl.partition.spread import spread


def partition(program, marks, op_def):
    """Partitions one copy of a model.

    Args:
      program: an epl.program.program.Program; graph, spec_of and stateful are looked at.
      marks: an epl.partition.spread.Marks.
      op_def: function from operation type to OpDef, None for unknown types.

    Returns:
      An epl.partition.partitioned.Partitioned.

    Raises:
      PlanError: a mark that an operation cannot fulfil.
      UnsupportedError: an operation that keeps state and is not known takes what is divided.
    """
    facts = Facts(program.graph, program.spec_of)
    choices = spread(facts, marks, op_def, program.stateful)
    choices = route(facts, choices, marks.shards)
    choices = postpone(facts, choices, marks.shards)
    choices = narrow(facts, choices, marks.shards)
    return rewrite(facts, choices, marks.shards)
