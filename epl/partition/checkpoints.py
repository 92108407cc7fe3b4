"""Large variables whose shards write their own parts to a checkpoint and read only these: nobody needs all of one.

A checkpoint has the whole tensor under its name either way; its parts are slices of it, as TensorFlow's partitioned
variables have them.
"""

from epl.graph.index import format_input
from epl.partition.conversion import shard_sizes, shard_starts
from epl.partition.emit import type_list

# Wholes of less than this take less time than messages of their parts.
LEAST_BYTES = 64 << 10
# Of SaveV2's inputs: the file's name, tensors' names and slices come before.
FIRST_SAVED = 3


def strings_of(node, count):
    """The bytes of a constant of so many strings, of which equal ones at the end may be stored once; None where the
    node is no constant."""
    if node.op != "Const":
        return None
    tensor = node.attr["value"].tensor
    values = list(tensor.string_val)
    return values + (values[-1:] or [b""]) * (count - len(values))


def slice_text(shape, dim, start, size):
    """How TensorFlow writes a part of one dimension of a tensor, for SaveV2 and RestoreV2."""
    extents = ["%d,%d" % (start, size) if each == dim else "-" for each in range(len(shape))]
    return ("%s %s" % (" ".join(map(str, shape)), ":".join(extents))).encode()


def slice_size(text):
    """How many elements `slice_text` speaks of."""
    *shape, extents = text.decode().split()
    count = 1
    for size, extent in zip(shape, extents.split(":")):
        count *= int(size if extent == "-" else extent.split(",")[1])
    return count


def saved_by_shard(facts, choices, node):
    """Places of those inputs of a SaveV2 that it is to take from each shard; of another operation none."""
    if node.op != "SaveV2":
        return frozenset()
    inputs = facts.inputs(node.name)
    names, slices = [
        strings_of(facts.graph.nodes[each.node], len(inputs) - FIRST_SAVED) for each in inputs[1:FIRST_SAVED]
    ]
    if names is None or slices is None:
        return frozenset()
    return frozenset(
        i
        for i, tensor in enumerate(inputs)
        if i >= FIRST_SAVED and not slices[i - FIRST_SAVED] and _is_large(facts, choices.of(tensor), tensor)
    )


def _is_large(facts, placement, tensor):
    shape = facts.shape(tensor)
    return (
        placement.kind == "sharded"
        and shape is not None
        and None not in shape
        and facts.num_bytes(tensor) >= LEAST_BYTES
    )


def restored_shard(emit, facts, tensor, shape, dim):
    """The part of a shard of what a RestoreV2 gives, read from the checkpoint by itself.

    Args:
      emit: the Emit, of the operation that wants the part.
      facts: the Facts.
      tensor: what is wanted a part of.
      shape: of the whole.
      dim: the dimension that is divided.

    Returns:
      The name of the tensor; None where it does not come from a checkpoint, or is not large.
    """
    source, graph = tensor, facts.graph
    while graph.nodes[source.node].op == "Identity":
        source = facts.inputs(source.node)[0]
    node = graph.nodes[source.node]
    if node.op != "RestoreV2" or None in shape or facts.num_bytes(tensor) < LEAST_BYTES:
        return None
    prefix, names, slices = facts.inputs(node.name)
    dtypes = node.attr["dtypes"].list.type
    found = [strings_of(graph.nodes[each.node], len(dtypes)) for each in (names, slices)]
    if None in found or found[1][source.index]:
        return None
    slices = zip(shard_starts(shape[dim], emit.shards), shard_sizes(shape[dim], emit.shards))
    inputs = [
        format_input(*prefix),
        emit.strings("name", [[found[0][source.index]]] * emit.shards),
        emit.strings("slice", [[slice_text(shape, dim, start, size)] for start, size in slices]),
    ]
    inputs += [text for text in node.input if text[0] == "^"]
    return emit.add("RestoreV2", "restore", inputs, dtypes=type_list([dtypes[source.index]]))
