"""One rule for each operation type, as data. See epl.partition.rule for the notation.

A type that is not here has no rule: it gets whole inputs, which is always right and costs what it costs.
"""

import re

from epl.partition import dims
from epl.partition.rule import Notation

_EACH, _FIRST, _SECOND, _JOINT = ((0,), (1,)), ((0,),), ((1,),), ((0, 1),)

_ONE, _TWO, _THREE = "...->...", "...,...->...", "...,...,...->..."


def _all(types, notation):
    return {op: notation for op in types.split()}


RULES = {}
# Hands on rows of which each copy of the model has another number: they come together along the first dimension, so
# that it is not divided. In the program of a shard an Identity stands for it.
ROWS_OF_COPY = "EplRowsOfCopy"
RULES[ROWS_OF_COPY] = Notation("-...->-...", linear=((0,),))

# Element by element.
RULES.update(
    _all(
        """
        Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Digamma Elu Erf Erfc Exp Expm1 Floor Inv Invert IsFinite
        IsInf IsNan LeakyRelu Lgamma Log Log1p LogicalNot Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin
        Sinh Softplus Softsign Sqrt Square Tan Tanh CheckNumerics ReadVariableOp
        """,
        Notation(_ONE),
    )
)
RULES.update(_all("Identity Neg StopGradient PreventGradient Snapshot", Notation(_ONE, linear=_FIRST)))
RULES.update(_all("ZerosLike OnesLike", Notation(_ONE, ignored=(0,))))
RULES.update(
    _all(
        """
        ApproximateEqual BitwiseAnd BitwiseOr BitwiseXor DivNoNan Div Equal FloorDiv FloorMod Greater GreaterEqual Less
        LessEqual LogicalAnd LogicalOr Maximum Minimum Mod NotEqual Pow SquaredDifference TruncateDiv TruncateMod Xdivy
        Xlogy Atan2
        """,
        Notation(_TWO),
    )
)
RULES.update(_all("Add AddV2 Sub", Notation(_TWO, linear=_JOINT)))
RULES.update(_all("Mul MulNoNan", Notation(_TWO, linear=_EACH)))
RULES.update(_all("RealDiv", Notation(_TWO, linear=_FIRST)))
RULES.update(
    _all("EluGrad LeakyReluGrad Relu6Grad ReluGrad SeluGrad SoftplusGrad SoftsignGrad", Notation(_TWO, linear=_FIRST))
)
RULES.update(_all("InvGrad ReciprocalGrad RsqrtGrad SigmoidGrad SqrtGrad TanhGrad", Notation(_TWO, linear=_SECOND)))
RULES.update(_all("SelectV2", Notation(_THREE, linear=((1, 2),))))
RULES.update(_all("ClipByValue", Notation(_THREE)))
ELEMENT_BY_ELEMENT = (frozenset(RULES) - {ROWS_OF_COPY}) | {"Cast"}

# Products.
RULES.update(
    _all(
        "BiasAdd BiasAddV1",
        dims.channels("n...c,c->n...c", "nc...,c->nc...", linear=_JOINT),
    )
)
RULES["BiasAddGrad"] = dims.channels("n...c->c", "nc...->c", linear=_FIRST)
RULES["MatMul"] = dims.mat_mul
RULES.update(_all("BatchMatMul BatchMatMulV2 BatchMatMulV3", dims.batch_mat_mul))
RULES["Einsum"] = dims.einsum
RULES["L2Loss"] = Notation("...->")
RULES["Conv2D"] = dims.channels("n--i,--io->n--o", "ni--,--io->no--", linear=_EACH, product=True)
RULES["Conv2DBackpropInput"] = dims.channels(
    "*,--io,n--o->n--i", "*,--io,no--->ni--", linear=_EACH[1:] + ((2,),), product=True
)
RULES["Conv2DBackpropFilter"] = dims.channels(
    "n--i,*,n--o->--io", "ni--,*,no--->--io", linear=((0,), (2,)), product=True
)

