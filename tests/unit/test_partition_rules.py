"""Each rule against the whole operation: random shapes, random places of the inputs, 2 to 4 shards; gradients too.

Many cases are one graph and one run of a session. What is drawn is divided by 2, 3 and 4 shards, each with places of
its own.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.program.placement import WHOLE, partial, sharded
from tests.helpers import shards
from tests.helpers.checks import pairs
from tests.helpers.planning import capture

COUNTS = (2, 3, 4)


class Case(object):
    """Draws the inputs of one operation, and for each number of shards how they are to lie."""

    def __init__(self, draw, number=0):
        self.draw, self._number = draw, number
        self.marks = {count: {} for count in COUNTS}
        self.inputs = []

    def size(self, low=1, high=6):
        return int(self.draw.randint(low, high + 1))

    def shape(self, rank=None, low=1, high=6):
        rank = int(self.draw.randint(1, 4)) if rank is None else rank
        return [self.size(low, high) for _ in range(rank)]

    def one_of(self, *choices):
        return choices[self.draw.randint(len(choices))]

    def next_of(self, *choices):
        """Of so many cases of a maker each choice has its turn."""
        return choices[self._number % len(choices)]

    def axis(self, rank):
        return int(self.draw.randint(-rank, rank))

    def x(self, shape, positive=False, kinds=("whole", "sharded", "partial")):
        """A float32 input of a shape, which lies in some way."""
        values = self.draw.uniform(0.5, 2.0, [5] + list(shape)) * (1 if positive else self.draw.choice([-1, 1]))
        if "partial" in kinds and self.draw.randint(3) == 0:
            made = tf.reduce_sum(tf.constant(values * 0.4, tf.float32), 0)
        else:
            made = tf.identity(tf.constant(values[0], tf.float32))
        self._lies(made, kinds)
        self.inputs.append(made)
        return made

    def whole_numbers(self, shape, limit, low=0, dtype=tf.int32):
        made = tf.identity(tf.constant(self.draw.randint(low, limit, shape), dtype))
        self._lies(made, ("whole", "sharded"))
        return made

    def _lies(self, made, kinds):
        for count in COUNTS:
            dims = [d for d, size in enumerate(made.shape.as_list()) if size >= count]
            kind = self.one_of(*kinds)
            place = sharded(self.one_of(*dims)) if kind == "sharded" and dims else WHOLE
            self.marks[count][made.op.name] = partial() if kind == "partial" else place


def _broadcast(case):
    shape = case.shape()
    other = [1 if case.draw.randint(4) == 0 else size for size in shape][case.draw.randint(len(shape)) :]
    return (shape, other) if case.draw.randint(2) else (other, shape)


def unary(*functions):
    return lambda case: case.next_of(*functions)(case.x(case.shape(), positive=True))


def binary(*functions):
    def make(case):
        one, other = _broadcast(case)
        return case.next_of(*functions)(case.x(one), case.x(other))

    return make


def binary_by_name(case):
    """Those of numbers above 0, of which some have no gradient."""
    one, other = _broadcast(case)
    op = case.next_of(*"Atan2 Div DivNoNan Minimum Pow RealDiv Xdivy Xlogy FloorDiv FloorMod Mod MulNoNan".split())
    made = getattr(tf.raw_ops, op)(x=case.x(one, positive=True), y=case.x(other, positive=True))
    # Of one TensorFlow 1.15 gives a gradient of the wrong shape, the others have none.
    return tf.stop_gradient(made) if op in ("Atan2", "FloorDiv", "FloorMod", "Mod", "MulNoNan") else made


def of_whole_numbers(case):
    one, other = _broadcast(case)
    x, y = case.whole_numbers(one, 20, 1), case.whole_numbers(other, 20, 1)
    op = case.next_of(*"BitwiseAnd BitwiseOr BitwiseXor Invert TruncateDiv TruncateMod".split())
    return tf.raw_ops.Invert(x=x) if op == "Invert" else getattr(tf.raw_ops, op)(x=x, y=y)


def conditions(case):
    one, other = _broadcast(case)
    x, y = case.x(one), case.x(other)
    op = case.next_of(*"Equal Greater GreaterEqual Less LessEqual NotEqual ApproximateEqual Logical".split())
    if op == "Logical":
        x, y = x > 0.0, y > 0.0
        return tf.logical_or(tf.logical_and(x, tf.logical_not(y)), tf.logical_or(x, y))
    return getattr(tf.raw_ops, op)(x=x, y=case.x(one) if op == "ApproximateEqual" else y)


def reduction(function):
    def make(case):
        x = case.x(case.shape())
        axes = sorted(set(case.axis(len(x.shape)) % len(x.shape) for _ in range(case.size(1, 2))))
        return function(x, axes if case.draw.randint(4) else None, keepdims=bool(case.draw.randint(2)))

    return make


def mat_mul(case):
    i, k, j = case.shape(3)
    flip = [bool(case.draw.randint(2)) for _ in range(2)]
    return tf.matmul(case.x([k, i] if flip[0] else [i, k]), case.x([j, k] if flip[1] else [k, j]), *flip)


def batch_mat_mul(case):
    batch, (i, k, j) = case.shape(2), case.shape(3)
    x, y = case.x(batch + [i, k]), case.x(batch + [k, j])
    kinds = [op for op in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3") if hasattr(tf.raw_ops, op)]
    op = case.next_of("transposed", *kinds)
    if op == "transposed":
        return tf.matmul(x, case.x(batch + [j, k]), transpose_b=True)
    if op == "BatchMatMulV3":
        return tf.stop_gradient(tf.raw_ops.BatchMatMulV3(x=x, y=y, Tout=tf.float32))
    return getattr(tf.raw_ops, op)(x=x, y=y)


def einsum(case):
    e, g, c, m, h = case.shape(5, high=4)
    text, inputs = "egcm,emh->egch", [case.x([e, g, c, m]), case.x([e, m, h])]
    if case.next_of(True, False):
        return tf.einsum(text, *inputs)
    return tf.stop_gradient(tf.raw_ops.Einsum(inputs=inputs, equation=text))  # TensorFlow 1.15 has no gradient of it


def tensordot(case):
    a, b, c, d = case.shape(4)
    return tf.tensordot(case.x([a, b, c]), case.x([c, d]), 1)


def bias(case):
    shape = case.shape(case.size(2, 4))
    x, shift = case.x(shape), case.x(shape[-1:])
    return case.next_of(lambda: tf.nn.bias_add(x, shift), lambda: tf.raw_ops.BiasAddV1(value=x, bias=shift))()


def convolution(case):
    n, i, o = case.size(), case.size(), case.size()
    x, kernel = case.x([n, 5, 4, i]), case.x([3, 2, i, o])
    return tf.nn.conv2d(x, kernel, [1, 1, 1, 1], case.one_of("SAME", "VALID"))


def pooling(case):
    x = case.x([case.size(), 4, 4, case.size()])
    pool = case.next_of(tf.nn.max_pool, tf.nn.avg_pool)
    return pool(x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")


def batch_norm(case):
    c = case.size()
    x, gain, shift = case.x([3, 2, 2, c]), case.x([c], positive=True), case.x([c])
    make = case.next_of(tf.raw_ops.FusedBatchNorm, tf.raw_ops.FusedBatchNormV2, tf.raw_ops.FusedBatchNormV3)
    return make(x=x, scale=gain, offset=shift, mean=[], variance=[], epsilon=1e-3)[0]


def local_norm(case):
    return tf.nn.local_response_normalization(case.x(case.shape(4)), depth_radius=2)


def softmax(function):
    return lambda case: function(case.x(case.shape(case.size(1, 3), low=2)))


def sparse_loss(case):
    rows, classes = case.size(), case.size(2, 9)
    labels = case.whole_numbers([rows], classes, dtype=case.one_of(tf.int32, tf.int64))
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=case.x([rows, classes]))


def dense_loss(case):
    rows, classes = case.size(), case.size(2, 9)
    labels = tf.one_hot(case.whole_numbers([rows], classes), classes)
    return tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=case.x([rows, classes]))


def sigmoid_loss(case):
    shape = case.shape(2)
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=case.x(shape), logits=case.x(shape))


def arg_max(case):
    x = case.x(case.shape())
    function = case.next_of(tf.argmax, tf.argmin)
    return function(x, case.axis(len(x.shape)), output_type=case.one_of(tf.int32, tf.int64))


def top_k(case):
    x = case.x([case.size(), case.size(3, 6)])
    labels = case.whole_numbers([int(x.shape[0])], int(x.shape[1]))
    found = case.next_of(tf.raw_ops.InTopK, tf.raw_ops.InTopKV2)(predictions=x, targets=labels, k=2)
    return tf.cast(found, tf.float32) + tf.nn.top_k(x, 2).values[:, 0]


def gather(case):
    shape = case.shape(case.size(1, 3))
    axis = case.next_of(0, case.draw.randint(len(shape)))
    x, ids = case.x(shape), case.whole_numbers(case.shape(case.size(1, 2)), shape[axis])
    return tf.gather(x, ids, axis=axis) if axis or case.draw.randint(2) else tf.raw_ops.Gather(params=x, indices=ids)


def segment_sum(case):
    rows, width, count = case.shape(3)
    ids = case.whole_numbers([rows], count, low=-1)
    return tf.math.unsorted_segment_sum(case.x([rows, width]), ids, count)


def one_hot(case):
    ids, depth = case.whole_numbers(case.shape(case.size(1, 2)), 6, low=-1), case.size(2)
    return tf.one_hot(ids, depth, axis=case.one_of(-1, 0, 1)) * case.x([1])


def cumulative(case):
    x = case.x(case.shape())
    axis, options = case.axis(len(x.shape)), [bool(case.draw.randint(2)) for _ in range(2)]
    return case.next_of(tf.cumsum, tf.math.cumprod)(x, axis, *options)


def turned(case):
    x = case.x(case.shape())
    return tf.reverse(x, [case.axis(len(x.shape))])


def reshape(case):
    a, b, c, d = case.shape(4)
    before, after = case.one_of(
        ([a, b, c], [a * b, c]),
        ([a * b, c], [a, b, c]),
        ([a, b, c, d], [a, b, c * d]),
        ([a * b, c], [a, 1, b * c]),
        ([a, b], [1, a, b, 1]),
        ([a, b, c], [c, a * b]),
        ([a, b, c], [-1, c]),
        ([a, 1, b], [a, b]),
    )
    return tf.reshape(case.x(before), after)


def transpose(case):
    x = case.x(case.shape())
    return tf.transpose(x, list(case.draw.permutation(len(x.shape))))


def expanded(case):
    x = case.x(case.shape())
    return tf.squeeze(tf.expand_dims(x, case.axis(len(x.shape) + 1))) * 2.0


def joined(case):
    shape = case.shape()
    axis = case.draw.randint(len(shape))
    others = [size + 1 if i == axis else size for i, size in enumerate(shape)]
    if case.next_of(True, False):
        return tf.concat([case.x(shape), case.x(others), case.x(shape)], axis)
    return tf.stack([case.x(shape), case.x(shape)], axis) + tf.add_n([case.x([1]), case.x([1])])


def divided(case):
    shape = case.shape()
    axis = case.draw.randint(len(shape))
    shape[axis] = 4
    x = case.x(shape)
    parts = case.next_of(
        lambda: tf.split(x, 2, axis), lambda: tf.split(x, [3, 1], axis), lambda: tf.unstack(x, axis=axis)
    )()
    return parts[0] * 2.0 + tf.reduce_sum(parts[1])


def sliced(case):
    shape = case.shape(low=2)
    begin = [int(case.draw.randint(2)) for _ in shape]
    size = [s - b if case.draw.randint(2) else s - 1 for s, b in zip(shape, begin)]
    x = case.x(shape)
    return case.next_of(lambda: tf.slice(x, begin, size), lambda: x[1:], lambda: x[0], lambda: x[..., :1])()


def padded(case):
    shape = case.shape()
    options = case.next_of({}, {"constant_values": 1.5}, {"mode": "SYMMETRIC"})
    return tf.pad(case.x(shape), [[int(case.draw.randint(2)), int(case.draw.randint(2))] for _ in shape], **options)


def repeated(case):
    shape = case.shape()
    x = case.x(shape)
    return case.next_of(
        lambda: tf.tile(x, [case.size(1, 3) for _ in shape]), lambda: tf.broadcast_to(x, [case.size()] + shape)
    )()


def chosen(case):
    shape = case.shape(2)
    where = case.next_of(lambda: case.x(shape) > 0.0, lambda: tf.reduce_sum(case.x(shape), 1) > 0.0)()
    return tf.where(where, case.x(shape), case.x(shape))


def chosen_in_broadcast(case):
    shape, other = _broadcast(case)
    return tf.raw_ops.SelectV2(condition=case.x(shape) > 0.0, t=case.x(other), e=case.x(shape))


def limited(case):
    limited_x = tf.raw_ops.ClipByValue(t=case.x(case.shape()), clip_value_min=-0.9, clip_value_max=0.9)
    return tf.stop_gradient(limited_x)  # TensorFlow 1.15 has no gradient of it


def filled(case):
    x = case.x(case.shape(2))
    sizes = tf.cast(tf.size(x), tf.float32) + tf.cast(tf.add_n(tf.shape_n([x, x])), tf.float32)[0]
    own = tf.raw_ops.Shape(input=x)
    numbers = tf.cast(tf.raw_ops.Size(input=x) + tf.raw_ops.Rank(input=x) + own[1], tf.float32)
    alike = tf.raw_ops.ZerosLike(x=x) + tf.raw_ops.OnesLike(x=x)
    return x * tf.fill(own, tf.reduce_mean(x)) + alike + sizes + numbers


def compared(case):
    one, other = case.x(case.shape(2)), None
    other = case.x(one.shape.as_list())
    return tf.cast(tf.reduce_all(tf.equal(one, one + tf.maximum(other, 0.0)), 0), tf.float32) + tf.cast(
        tf.reduce_any(one > other, 0), tf.float32
    )


OTHERS = [getattr(tf.math, name) for name in "asinh atan ceil cos cosh erf erfc expm1 floor lgamma log1p".split()] + [
    tf.math.digamma,
    tf.math.rint,
    tf.math.sign,
    tf.math.sin,
    tf.math.sinh,
    tf.math.tan,
]
MORE = [
    tf.math.softplus,
    tf.nn.leaky_relu,
    tf.nn.relu6,
    tf.nn.selu,
    tf.nn.softsign,
    lambda x: tf.acos(x * 0.4),
    lambda x: tf.asin(x * 0.4),
    lambda x: tf.atanh(x * 0.4),
    lambda x: tf.acosh(x + 1.0),
    lambda x: tf.cast(tf.logical_not(tf.is_finite(tf.log(x - 1.0))), tf.float32),
    lambda x: tf.cast(tf.logical_or(tf.is_nan(x), tf.is_inf(x)), tf.float32),
    lambda x: tf.check_numerics(x, "no number"),
    lambda x: tf.raw_ops.Inv(x=x),
    lambda x: tf.raw_ops.Reciprocal(x=x),
    lambda x: tf.abs(tf.raw_ops.Round(x=x)),
    lambda x: tf.stop_gradient(tf.raw_ops.InvGrad(y=x, dy=x)),
    lambda x: tf.stop_gradient(tf.raw_ops.SoftplusGrad(gradients=x, features=x)),
]
LINEAR = [
    tf.negative,
    tf.identity,
    tf.stop_gradient,
    lambda x: tf.cast(x, tf.float64),
    lambda x: tf.stop_gradient(tf.raw_ops.PreventGradient(input=x)),
    lambda x: tf.stop_gradient(tf.raw_ops.Snapshot(input=x)),
]
BINARY = [tf.raw_ops.Add, tf.raw_ops.AddV2, tf.subtract, tf.multiply, tf.divide, tf.maximum, tf.math.squared_difference]

RULES = {
    "unary": unary(tf.tanh, tf.exp, tf.nn.relu, tf.sqrt, tf.square, tf.sigmoid, tf.rsqrt, tf.nn.elu, tf.math.log),
    "linear": unary(*LINEAR),
    "others": unary(*OTHERS),
    "more": unary(*MORE),
    "binary": binary(*[lambda x, y, each=each: each(x=x, y=y) for each in BINARY]),
    "binary_by_name": binary_by_name,
    "of_whole_numbers": of_whole_numbers,
    "conditions": conditions,
    "sum": reduction(tf.reduce_sum),
    "mean": reduction(tf.reduce_mean),
    "max": reduction(tf.reduce_max),
    "min": reduction(tf.reduce_min),
    "prod": reduction(tf.reduce_prod),
    "mat_mul": mat_mul,
    "batch_mat_mul": batch_mat_mul,
    "einsum": einsum,
    "tensordot": tensordot,
    "bias": bias,
    "convolution": convolution,
    "pooling": pooling,
    "batch_norm": batch_norm,
    "local_norm": local_norm,
    "softmax": softmax(tf.nn.softmax),
    "log_softmax": softmax(tf.nn.log_softmax),
    "l2_loss": lambda case: tf.nn.l2_loss(case.x(case.shape())),
    "sparse_loss": sparse_loss,
    "dense_loss": dense_loss,
    "sigmoid_loss": sigmoid_loss,
    "arg_max": arg_max,
    "top_k": top_k,
    "gather": gather,
    "segment_sum": segment_sum,
    "one_hot": one_hot,
    "cumulative": cumulative,
    "turned": turned,
    "reshape": reshape,
    "transpose": transpose,
    "expanded": expanded,
    "joined": joined,
    "divided": divided,
    "sliced": sliced,
    "padded": padded,
    "repeated": repeated,
    "chosen": chosen,
    "chosen_in_broadcast": chosen_in_broadcast,
    "limited": limited,
    "filled": filled,
    "compared": compared,
}


# Of these each case tries another operation; of others so few choose that four cases have all.
CHOICES = {"binary": len(BINARY), "binary_by_name": 12, "conditions": 8, "linear": len(LINEAR), "more": len(MORE)}
CHOICES.update({"others": len(OTHERS), "of_whole_numbers": 6, "unary": 9})
GROUPS = 8  # of makers; each is one graph


def build(makers, seed, cases):
    """Builds some cases of each maker with their gradients in the default graph.

    Args:
      makers: name to maker.
      seed: of what is drawn.
      cases: how many of each, or a function from the name that says it.

    Returns:
      (list of Case, list of (what, name of a tensor to compare)).
    """
    draw = np.random.RandomState(seed)
    made, outputs, ends = [], [], []
    for name in sorted(makers):
        for number in range(cases(name) if callable(cases) else cases):
            case, what = Case(draw, number), "%s %d" % (name, number)
            with tf.name_scope("%s_%d" % (name, number)):
                out = makers[name](case)
            made.append(case)
            outputs.append((what, out.name))
            if out.dtype.is_floating:
                ends.append((out, tf.constant(draw.uniform(-1, 1, out.shape.as_list()), out.dtype)))
    sources = [x for case in made for x in case.inputs]
    found = tf.gradients([out for out, _ in ends], sources, [weights for _, weights in ends])
    pairs = [(x, tf.convert_to_tensor(g)) for x, g in zip(sources, found) if g is not None]
    return made, outputs + [("gradient of " + x.op.name, g.name) for x, g in pairs]


def check(makers, seed, cases):
    """Some cases of each maker, for each number of shards, in parts and whole."""
    with capture(1) as graph:
        made, outputs = build(makers, seed, cases)
    names = [name for _, name in outputs]
    whole = None
    for count in COUNTS:
        marks = {name: place for case in made for name, place in case.marks[count].items()}
        done = shards.partitioned(graph, count, tensors=marks)
        with shards.Shards(graph, done, wanted=names) as both:
            whole = both.run_whole(names) if whole is None else whole
            for (what, _), got, want in pairs(outputs, both.run(names), whole):
                message = "%s, seed %d, %d shards" % (what, seed, count)
                np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=message)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("group", range(GROUPS))
def test_parts_give_what_the_whole_gives(group, seed):
    """Both seeds together are 102 cases of each rule."""
    check({name: RULES[name] for name in sorted(RULES)[group::GROUPS]}, seed, 17)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rule", sorted(RULES))
def test_each_rule(rule):
    for seed in np.random.RandomState().randint(0, 2**31 - 1, 6):
        check({rule: RULES[rule]}, int(seed), 20)
