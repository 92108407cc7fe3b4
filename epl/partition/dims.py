"""Notations that follow from attributes, from constant inputs or from the shapes of one node.

Functions `(node, inputs, facts) -> Notation`, or None where the node does something that no notation says; those with
options return such a function.
"""

import string

import numpy as np

from epl.graph import types
from epl.graph.types import INDEX_TYPES
from epl.partition.factors import reshape_terms
from epl.partition.rule import Notation

_LETTERS = string.ascii_letters
_FIRST, _EACH = ((0,),), ((0,), (1,))


def _attr(node, key, default):
    return node.attr[key] if key in node.attr else default


def _text(node, key, default=""):
    return node.attr[key].s.decode() if key in node.attr else default


def _rank(tensor, facts):
    shape = facts.shape(tensor)
    return None if shape is None or len(shape) > len(_LETTERS) - 4 else len(shape)


def _known(values):
    """A list of ints of a value in which all is known, else None."""
    if values is None or any(each is None for each in np.ravel(values)):
        return None
    return [int(each) for each in np.ravel(values)]


def channels(last, first, **options):
    """One notation for data_format NHWC, one for NCHW; none for others."""
    notations = {"": Notation(last, **options), "NHWC": Notation(last, **options), "NCHW": Notation(first, **options)}
    return lambda node, inputs, facts: notations.get(_text(node, "data_format"))


def variadic(term, linear=False):
    """Any number of inputs that all have the same dimensions as the output."""

    def make(node, inputs, facts):
        group = (tuple(range(len(inputs))),) if linear else ()
        return Notation("%s->%s" % (",".join([term] * len(inputs)), term), linear=group)

    return make


def mat_mul(node, inputs, facts):
    left = "ki" if node.attr["transpose_a"].b else "ik"
    right = "jk" if node.attr["transpose_b"].b else "kj"
    return Notation("%s,%s->ij" % (left, right), linear=_EACH, product=True)


def batch_mat_mul(node, inputs, facts):
    left = "ki" if node.attr["adj_x"].b else "ik"
    right = "jk" if node.attr["adj_y"].b else "kj"
    return Notation("...%s,...%s->...ij" % (left, right), linear=_EACH, product=True)


def einsum(node, inputs, facts):
    text = _text(node, "equation").replace(" ", "")
    left, _, right = text.partition("->")
    terms = left.split(",") + [right]
    if any(len(set(term.replace(".", ""))) != len(term.replace(".", "")) for term in terms):
        return None  # a diagonal
    return Notation(text, linear=tuple((i,) for i in range(len(inputs))), product=len(inputs) > 1)


def cast(node, inputs, facts):
    floats = node.attr["SrcT"].type in types.FLOAT_TYPES and node.attr["DstT"].type in types.FLOAT_TYPES
    return Notation("...->...", linear=_FIRST if floats else ())


def _axes(value, rank):
    """Dimensions that a list of axes names, or None."""
    axes = _known(value)
    return None if axes is None or rank is None else sorted(set(axis % rank for axis in axes if -rank <= axis < rank))


def reduction(combine, **options):
    """Some dimensions are combined; which ones is the second input."""

    def make(node, inputs, facts):
        rank = _rank(inputs[0], facts)
        axes = _axes(facts.value(inputs[1]), rank)
        if axes is None:
            return None
        term = _LETTERS[:rank]
        left = "-" if node.attr["keep_dims"].b else ""
        out = "".join(left if i in axes else letter for i, letter in enumerate(term))
        return Notation("%s,*->%s" % (term, out), combine=combine, **options)

    return make


def arg_max(node, inputs, facts):
    rank = _rank(inputs[0], facts)
    axes = _axes(facts.value(inputs[1]), rank)
    if not axes:
        return None
    at, term = axes[0], _LETTERS[:rank]
    out = term[:at] + term[at + 1 :]
    if facts.shape(inputs[0])[at] is None:  # where a part begins would not be known
        return Notation("%s-%s,*->%s" % (term[:at], term[at + 1 :], out))
    return Notation("%s,*->%s" % (term, out), resolved=frozenset(term[at]))


def sparse_loss(node, inputs, facts):
    """Classes are told apart by where a part of them begins."""
    shape = facts.shape(inputs[0])
    if not shape or shape[-1] is None:
        return Notation("b-,b->b,b-")
    return Notation("bc,b->b,bc", resolved=frozenset("c"))


