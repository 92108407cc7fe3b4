"""Where the time of training goes, by what workers have on their boards."""

import collections

_SHARES = ("in_program_s", "in_steps_s", "waited_others_s", "waited_data_s")


def shares_of(seen, then):
    """Where the time between two looks went: {"data", "others", "devices", "program"} to shares of it, the mean of all
    workers; "data" is missing where it is not measured (io.stats), and all where nothing was done.
    """
    both = [(then[worker], seen[worker]) for worker in seen if worker in then and then[worker].pid == seen[worker].pid]
    totals = collections.Counter()
    for before, after in both:
        for name in _SHARES:
            totals[name] += (getattr(after, name) or 0.0) - (getattr(before, name) or 0.0)
    whole = totals["in_program_s"] + totals["in_steps_s"]
    if whole <= 0:
        return {}
    waited = totals["waited_others_s"] + totals["waited_data_s"]
    found = {
        "others": totals["waited_others_s"] / whole,
        "devices": max(0.0, totals["in_steps_s"] - waited) / whole,
        "program": totals["in_program_s"] / whole,
    }
    if any(after.waited_data_s is not None for _, after in both):
        found["data"] = totals["waited_data_s"] / whole
    return found


def shares_text(seen, then):
    """The same in words."""
    shares = shares_of(seen, then)
    order = ("data", "others", "devices", "program")
    return ", ".join("%s %.0f %%" % (name, 100 * shares[name]) for name in order if name in shares)