# Rows whole, columns whole.
RULES.update(_all("AvgPool", dims.channels("n--c->n--c", "nc--->nc--", linear=_FIRST)))
RULES.update(_all("MaxPool", dims.channels("n--c->n--c", "nc--->nc--")))
RULES["MaxPoolGrad"] = dims.channels("n--c,n--c,n--c->n--c", "nc--,nc--,nc--->nc--", linear=((2,),))
RULES["LRN"] = Notation("nhw-->nhw-")
RULES["FusedBatchNorm"] = RULES["FusedBatchNormV2"] = dims.channels(
    "---c,c,c,c,c->---c,c,c,c,c", "-c--,c,c,c,c->-c--,c,c,c,c"
)
RULES["FusedBatchNormV3"] = dims.channels("---c,c,c,c,c->---c,c,c,c,c,*", "-c--,c,c,c,c->-c--,c,c,c,c,*")
RULES["FusedBatchNormGrad"] = RULES["FusedBatchNormGradV2"] = dims.channels(
    "---c,---c,c,c,c->---c,c,c,*,*", "-c--,-c--,c,c,c->-c--,c,c,*,*"
)
RULES["FusedBatchNormGradV3"] = dims.channels("---c,---c,c,c,c,*->---c,c,c,*,*", "-c--,-c--,c,c,c,*->-c--,c,c,*,*")
RULES.update(_all("Softmax LogSoftmax", Notation("...c->...c", resolved=frozenset("c"))))
RULES["SparseSoftmaxCrossEntropyWithLogits"] = dims.sparse_loss
RULES["SoftmaxCrossEntropyWithLogits"] = Notation("bc,bc->b,bc", resolved=frozenset("c"))
RULES["TopKV2"] = Notation("...-,*->...-,...-")
RULES["InTopK"] = Notation("b-,b->b")
RULES["InTopKV2"] = Notation("b-,b,*->b")
RULES["Cumsum"] = dims.along_axis(linear=_FIRST)
RULES["Cumprod"] = dims.along_axis()
RULES["ReverseV2"] = dims.along_axis(linear=_FIRST)

# Reductions.
RULES["Sum"] = dims.reduction("sum", linear=_FIRST)
RULES["Mean"] = dims.reduction("sum", linear=_FIRST)
RULES["Max"] = dims.reduction("max")
RULES["Min"] = dims.reduction("min")
RULES["Prod"] = dims.reduction("prod")
RULES["All"] = dims.reduction("min")
RULES["Any"] = dims.reduction("max")
RULES.update(_all("ArgMax ArgMin", dims.arg_max))

# What only moves elements.
RULES["Cast"] = dims.cast
RULES["Transpose"] = dims.transpose
RULES["Reshape"] = dims.reshape("*")
RULES["ExpandDims"] = dims.reshape("*")
RULES["Squeeze"] = dims.reshape()
RULES["AddN"] = dims.variadic("...", linear=True)
RULES["Pack"] = dims.pack
RULES["Unpack"] = dims.unpack
RULES["ConcatV2"] = dims.concat
RULES["Split"] = dims.split
RULES["SplitV"] = dims.split_v
RULES["Slice"] = dims.slice_
RULES["StridedSlice"] = dims.strided_slice
RULES["StridedSliceGrad"] = dims.strided_slice_grad
RULES.update(_all("Pad PadV2 MirrorPad", dims.pad))
RULES["Select"] = dims.select
RULES["GatherV2"] = dims.gather
RULES["Gather"] = dims.gather
RULES["ResourceGather"] = dims.gather
RULES["UnsortedSegmentSum"] = dims.unsorted_segment_sum
RULES["OneHot"] = dims.one_hot
RULES["Fill"] = dims.made("*,->...")
RULES["BroadcastTo"] = dims.made("...,*->...", linear=_FIRST)
RULES["Tile"] = dims.tile

# Of these only the shape matters, and it is that of the whole.
RULES.update(_all("Shape Size Rank VariableShape", Notation("?->*")))
RULES["ShapeN"] = dims.shape_n
RULES.update(_all("IsVariableInitialized VarIsInitializedOp", Notation("?->*")))

# References to a variable in a branch and behind it.
RULES["RefSwitch"] = Notation("...,*->...,...")
RULES["RefMerge"] = dims.ref_merge
RULES["Merge"] = dims.merge

# Variables: a change of one is divided as the variable is.
RULES.update(_all("Assign AssignAdd AssignSub", Notation("...,...->...")))
RULES.update(_all("AssignVariableOp AssignAddVariableOp AssignSubVariableOp", Notation("...,...->")))
_SCATTER = r"(Resource)?Scatter(Add|Sub|Update|Mul|Div|Min|Max)"

_FAMILIES = (
    (re.compile(r"(Resource)?SparseApply\w+$"), dims.sparse_apply),
    (re.compile(r"(Resource)?Apply\w+$"), dims.apply),
    (re.compile(_SCATTER + "$"), dims.scatter),
)

_FOUND = {}


def notation_of(node, inputs, facts):
    """The Notation of a node; None where there is no rule for its type, or none for what it does here.

    Args:
      node: NodeDef.
      inputs: the tensors that it takes.
      facts: epl.partition.facts.Facts.
    """
    op = node.op
    if op not in _FOUND:
        made = RULES.get(op)
        _FOUND[op] = made or next((make for pattern, make in _FAMILIES if pattern.match(op)), None)
    found = _FOUND[op]
    if found is None or isinstance(found, Notation):
        return found
    return found(node, inputs, facts)