def along_axis(**options):
    """Something is done along the axes that the second input names; the other dimensions stay as they are."""

    def make(node, inputs, facts):
        rank = _rank(inputs[0], facts)
        axes = _axes(facts.value(inputs[1]), rank)
        if axes is None:
            return None
        term = "".join("-" if i in axes else letter for i, letter in enumerate(_LETTERS[:rank]))
        return Notation("%s,*->%s" % (term, term), **options)

    return make


def transpose(node, inputs, facts):
    order = _known(facts.value(inputs[1]))
    if order is None or _rank(inputs[0], facts) != len(order):
        return None
    term = _LETTERS[: len(order)]
    return Notation("%s,*->%s" % (term, "".join(term[i] for i in order)), linear=_FIRST)


def reshape(*others):
    """The first input in another shape; what else there is is taken whole."""

    def make(node, inputs, facts):
        before, after = facts.shape(inputs[0]), facts.shape(inputs[0]._replace(node=node.name, index=0))
        if before is None or after is None or max(len(before), len(after)) > len(_LETTERS):
            return None
        left, right = reshape_terms(before, after)
        return Notation("%s->%s" % (",".join((left,) + others), right), linear=_FIRST)

    return make


def _joint(count):
    return (tuple(range(count)),)


def pack(node, inputs, facts):
    rank = _rank(inputs[0], facts)
    if rank is None:
        return None
    axis = node.attr["axis"].i % (rank + 1)
    term = _LETTERS[:rank]
    out = term[:axis] + "-" + term[axis:]
    return Notation("%s->%s" % (",".join([term] * len(inputs)), out), linear=_joint(len(inputs)))


def unpack(node, inputs, facts):
    rank = _rank(inputs[0], facts)
    if rank is None:
        return None
    axis, term = node.attr["axis"].i % rank, _LETTERS[:rank]
    left, right = term[:axis] + "-" + term[axis + 1 :], term[:axis] + term[axis + 1 :]
    return Notation("%s->%s" % (left, ",".join([right] * node.attr["num"].i)), linear=_FIRST)


def _term_without(axis, rank):
    return "".join("-" if i == axis % rank else letter for i, letter in enumerate(_LETTERS[:rank]))


def concat(node, inputs, facts):
    rank, axis = _rank(inputs[0], facts), _known(facts.value(inputs[-1]))
    if not rank or axis is None:
        return None
    term, count = _term_without(axis[0], rank), len(inputs) - 1
    return Notation("%s,*->%s" % (",".join([term] * count), term), linear=_joint(count))


def split(node, inputs, facts):
    rank, axis = _rank(inputs[1], facts), _known(facts.value(inputs[0]))
    if not rank or axis is None:
        return None
    term = _term_without(axis[0], rank)
    return Notation("*,%s->%s" % (term, ",".join([term] * node.attr["num_split"].i)), linear=((1,),))


def split_v(node, inputs, facts):
    rank, axis = _rank(inputs[0], facts), _known(facts.value(inputs[2]))
    if not rank or axis is None:
        return None
    term = _term_without(axis[0], rank)
    return Notation("%s,*,*->%s" % (term, ",".join([term] * node.attr["num_split"].i)), linear=_FIRST)


def slice_(node, inputs, facts):
    shape, begin, size = facts.shape(inputs[0]), _known(facts.value(inputs[1])), facts.value(inputs[2])
    if shape is None or begin is None or size is None:
        return None
    term = "".join(
        letter if b == 0 and (s == -1 or (s is not None and s == n)) else "-"
        for letter, n, b, s in zip(_LETTERS, shape, begin, size)
    )
    return Notation("%s,*,*->%s" % (term, term), linear=_FIRST)


def _strided_terms(node, rank, begin, end, strides, shape):
    """Terms of the whole and of its slice; None for what is not looked into."""
    masks = {key: _attr(node, key, None) for key in ("begin_mask", "end_mask", "shrink_axis_mask")}
    masks = {key: attr.i if attr is not None else 0 for key, attr in masks.items()}
    if node.attr["ellipsis_mask"].i or node.attr["new_axis_mask"].i or begin is None or strides is None:
        return None
    whole, out = "", ""
    for i, letter in enumerate(_LETTERS[:rank]):
        bit = 1 << i
        if i >= len(begin):
            whole, out = whole + letter, out + letter
        elif masks["shrink_axis_mask"] & bit:
            whole += "-"
        else:
            starts = masks["begin_mask"] & bit or begin[i] == 0
            ends = masks["end_mask"] & bit or (shape[i] is not None and end[i] is not None and end[i] >= shape[i])
            letter = letter if starts and ends and strides[i] == 1 else "-"
            whole, out = whole + letter, out + letter
    return whole, out


