"""Small NodeDefs, made from plain values."""

from tensorflow.core.framework import node_def_pb2

from epl.graph import tags
from epl.graph.types import FLOAT32, FLOAT64, INT32, INT64, STRING, UINT64


def make_node(op, name, inputs=(), device="", **attrs):
    """A NodeDef.

    Args:
      op: operation type.
      name: node name.
      inputs: names of tensors ("a", "a:1") and control inputs ("^a").
      device: device string.
      **attrs: int, float, bool, str, bytes, a list of ints; `Type(n)` for a DataType, an AttrValue as it is.
    """
    node = node_def_pb2.NodeDef(op=op, name=name, device=device)
    node.input.extend(inputs)
    for key, value in attrs.items():
        set_attr(node, key, value)
    return node


def constant(name, value, dtype, device=""):
    """The NodeDef of a constant: of a scalar, or of a vector for a list.

    Args:
      name: node name.
      value: a number or bytes, or a list of them.
      dtype: DataType number of float32, float64, int32, string, int64 or uint64.
      device: device string.
    """
    node = make_node("Const", name, device=device, dtype=Type(dtype))
    tensor, values = node.attr["value"].tensor, value if isinstance(value, list) else [value]
    tensor.dtype = dtype
    tensor.tensor_shape.SetInParent()
    if isinstance(value, list):
        tensor.tensor_shape.dim.add().size = len(value)
    getattr(tensor, _VALUES[dtype]).extend(values)
    return node


_VALUES = {
    FLOAT32: "float_val",
    FLOAT64: "double_val",
    INT32: "int_val",
    STRING: "string_val",
    INT64: "int64_val",
    UINT64: "uint64_val",
}


class Type(int):
    """A DataType number, told apart from a plain int attribute."""


def set_attr(node, key, value):
    attr = node.attr[key]
    if isinstance(value, Type):
        attr.type = int(value)
    elif isinstance(value, bool):
        attr.b = value
    elif isinstance(value, int):
        attr.i = value
    elif isinstance(value, float):
        attr.f = value
    elif isinstance(value, str):
        attr.s = value.encode()
    elif isinstance(value, bytes):
        attr.s = value
    elif isinstance(value, list):
        attr.list.i.extend(value)
    else:
        attr.CopyFrom(value)


def become(node, op, inputs, **attrs):
    """Makes of a node another one of the same name, with its tags."""
    made = make_node(op, node.name, inputs, **attrs)
    for key in [key for key in node.attr if not key.startswith(tags.PREFIX)]:
        del node.attr[key]
    node.op = op
    node.input[:] = made.input
    for key, value in made.attr.items():
        node.attr[key].CopyFrom(value)
