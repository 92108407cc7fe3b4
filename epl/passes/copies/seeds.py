"""How seeds of instances are derived; shared by the passes that set them."""

import hashlib

from epl.graph.build import set_attr

_SEEDS = ("seed", "seed2")


def seeds_of(node):
    """The seeds of a random operation as a tuple of numbers; empty when it has none. All 0 = not seeded."""
    return tuple(node.attr[key].i for key in _SEEDS if key in node.attr)


def set_seed(node, seed):
    """Gives a random operation a seed other than 0."""
    set_attr(node, "seed", seed)
    if "seed2" in node.attr:
        set_attr(node, "seed2", seed >> 16 or 1)


def derive(*facts):
    """A 31-bit seed other than 0 out of any facts, the same in every process."""
    return int(hashlib.sha256(repr(facts).encode()).hexdigest()[:8], 16) % (2**31 - 1) + 1
