"""How seeds of copies are derived and set; shared by the passes that make copies draw numbers of their own."""

import hashlib

from epl.graph import tags
from epl.graph.index import node_of
from epl.graph.node_defs import Type, constant, make_node, set_attr
from epl.graph.types import UINT64
from epl.rules import effects

_SEEDS = ("seed", "seed2", "file_random_seed")


def seeds_of(node):
    """The seeds of a random operation as a tuple of numbers; empty when it has none. All 0 = not seeded."""
    return tuple(node.attr[key].i for key in _SEEDS if key in node.attr)


def set_seed(node, seed):
    """Gives a random operation a seed other than 0."""
    if "file_random_seed" in node.attr:
        set_attr(node, "file_random_seed", seed)
        return
    set_attr(node, "seed", seed)
    if "seed2" in node.attr:
        set_attr(node, "seed2", seed >> 16 or 1)


def derive(*facts):
    """A 31-bit seed other than 0 out of any facts, the same in every process."""
    return int(hashlib.sha256(repr(facts).encode()).hexdigest()[:8], 16) % (2**31 - 1) + 1


def turn_seed(node, seed, in_function=False):
    """Gives a random operation that takes its seed as an input another one, which follows from that and from `seed`.

        seed -> StatelessRandomUniform    becomes    seed -> BitwiseXor -> StatelessRandomUniform

    Args:
      node: its NodeDef, which is changed.
      seed: a number.
      in_function: the node is in the body of a function, where outputs have other names.

    Returns:
      The nodes to be added.
    """
    position = effects.SEED_INPUT[node.op]
    text = node.input[position]
    dtype = node.attr["Tseed"].type if "Tseed" in node.attr else UINT64
    key = constant("%s/seed_%d" % (node.name, seed), seed, dtype, node.device)
    if not in_function or ":" in text:
        key.input.append(
            "^" + (text.split(":")[0] if in_function else node_of(text))
        )  # in loops: the frame of the seed
    inputs = [text, key.name + (":output:0" if in_function else "")]
    turned = make_node("BitwiseXor", "%s/turned_%d" % (node.name, seed), inputs, node.device, T=Type(dtype))
    for added in (key, turned):
        for tag in node.attr:
            if tag.startswith(tags.PREFIX):
                added.attr[tag].CopyFrom(node.attr[tag])
    node.input[position] = turned.name + (":z:0" if in_function else "")
    return [key, turned]
