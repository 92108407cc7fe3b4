"""How a value that each copy of the model computes from its own rows becomes the value of all rows.

That follows from how the value is made. A sum over the rows is the sum of the copies' sums, a mean (of as many rows in
each copy) their mean, a maximum their maximum; what follows from such values by operations that keep that, such as a
convex combination of a mean with what a variable held, is merged like them. Where a value follows from them in another
way (the smaller one of a mean and the best so far, say), these are merged before it is made.
"""

from epl.graph import tags
from epl.graph.index import canonical_tensor, node_of, parse_input
from epl.rules import effects, tensors

# What a tensor holds: the same in every copy; something for each row of the copy's batch, or how many these are; or a
# number of all the copy's rows, which is merged in one of these ways.
SAME, ROWS, COUNTS = "same", "rows", "counts"
MEAN, SUM, MAX, MIN = "mean", "sum", "max", "min"
_MERGED = frozenset([MEAN, SUM, MAX, MIN])

_REARRANGES = frozenset("StridedSlice Slice GatherV2 Gather Split SplitV Unpack Transpose Tile BroadcastTo".split())
_TERMS = frozenset("Add AddV2 Sub AddN BiasAdd".split())
_REDUCTIONS = {"Sum": SUM, "Mean": MEAN, "Max": MAX, "Min": MIN}
_EXTREMES = {"Maximum": MAX, "Minimum": MIN}
_OPPOSITE = {MAX: MIN, MIN: MAX, MEAN: MEAN, SUM: SUM, SAME: SAME, ROWS: ROWS}
_NUM_STATISTICS = 3
# Of a tensor of rows they give a tensor of rows, each from its own, whatever the other inputs are.
_ROW_BY_ROW = (
    frozenset(
        """
        Abs Acos Asin Atan Ceil Cos Cosh Elu Erf Erfc Exp Expm1 Floor Inv IsFinite IsInf IsNan LeakyRelu Lgamma Log
        Log1p LogicalNot Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softmax LogSoftmax Softplus
        Softsign Sqrt Square Tan Tanh ClipByValue Equal NotEqual Greater GreaterEqual Less LessEqual LogicalAnd
        LogicalOr Maximum Minimum Mul MulNoNan Pow FloorDiv FloorMod Mod SquaredDifference Xdivy Xlogy Select SelectV2
        OneHot SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits Conv2D MaxPool AvgPool ZerosLike
        OnesLike InTopK InTopKV2 Neg
        """.split()
    )
    | _TERMS
    | tensors.DIVISIONS
    | tensors.KEEPS_ROWS
    | tensors.FUSED_NORMS
)


