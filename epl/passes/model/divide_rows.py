"""Devices divide what `epl.replicate(k)` holds by rows of a batch of a fixed size (epl.plan.layout.fixed_batch)."""

from epl.plan.layout.fixed_batch import with_divided_rows


def divide_rows(program, target):
    """The program with the kind of its TaskGraphs; the same program for batches of any size. No node changes."""
    return with_divided_rows(program, target.config.cluster.colocate_split_and_replicate)
