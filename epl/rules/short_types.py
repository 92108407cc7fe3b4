"""Which operation types mixed precision computes in 16 bits, as tables.

A type that is in none of them is computed in float32. Losses, exponentials, sums over many elements, normalisations
and optimizers' updates are left out on purpose: 16 bits hold too few digits, or too small a range, for them.
"""

SIXTEEN_BITS = "16 bits"  # products: most of the time goes here, and each sum is kept in float32 while it is made
FOLLOWS = "follows"  # as what it takes: in 16 bits where the data is, never where any of it comes from float32
SHAPE = "shape"  # looks at the shape only, so it takes the tensor in either type

_TYPES = {
    SIXTEEN_BITS: """
        MatMul BatchMatMul BatchMatMulV2 Einsum
        Conv2D Conv2DBackpropInput Conv2DBackpropFilter
        Conv3D Conv3DBackpropInputV2 Conv3DBackpropFilterV2
        DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropFilter
    """,
    FOLLOWS: """
        Add AddN AddV2 Sub Mul Neg BiasAdd BiasAddGrad Maximum Minimum Select SelectV2
        Relu ReluGrad Relu6 Relu6Grad LeakyRelu LeakyReluGrad Elu EluGrad Selu SeluGrad
        Tanh TanhGrad Sigmoid SigmoidGrad
        MaxPool MaxPoolGrad AvgPool AvgPoolGrad
        Identity StopGradient PreventGradient
        Reshape Transpose ExpandDims Squeeze ConcatV2 Slice StridedSlice StridedSliceGrad Pad PadV2
        MirrorPad MirrorPadGrad ReverseV2 SpaceToBatchND BatchToSpaceND DepthToSpace SpaceToDepth
    """,
    SHAPE: "Shape Size Rank",
}
_KIND_OF = {op: kind for kind, names in _TYPES.items() for op in names.split()}


def precision_of(op):
    """SIXTEEN_BITS, FOLLOWS or SHAPE; None for types that are computed in float32."""
    return _KIND_OF.get(op)
