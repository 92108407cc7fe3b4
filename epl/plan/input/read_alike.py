"""What all workers read whole, before each takes its share of it, has to come in one order: what makes it so.

Shuffles and random numbers without a seed get one that all workers share. What gives elements as they happen to be
ready cannot be made alike and is refused; so is, when the workers compare what they have, other data.
"""

import hashlib
from dataclasses import dataclass
from typing import Tuple

from epl.errors import UnsupportedError
from epl.graph.types import FLOAT_TYPES
from epl.plan.facts import data_ops
from epl.plan.input.dividing import constant_of, ends_of, taken
from epl.rules import datasets, effects

# The beginning of a message of options in which `deterministic` (field 1) is false, which is not the default.
_NOT_DETERMINISTIC = b"\x08\x00"
# Where the flag "in any order" stands among the inputs, counted from the end.
_SLOPPY_INPUT = {"ParallelInterleaveDataset": -3, "ExperimentalParallelInterleaveDataset": -3}
_LIMIT_BYTES = 1 << 24


@dataclass(frozen=True)
class Alike:
    """What is done for the order, and what workers compare.

    Attributes:
      seeded: (body name, node name) of what gets a seed.
      facts: lines of text, the same on all workers.
    """

    seeded: Tuple[Tuple[str, str], ...] = ()
    facts: Tuple[str, ...] = ()


def read_alike(bodies, shares):
    """The Alike for some RecordShares.

    Raises:
      UnsupportedError: workers would see the elements that are divided in different orders.
    """
    relaxed = _relaxed(bodies)
    seeded, facts = {}, []
    for number, share in enumerate(shares):
        body = bodies.functions[share.body] if share.body else bodies.main
        for name, each in data_ops.behind(bodies, body, share.node):
            where = bodies.functions[name] if name else bodies.main
            node = where.nodes[each]
            if _is_unordered(where, node, share.body in relaxed):
                raise UnsupportedError(
                    "io.shard_dataset: the records of '%s' come in an order that differs between workers ('%s', %s, "
                    "comes before), so their shares would overlap. Divide the files instead (io.slicing=True), or let "
                    "it keep to the order (sloppy=False, deterministic=True)." % (share.node, node.name, node.op)
                )
            if _has_no_seed(where, node):
                seeded[name, each] = None
            fact = _fact(where, node)
            if fact and "divided data set %d %s" % (number, fact) not in facts:
                facts.append("divided data set %d %s" % (number, fact))
    return Alike(tuple(seeded), tuple(facts))


def _relaxed(bodies):
    """Names of the bodies whose pipelines have options that let elements come in any order."""
    found = set()
    for name, ends in ends_of(bodies).items():
        body = bodies.functions[name] if name else bodies.main
        nodes, _ = body.ancestors([taken(body, end) for end in ends])
        if any(_lets_go(body, node) for node in nodes):
            found.add(name)
    return found


def _lets_go(body, node):
    if node.op == "OptionsDataset":
        return node.attr["serialized_options"].s.startswith(_NOT_DETERMINISTIC)
    if node.op != "OptimizeDataset":
        return False
    names = data_ops.behind_identities(body, node.input[1])
    return names is None or names.op != "Const" or b"make_sloppy" in names.attr["value"].tensor.string_val


def _is_unordered(body, node, relaxed):
    if node.op in _SLOPPY_INPUT:
        sloppy = data_ops.behind_identities(body, node.input[_SLOPPY_INPUT[node.op]])
        # A flag that is not a constant may be on.
        return sloppy is None or sloppy.op != "Const" or list(sloppy.attr["value"].tensor.bool_val) != [False]
    if node.op == "ShuffleDatasetV2":  # its seeds are in a resource
        return True
    if "deterministic" in node.attr:
        said = node.attr["deterministic"].s
        return said == b"false" or (relaxed and said == b"default")
    return ("sloppy" in node.attr and (node.attr["sloppy"].b or relaxed)) and data_ops.is_dataset(node.op)


def _has_no_seed(body, node):
    if node.op in datasets.SEEDS:
        first = datasets.SEEDS[node.op]
        return all(constant_of(body, node.input[position]) == 0 for position in (first, first + 1))
    if effects.kind_of(node.op) != effects.SEEDED:
        return False
    return not any(node.attr[key].i for key in ("seed", "seed2") if key in node.attr)


def _fact(body, node):
    """What workers must have alike of a node, as text; "" of most."""
    if node.op == "ShardDataset":
        number, index = (constant_of(body, node.input[position]) for position in (1, 2))
        if number is not None and index is not None:
            return (
                "is what shard(%d, %d) of the program gives (a program that divides its data by worker sets neither "
                "io.shard_dataset nor io.slicing)" % (number, index)
            )
    if node.op in data_ops.TENSOR_SOURCES:
        tensors = [data_ops.behind_identities(body, text) for text in node.input]
        known = [each.attr["value"].tensor for each in tensors if each is not None and each.op == "Const"]
        if known:
            return "is made of %s (all workers have to name all data: each takes its share)" % _digest(known)
    return ""


def _digest(tensors):
    """Of shapes, and of contents but for floating-point numbers, which other machines may round in another way."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr((tensor.dtype, [dim.size for dim in tensor.tensor_shape.dim])).encode())
        if tensor.dtype not in FLOAT_TYPES and tensor.ByteSize() <= _LIMIT_BYTES:
            digest.update(tensor.SerializeToString())
    return digest.hexdigest()[:12]
