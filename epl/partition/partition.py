"""Partitions a tensor program over the shards of one axis: from what is marked to the program of each shard.

    facts      what is known of tensors: shapes, types, small values
    entries    what is computed of the entries of a batch that has any number in each row
    propagate  how each operation is computed in parts
    routes     where rows go to the shards that have them in their parts of tables
    postpone   where partial sums are made up
    between    what lies between products is computed in parts where that costs less
    narrow     nothing is computed whole only to be divided
    rewrite    one graph with the shapes of a shard and explicit collectives

All shards run the same graph, but for some attributes (where a shard's part begins, how large it is where the parts
differ by one), which `for_shard` fills in.
"""

from dataclasses import replace

from epl.graph.control_flow import inside_control_flow
from epl.partition.between import between
from epl.partition.facts import Facts
from epl.partition.find_entries import regions
from epl.partition.narrow import narrow
from epl.partition.postpone import postpone
from epl.partition.propagate import propagate
from epl.partition.rewrite import rewrite
from epl.partition.routes import route


def partition(program, marks, op_def):
    """Partitions one copy of a model.

    Args:
      program: an epl.program.program.Program; graph, spec_of and stateful are looked at.
      marks: an epl.partition.marks.Marks.
      op_def: function from operation type to OpDef, None for unknown types.

    Returns:
      An epl.partition.partitioned.Partitioned.

    Raises:
      PlanError: a mark that an operation cannot fulfil.
      UnsupportedError: an operation that keeps state and is not known takes what is divided.
    """
    facts, choices = _chosen(program, marks, op_def)
    choices = postpone(facts, choices, marks.shards)
    choices = between(facts, choices, marks.shards, inside_control_flow(program.graph))
    choices = narrow(facts, choices, marks.shards)
    return rewrite(facts, choices, marks.shards)


def _chosen(program, marks, op_def):
    """(Facts, Choices), without the Regions of entries of which gradients cannot go to their owners."""
    facts = Facts(program.graph, program.spec_of, marks.machine)
    taken = regions(facts, marks)
    while True:
        rows = marks.rows.difference(*(region.before for region in taken))
        choices = propagate(facts, replace(marks, rows=rows), op_def, program.stateful, taken)
        choices = route(facts, choices, marks.shards)
        fit = [
            region
            for region in taken
            if region.begins.union(region.rows).issubset(choices.routes.keys() | choices.rows)
        ]
        if len(fit) == len(taken):
            return facts, choices
        facts, taken = Facts(program.graph, program.spec_of, marks.machine), fit
