"""Tensors as parts of a vector, and back: nodes that several passes add for what travels in one piece.

Each function takes `add`, a function (editor, node) that adds a node and returns its name.
"""

from epl.graph import tags
from epl.graph.build import Type, constant, make_node, set_attr
from epl.graph.index import format_input

_INT32 = 3


def everywhere(edit, node):
    """Adds a node that all workers have."""
    set_attr(node, tags.EVERYWHERE, True)
    return edit.add(node).name


def owned_by(owner, owners):
    """A function that adds a node and puts it down in `owners` as that of one worker."""

    def add(edit, node):
        owners[node.name] = owner
        return edit.add(node).name

    return add


def concatenated(edit, name, vectors, dtype, device, add):
    """The name of a node with some vectors one after the other."""
    if len(vectors) == 1:
        return add(edit, make_node("Identity", name, vectors, device, T=Type(dtype)))
    axis = add(edit, constant(name + "/axis", 0, _INT32, device))
    inputs = vectors + [axis]
    return add(edit, make_node("ConcatV2", name, inputs, device, N=len(vectors), T=Type(dtype), Tidx=Type(_INT32)))


def empty(edit, name, dtype, device, add):
    """The name of a node with a vector of no elements."""
    shape = add(edit, constant(name + "/shape", [0], _INT32, device))
    return add(edit, make_node("Empty", name, [shape], device, dtype=Type(dtype), init=False))


def split(edit, name, vector, sizes, dtype, device, add):
    """Tensors with the parts of a vector, which have these sizes."""
    lengths = add(edit, constant(name + "/sizes", [int(size) for size in sizes], _INT32, device))
    axis = add(edit, constant(name + "/axis", 0, _INT32, device))
    inputs, options = [vector, lengths, axis], {"T": Type(dtype), "Tlen": Type(_INT32)}
    add(edit, make_node("SplitV", name, inputs, device, num_split=len(sizes), **options))
    return [format_input(name, index) for index in range(len(sizes))]


def reshape(edit, name, tensor, shape, dtype, device, add):
    """The name of a node that gives a tensor another shape."""
    dims = add(edit, constant(name + "/shape", [int(dim) for dim in shape], _INT32, device))
    node = make_node("Reshape", name, [tensor, dims], device, T=Type(dtype), Tshape=Type(_INT32))
    return add(edit, node)