class Merging(object):
    """How the tensors that some changes of variables come from are merged.

    Args:
      graph: the Graph.
      writes: names of the operations that change variables.
      differ: nodes whose values differ from copy to copy.
      kept: nodes whose inputs must stay the copy's own: those that gradients or merged outputs are computed from.
    """

    def __init__(self, graph, writes, differ, kept):
        self._graph, self._differ, self._kept = graph, differ, kept
        self._known = {}
        for name in graph.in_order(graph.ancestors(writes, stop=graph.nodes.keys() - differ, data_only=True) & differ):
            self._known[name] = self._find(graph.nodes[name])

    def cuts(self, consumer, position):
        """Where to merge so that an input of a node is the one of all rows.

        Returns:
          A list of (tensor, "mean", "sum", "max" or "min", (node, input position)); None where nothing tells.
        """
        text = self._graph.nodes[consumer].input[position]
        kind = self.kind(text)
        if kind == SAME:
            return []
        if kind in _MERGED:
            return [(canonical_tensor(text), kind, (consumer, position))]
        node = self._graph.nodes[node_of(text)]
        if kind is not None or node.name in self._kept or node.op not in tensors.OF_ONE_TYPE or _is_gradient(node):
            return None
        found = [self.cuts(node.name, p) for p, text in enumerate(node.input) if text[0] != "^"]
        return None if None in found else [cut for cuts in found for cut in cuts]

    def kind(self, text):
        """What a tensor holds, as above; None where nothing tells."""
        name, index = parse_input(text)
        if name not in self._differ:
            return SAME
        known = self._known.get(name)
        if index > 0 and known == ROWS and self._graph.nodes[name].op in tensors.FUSED_NORMS:
            return MEAN if index < _NUM_STATISTICS else None
        return known

    def _find(self, node):
        inputs = [self.kind(text) for text in node.input if text[0] != "^"]
        if _is_gradient(node):
            return None
        if node.op in effects.SOURCES or node.op in effects.PLACEHOLDERS:
            return ROWS
        if not inputs or None in inputs:
            return None
        if node.op in _REDUCTIONS:
            return self._reduced(node, inputs[0])
        if node.op in ("Shape", "Size"):
            return {ROWS: COUNTS if node.op == "Shape" else SUM}.get(inputs[0])
        if COUNTS in inputs:
            return self._counted(node, inputs)
        if ROWS in inputs:
            return self._of_rows(node, inputs)
        return _combined(node.op, inputs)

    def _reduced(self, node, kind):
        how = _REDUCTIONS[node.op]
        if kind != ROWS:
            return kind if kind == how or kind in (MEAN, SUM) and how in (MEAN, SUM) else None
        axes = self._graph.nodes[node_of(node.input[1])]
        if axes.op == "Range":
            return how  # over all dimensions, of which nothing was known
        values = _integers(axes)
        if values is None or any(value < 0 for value in values):
            return None
        return how if 0 in values else ROWS

    def _counted(self, node, inputs):
        """Sizes of a tensor of rows, of which the first is the number of rows."""
        if node.op in tensors.SAME_OR_CAST and inputs[0] == COUNTS:
            return COUNTS
        if node.op == "Prod":
            return SUM
        if node.op == "StridedSlice" and inputs[0] == COUNTS:
            begin = _integers(self._graph.nodes[node_of(node.input[1])])
            return SUM if begin == [0] and node.attr["shrink_axis_mask"].i == 1 else None
        return ROWS if node.op in ("Reshape", "BroadcastTo", "Fill", "Tile") else None

    def _of_rows(self, node, inputs):
        if node.op == "L2Loss":
            return SUM
        if node.op in tensors.PRODUCTS:
            return ROWS if inputs[0] == ROWS and inputs[1] != ROWS and not node.attr["transpose_a"].b else None
        if node.op in ("GatherV2", "Gather"):
            return ROWS if inputs[0] != ROWS else None
        return ROWS if node.op in _ROW_BY_ROW else None


def _is_gradient(node):
    return tags.phase(node) == tags.BACKWARD


def _combined(op, inputs):
    """What becomes of numbers that are of all rows already, or the same in all copies."""
    if op == "Sub":
        inputs = [inputs[0], _OPPOSITE[inputs[1]]]
    first, kinds = inputs[0], set(inputs)
    if op in tensors.KEEPS_ROWS | _REARRANGES:
        return first if kinds <= {first, SAME} and all(kind == SAME for kind in inputs[1:]) else None
    if op == "Neg":
        return _OPPOSITE[first]
    if op in _EXTREMES:
        return _EXTREMES[op] if kinds <= {SAME, _EXTREMES[op]} else None
    if op == "Mul" and kinds == {MEAN, SUM}:
        return SUM  # the mean of some rows times their number
    if op == "Mul" and inputs.count(SAME) == 1 or op in tensors.DIVISIONS and inputs[1] == SAME:
        (kind,) = kinds - {SAME}
        return kind if kind in (MEAN, SUM) else None
    if op in tensors.JOINS | _TERMS and len(kinds - {SAME}) == 1:
        (kind,) = kinds - {SAME}
        if op in _TERMS and kind in (MAX, MIN):
            return kind if inputs.count(kind) == 1 else None
        return kind if kind != SUM or SAME not in kinds else None
    return None


def _integers(node):
    """The values of a constant of integers, or None for anything else."""
    if node.op != "Const":
        return None
    tensor = node.attr["value"].tensor
    if tensor.tensor_content:
        size = {3: 4, 9: 8}.get(tensor.dtype)
        content = tensor.tensor_content
        if size is None:
            return None
        return [int.from_bytes(content[i : i + size], "little", signed=True) for i in range(0, len(content), size)]
    values = list(tensor.int_val) + list(tensor.int64_val) or [0]
    count = 1
    for dim in tensor.tensor_shape.dim:
        count *= dim.size
    return (values + values[-1:] * count)[:count]  # what is left out is like the last
