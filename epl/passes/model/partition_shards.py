r"""Divides the variables of `epl.split` scopes, and what is computed of them, over devices: the program of one of them.
So are the rows of what `epl.replicate` holds beside it, or by itself where its batch has a fixed size.

    x -> MatMul(w [n, 1000]) -> loss      becomes      x -> MatMul(w [n, 500]) -> rows' sums -> all-reduce -> loss

What the devices exchange are nodes of their own (epl.partition.partitioned); epl.passes.sync.join_shards joins them
once there are copies.
"""

from dataclasses import replace

from epl import tf_compat
from epl.partition.divide import divide


def partition_shards(program, marks):
    """The program of one of the devices that divide a model, as epl.partition.marks.Marks say.

    Raises:
      PlanError, UnsupportedError: see epl.partition.divide.
    """
    done = divide(program, marks, tf_compat.op_def)
    return replace(program, graph=done.graph, partitioned=done)
