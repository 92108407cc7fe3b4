"""DataType numbers by name; types of what a node takes and gives, by its attributes and its operation's definition."""

REF = 100  # DataType numbers above 100 are references to the type below

FLOAT32, FLOAT64, FLOAT16, BFLOAT16 = 1, 2, 19, 14
INT8, INT16, INT32, INT64 = 6, 5, 3, 9
UINT8, UINT16, UINT32, UINT64 = 4, 17, 22, 23
COMPLEX64, COMPLEX128 = 8, 18
STRING, BOOL, RESOURCE, VARIANT = 7, 10, 20, 21
_NAMES = {
    FLOAT32: "float32",
    FLOAT64: "float64",
    INT32: "int32",
    UINT8: "uint8",
    INT16: "int16",
    INT8: "int8",
    STRING: "string",
    COMPLEX64: "complex64",
    INT64: "int64",
    BOOL: "bool",
    BFLOAT16: "bfloat16",
    UINT16: "uint16",
    COMPLEX128: "complex128",
    FLOAT16: "float16",
    RESOURCE: "resource",
    VARIANT: "variant",
    UINT32: "uint32",
    UINT64: "uint64",
}

# Size in bytes; only types that gradients and state can have.
DTYPE_BYTES = {BOOL: 1, INT8: 1, UINT8: 1, INT16: 2, UINT16: 2, FLOAT16: 2, BFLOAT16: 2}
DTYPE_BYTES.update({FLOAT32: 4, INT32: 4, UINT32: 4, FLOAT64: 8, INT64: 8, UINT64: 8})
FLOAT_TYPES = frozenset([FLOAT32, FLOAT64, BFLOAT16, FLOAT16])
SHORT_FLOATS = (BFLOAT16, FLOAT16)  # those of 16 bits: too short to add up in
LONG_FLOATS = frozenset([FLOAT32, FLOAT64])  # what sums of squares and means are known to be computed in
INDEX_TYPES = frozenset([INT32, INT64])
SUMMED_TYPES = FLOAT_TYPES | INDEX_TYPES  # what all-reduces take
HANDLES = frozenset([RESOURCE, VARIANT])  # they stand for what lies on one device, in one process


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


def name(dtype):
    """What people call a DataType number, e.g. "float32"."""
    return _NAMES.get(base(dtype), "DataType %d" % dtype)