def strided_slice(node, inputs, facts):
    shape, values = facts.shape(inputs[0]), [facts.value(each) for each in inputs[1:]]
    if shape is None or any(value is None for value in values):
        return None
    terms = _strided_terms(node, len(shape), values[0], values[1], values[2], shape)
    return None if terms is None else Notation("%s,*,*,*->%s" % terms, linear=_FIRST)


def strided_slice_grad(node, inputs, facts):
    shape = facts.shape(inputs[0]._replace(node=node.name, index=0))
    values = [facts.value(each) for each in inputs[1:4]]
    if shape is None or any(value is None for value in values):
        return None
    terms = _strided_terms(node, len(shape), values[0], values[1], values[2], shape)
    return None if terms is None else Notation("*,*,*,*,%s->%s" % terms[::-1], linear=((4,),))


def pad(node, inputs, facts):
    paddings, rank = facts.value(inputs[1]), _rank(inputs[0], facts)
    if paddings is None or rank is None or paddings.ndim != 2:
        return None
    term = "".join(letter if list(pair) == [0, 0] else "-" for letter, pair in zip(_LETTERS, paddings))
    linear = _FIRST if node.op != "PadV2" else ()
    return Notation("%s%s->%s" % (term, ",*" * (len(inputs) - 1), term), linear=linear)


def select(node, inputs, facts):
    ranks = [_rank(each, facts) for each in inputs]
    linear = ((1, 2),)
    if None in ranks:
        return None
    if ranks[0] == ranks[1]:
        return Notation("...,...,...->...", linear=linear)
    if ranks[0] == 0:
        return Notation(",...,...->...", linear=linear)
    return Notation("n,n...,n...->n...", linear=linear)


def gather(node, inputs, facts):
    rank, ids = _rank(inputs[0], facts), _rank(inputs[1], facts)
    axis = [0] if len(inputs) < 3 else _known(facts.value(inputs[2]))
    batched = "batch_dims" in node.attr and node.attr["batch_dims"].i  # to look an attribute up would add it
    if rank is None or ids is None or axis is None or batched or rank + ids > len(_LETTERS):
        return None
    term, rows = _LETTERS[:rank], _LETTERS[rank : rank + ids]
    at = axis[0] % rank
    out = term[:at] + rows + term[at + 1 :]
    letter = frozenset(term[at])
    routed = at == 0 and facts.dtype(inputs[1]) in INDEX_TYPES
    if facts.shape(inputs[0])[at] is None:  # which rows a part has would not be known
        term = term[:at] + "-" + term[at + 1 :]
    text = "%s,%s%s->%s" % (term, rows, ",*" * (len(inputs) - 2), out)
    linear = _FIRST if node.op != "ResourceGather" else ()
    return Notation(text, linear=linear, product=True, preferred=letter, routed=routed)


def unsorted_segment_sum(node, inputs, facts):
    rank, ids = _rank(inputs[0], facts), _rank(inputs[1], facts)
    if rank is None or ids is None or rank > len(_LETTERS) - 1:
        return None
    term, row, out = _LETTERS[:rank], _LETTERS[rank], facts.shape(inputs[0]._replace(node=node.name, index=0))
    row = "-" if not out or out[0] is None else row
    return Notation("%s,%s,*->%s%s" % (term, term[:ids], row, term[ids:]), linear=_FIRST)


def one_hot(node, inputs, facts):
    rank = _rank(inputs[0], facts)
    if rank is None:
        return None
    axis = node.attr["axis"].i if "axis" in node.attr else -1
    axis = rank if axis < 0 else axis
    term, depth, out = _LETTERS[:rank], _LETTERS[rank], facts.shape(inputs[0]._replace(node=node.name, index=0))
    depth = "-" if not out or out[axis] is None else depth
    return Notation("%s,*,*,*->%s%s%s" % (term, term[:axis], depth, term[axis:]))


def made(text, **options):
    """A tensor that is made of a shape among the inputs: it can be made in parts."""
    notation = Notation(text, **options)
    return lambda node, inputs, facts: notation


