"""Tensors as parts of a vector, and back: nodes that several passes add for what travels in one piece.

Each function takes `add`, a function (editor, node) that adds a node and returns its name.
"""

from epl.graph.index import format_input
from epl.graph.node_defs import Type, constant, make_node
from epl.graph.types import DTYPE_BYTES, INT32
from epl.plan.cost.memory import PARTS
from epl.plan.facts.variable_sizes import elements_of

# As TensorFlow aligns tensors.
_LINE_BYTES = 64


def empty(edit, name, dtype, device, add):
    """The name of a node with a vector of no elements."""
    shape = add(edit, constant(name + "/shape", [0], INT32, device))
    return add(edit, make_node("Empty", name, [shape], device, dtype=Type(dtype), init=False))


def in_lines(size, dtype):
    """Elements that a vector of so many takes up where the next one begins at a whole line of memory."""
    line = _LINE_BYTES // DTYPE_BYTES[dtype]
    return -(-int(size) // line) * line


def padded(edit, name, vectors, sizes, dtype, device, add):
    """Vectors with what fills the last line of memory of each behind it, so that `parts` finds them again.

    Args:
      name: of the nodes that are added.
      vectors: names of nodes.
      sizes: their elements.
      dtype: DataType number.
    """
    found = []
    for index, (vector, size) in enumerate(zip(vectors, sizes)):
        found.append(vector)
        missing = in_lines(size, dtype) - int(size)
        if missing:
            node = make_node("Const", "%s/pad_%d" % (name, index), device=device, dtype=Type(dtype))
            zeros = node.attr["value"].tensor
            zeros.dtype = dtype
            zeros.tensor_shape.dim.add().size = missing
            found.append(add(edit, node))
    return found


def parts(edit, name, vector, shapes, dtype, device, add):
    """The names of tensors of these shapes that one node takes a vector apart into, which is as `padded` made it.

    They share its memory. A Slice does so only if its length is a whole number of lines too, SplitV of vectors never.
    """
    starts, sizes = [0], [elements_of(shape) for shape in shapes]
    for size in sizes[:-1]:
        starts.append(starts[-1] + in_lines(size, dtype))
    node = make_node(PARTS, name, [vector], device, N=len(sizes), T=Type(dtype), starts=starts)
    for shape in shapes:
        made = node.attr["shapes"].list.shape.add()
        for size in shape:
            made.dim.add().size = int(size)
    add(edit, node)
    return [format_input(name, index) for index in range(len(sizes))]


def reshape(edit, name, tensor, shape, dtype, device, add):
    """The name of a node that gives a tensor another shape."""
    dims = add(edit, constant(name + "/shape", [int(dim) for dim in shape], INT32, device))
    node = make_node("Reshape", name, [tensor, dims], device, T=Type(dtype), Tshape=Type(INT32))
    return add(edit, node)
