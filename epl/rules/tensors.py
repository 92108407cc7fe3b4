"""What operation types do with a tensor: who hands it on, who reads a variable, who asks for a shape.

What they do besides, such as changing state, is in epl.rules.effects.
"""

# What they give is what they take, to the last bit.
SAME = frozenset(["Identity", "Snapshot", "StopGradient", "PreventGradient"])
# The same, or the same in another type.
SAME_OR_CAST = SAME | {"Cast"}

# The same numbers in the same memory, perhaps as another shape.
ALIASES = frozenset(["Identity", "Reshape", "Squeeze", "ExpandDims"])
# Those, and what only says how gradients go on.
VIEWS = ALIASES | {"StopGradient", "PreventGradient"}
# The same numbers in whatever type and shape.
KEEPS_NUMBERS = VIEWS | {"Cast"}
# What stays a tensor of all rows, or a number of them, by whatever keeps its elements.
KEEPS_ROWS = KEEPS_NUMBERS | {"CheckNumerics", "Snapshot", "EnsureShape"}
# Another shape, or order, of the same elements, as optimizers and layers make it of a variable's value.
MOVES = ALIASES | {"Transpose", "Cast"}
# Their results lie in the memory of what they take while a step runs; with loops' own edges, as TensorFlow has them.
IN_MEMORY_OF_INPUT = VIEWS | frozenset(
    "CheckNumerics Snapshot ReadVariableOp IdentityN Enter Exit NextIteration Switch Merge Bitcast".split()
)
# They hand on all that they take, several tensors too.
HAND_ALL_ON = VIEWS | {"IdentityN", "Snapshot"}

# They give the value of a variable. (An Identity does of a reference variable; of a resource it hands on the handle.)
READS = frozenset(["Identity", "ReadVariableOp"])
# The value of a variable, as it is or in another type.
READS_OR_CASTS = READS | {"Cast", "Snapshot"}
# What they give is the value of a variable, if what they take is one or its value, into loops and branches too.
READS_INSIDE = READS | {"Enter", "Cast", "Switch"}
# The value of a scalar variable, whatever shape that number has.
READS_OR_ALIASES = READS | ALIASES
# The value of a variable, in the form in which a product takes it.
READS_FOR_PRODUCTS = READS | {"Cast", "Transpose"}

# They ask for a tensor's shape as soon as it is there, and do not keep it.
SHAPE_ONLY = frozenset(["Shape", "ShapeN", "Size", "Rank"])
CONSTANTS = frozenset(["Const", "Fill"])
# They give the same on every machine for the same inputs.
EXACT = frozenset(["Const", "Fill", "Identity", "NoOp", "OnesLike", "Pack", "Reshape", "Shape", "ZerosLike"])
# A stage that has nothing else computes nothing.
NO_COMPUTATION = frozenset(["Const", "NoOp", "Placeholder", "Identity"])

DIVISIONS = frozenset(["RealDiv", "Div", "DivNoNan"])
JOINS = frozenset(["Pack", "Concat", "ConcatV2"])
SUMS = frozenset(["Add", "AddV2", "AddN"])
PRODUCTS = frozenset(["MatMul", "BatchMatMul", "BatchMatMulV2"])
# Rows of a table by their ids, as gradients of TensorFlow know them.
LOOKUPS = frozenset(["GatherV2", "Gather", "ResourceGather"])
# Batch normalisation of TensorFlow's own: of their outputs the first are the rows, their mean and their variance.
FUSED_NORMS = frozenset(["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"])
# What they give is of the type of what they take.
OF_ONE_TYPE = (
    frozenset("Identity StopGradient Mul Maximum Minimum Square Sqrt Rsqrt Exp Log Neg Pow".split())
    | (SUMS | {"Sub", "BiasAdd"})
    | DIVISIONS
)
# What the weights and ids of a sparse batch go through before a lookup, as feature columns make it.
ROW_BY_ROW = frozenset(
    "Identity Cast Shape StridedSlice Slice Pack ConcatV2 Reshape Tile ZerosLike Select SelectV2 Sqrt Add AddV2 AddN "
    "Mul RealDiv DivNoNan".split()
)
