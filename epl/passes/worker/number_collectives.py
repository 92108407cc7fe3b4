"""Numbers the collectives of the graph of all workers that compute a copy of the model together: one order for all."""

from dataclasses import replace

from epl.plan.exchange.order import collective_keys, settle


def number_collectives(program, plan):
    """The Program with its `order`.

    Raises:
      PlanError: no order is possible.
    """
    keys = collective_keys(plan, program.whole)
    return replace(program, order=settle(keys, program.whole, plan, program.micro_batches.count > 1))
