"""Types of the inputs and outputs of a node, from its attributes and TensorFlow's definition of its operation."""

REF = 100  # DataType numbers above 100 are references to the type below

# Size in bytes of DataType numbers; only types that gradients and state can have.
DTYPE_BYTES = {1: 4, 2: 8, 3: 4, 4: 1, 5: 2, 6: 1, 9: 8, 10: 1, 14: 2, 17: 2, 19: 2, 22: 4, 23: 8}
FLOAT_TYPES = frozenset([1, 2, 14, 19])  # float32, float64, bfloat16, float16
SHORT_FLOATS = (14, 19)  # those of 16 bits
SUMMED_TYPES = FLOAT_TYPES | frozenset([3, 9])  # and int32, int64: what all-reduces take


def base(dtype):
    """The DataType number without its reference mark."""
    return dtype - REF if dtype > REF else dtype


def is_reference(dtype):
    """True for the DataType number of a reference to a variable's memory."""
    return dtype > REF


def fits(have, want):
    """Whether a tensor of the type `have` may come in where `want` is expected: a reference also gives its value."""
    return base(have) == base(want) and (have >= REF or want <= REF)


def _expand(args, node, op_def):
    """One DataType number for each tensor that `args` (input_arg or output_arg of an OpDef) stand for."""
    dtypes = []
    for arg in args:
        if arg.type_list_attr:
            types = list(_attr(node, op_def, arg.type_list_attr).list.type)
        else:
            dtype = arg.type or _attr(node, op_def, arg.type_attr).type
            count = _attr(node, op_def, arg.number_attr).i if arg.number_attr else 1
            types = [dtype] * count
        dtypes.extend(t + REF if arg.is_ref and t < REF else t for t in types)
    return dtypes


class Signatures(object):
    """Types of what nodes take and give; each combination of an operation and its attributes is worked out once.

    Args:
      op_def: function from operation type to OpDef (None for unknown types).
    """

    def __init__(self, op_def):
        self._op_def = op_def
        self._definitions = {}
        self._known = {}

    def of(self, node):
        """(DataType numbers of the data inputs, those of the outputs) of a node; None for an unknown operation."""
        op = node.op
        if op not in self._definitions:
            definition = self._op_def(op)
            self._definitions[op] = definition, _deciding(definition) if definition is not None else ()
        definition, deciding = self._definitions[op]
        if definition is None:
            return None
        attrs = node.attr
        key = (op,) + tuple([read(attrs[name]) if name in attrs else None for name, read in deciding])
        if key not in self._known:
            self._known[key] = tuple(input_dtypes(node, definition)), tuple(output_dtypes(node, definition))
        return self._known[key]


def _deciding(op_def):
    """(name, function that reads its value) of the attributes that the types follow from."""
    found = {}
    for arg in list(op_def.input_arg) + list(op_def.output_arg):
        for name, read in (
            (arg.type_list_attr, lambda attr: tuple(attr.list.type)),
            (arg.type_attr, lambda attr: attr.type),
            (arg.number_attr, lambda attr: attr.i),
        ):
            if name:
                found[name] = read
    return tuple(found.items())


def _attr(node, op_def, name):
    if name in node.attr:
        return node.attr[name]
    return next(attr.default_value for attr in op_def.attr if attr.name == name)


def output_dtypes(node, op_def):
    """DataType numbers of a node's outputs, e.g. [DT_FLOAT]."""
    return _expand(op_def.output_arg, node, op_def)


def input_dtypes(node, op_def):
    """DataType numbers that a node expects of its data inputs."""
    return _expand(op_def.input_arg, node, op_def)


_NAMES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: "string",
    8: "complex64",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    20: "resource",
    21: "variant",
    22: "uint32",
    23: "uint64",
}


def name(dtype):
    """What people call a DataType number, e.g. "float32"."""
    return _NAMES.get(base(dtype), "DataType %d" % dtype)
