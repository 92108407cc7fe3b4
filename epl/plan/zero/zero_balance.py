"""Whether each device keeps about as much as the others of what `zero.level` divides, and what hinders it."""

import collections

from epl.plan.facts.variable_sizes import size_bytes
from epl.plan.zero.zero_rows import EXCESS, LEAST_BYTES

# What has more than its share: how many times as much, and the largest that it keeps whole, with its bytes.
Uneven = collections.namedtuple("Uneven", "times variable num_bytes")


def uneven(plan):
    """The Uneven of the device that keeps most of what this worker's stages divide; None where that is about its share,
    or where all variables are too small for their rows to be divided.

    Args:
      plan: a Plan.
    """
    kept = plan.zero.state_bytes if plan.zero is not None else ()
    share = sum(kept) / float(max(1, len(kept)))
    if not kept or max(kept) <= EXCESS * share:
        return None
    fullest = kept.index(max(kept))
    sizes = {}
    for update in plan.zero.updates:
        large = update.num_bytes >= LEAST_BYTES and update.rows_of is None
        if update.owner == fullest and large and plan.has_stage(update.variable):
            names = update.slots + (update.variable,) * (update.variable in plan.zero.parameters)
            sizes[update.variable] = sum(size_bytes(plan.variables[name]) for name in names)
    if not sizes:
        return None
    variable, num_bytes = max(sizes.items(), key=lambda item: (item[1], item[0]))
    return Uneven(max(kept) / share, variable, num_bytes)