def _repeated_once(times, facts):
    """Dimensions that are repeated once, where a sum's gradient computes that: shape // max(shape with ones, 1)."""
    nodes = facts.graph.nodes
    if nodes[times.node].op != "FloorDiv":
        return ()
    shape, divisor = facts.inputs(times.node)
    while nodes[divisor.node].op in ("Maximum", "Identity"):
        divisor = facts.inputs(divisor.node)[0]
    if nodes[divisor.node].op != "DynamicStitch" or nodes[divisor.node].attr["N"].i != 2:
        return ()
    _, axes, sizes, _ = facts.inputs(divisor.node)
    axes, rank = _known(facts.value(axes)), facts.shape(shape)
    return [i for i in range(rank[0]) if i not in axes] if sizes == shape and axes is not None and rank[0] else ()


def tile(node, inputs, facts):
    shape, times = facts.shape(inputs[0]), facts.value(inputs[1])
    if shape is None or times is None:
        return None
    once = _repeated_once(inputs[1], facts)
    times = [1 if t is None and i in once else t for i, t in enumerate(times)]
    left = "".join(letter if t == 1 else "-" for letter, t in zip(_LETTERS, times))
    right = "".join(letter if t == 1 or n == 1 else "-" for letter, n, t in zip(_LETTERS, shape, times))
    return Notation("%s,*->%s" % (left, right), linear=_FIRST)


def shape_n(node, inputs, facts):
    return Notation("%s->%s" % (",".join("?" * len(inputs)), ",".join("*" * len(inputs))))


def _as_variable(inputs, facts):
    """The terms of those inputs that have a variable's shape ("...") or are scalars; None if there are others."""
    shape = facts.shape(inputs[0])
    terms = ["..." if facts.shape(each) == shape else "" if facts.shape(each) == () else None for each in inputs]
    return None if shape is None or None in terms else terms


def _outputs(node):
    return "" if node.op.startswith("Resource") else "..."


def apply(node, inputs, facts):
    """A dense change that an optimizer makes of a variable and its slots, element by element."""
    terms = _as_variable(inputs, facts)
    return None if terms is None else Notation("%s->%s" % (",".join(terms), _outputs(node)))


def ref_merge(node, inputs, facts):
    """One of several references to the same variable, and which one."""
    return Notation("%s->...,*" % ",".join(["..."] * len(inputs)))


def merge(node, inputs, facts):
    """What a branch gives that takes a variable's value if it has one, as `initialized_value` of a reference does.

    Each device has its part of either way, so nothing is exchanged in the branch.
    """
    if not any(_is_read_in_a_branch(each, facts.graph) for each in inputs):
        return None
    return Notation("%s->...,*" % ",".join(["..."] * len(inputs)))


def _is_read_in_a_branch(tensor, graph):
    node = graph.nodes[tensor.node]
    while node.op == "Identity":
        node = graph.nodes[graph.inputs[node.name][0].node]
    return node.op == "RefSwitch"


def last_of_rows(inputs, facts):
    """The position of the last input that may be numbers of rows; None where there is none."""
    places = range(len(inputs) - 1, 0, -1)
    return next((i for i in places if facts.dtype(inputs[i]) in INDEX_TYPES and _rank(inputs[i], facts) == 1), None)


def sparse_apply(node, inputs, facts):
    """A change of some rows. Shards leave out the rows of others."""
    at = last_of_rows(inputs, facts)
    rank = _rank(inputs[0], facts)
    if at is None or not rank:
        return None
    rest = _LETTERS[1:rank]
    others = [i for i in range(len(inputs)) if i not in (at - 1, at)]
    terms = _as_variable([inputs[i] for i in others], facts)
    if terms is None:
        return None
    placed = dict(zip(others, ["a" + rest if term else "" for term in terms]))
    placed[at - 1], placed[at] = "-" + rest, "-"
    out = "" if node.op.startswith("Resource") else "a" + rest
    return Notation("%s->%s" % (",".join(placed[i] for i in range(len(inputs))), out))


def scatter(node, inputs, facts):
    rank, ids, updates = [_rank(each, facts) for each in inputs]
    if not rank or ids != 1 or updates is None:
        return None
    rest = _LETTERS[1:rank]
    out = "" if node.op.startswith("Resource") else "a" + rest
    return Notation("a%s,-,%s->%s" % (rest, "-" + rest if updates else "", out))
