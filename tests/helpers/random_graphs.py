"""Small graphs drawn at random: 5 to 30 operations with their gradients, of which some are marked to lie in parts.

Many of them are one tf.Graph, so that one partition and one run of a session serve all. They compute in float64, so
that what differs by more than rounding is wrong.
"""

import numpy as np
import tensorflow.compat.v1 as tf

from epl.program.placement import WHOLE, partial, sharded

WIDTHS = (2, 3, 4, 6)
_MOST_ELEMENTS = 300  # of a tensor: rows of a batch count as 6
_ROWS = 6


class Drawn(object):
    """One graph while it is drawn.

    Args:
      draw: a numpy.random.RandomState.
      count: number of shards.
      batches: width to a placeholder of [None, width]; ids: one of [None], of whole numbers below 4.

    Attributes:
      marks: tensor name to Placement.
      variables: those that are to be divided.
      sources: what gradients are taken of.
      outputs: tensors to compare.
      loss: a scalar.
    """

    def __init__(self, draw, count, batches, ids):
        self.draw, self.count = draw, count
        self._batches, self._ids = batches, ids
        self.marks, self.variables, self.sources, self.outputs = {}, [], [], []
        self._pool = []
        self._rows_of = {}  # tensor -> a number; those with the same one agree in sizes that are not known
        self.loss = None

    def build(self):
        for _ in range(self.number(1, 3)):
            self._keep(self._source())
        operations = sorted(_OPERATIONS)
        for _ in range(min(self.number(5, 30) for _ in range(3))):
            x = self._pool[-1] if self.draw.randint(2) else self.one_of(*self._pool)
            chosen = self.one_of(*operations)
            made = _OPERATIONS[chosen](self, x)
            if made is not None:
                same = chosen not in _OTHER_ROWS or None not in _shape(made)
                self._keep(made, self._rows_of[x.name] if same else len(self._rows_of))
        self._end()

    def number(self, low, high):
        return int(self.draw.randint(low, high + 1))

    def one_of(self, *choices):
        return choices[self.draw.randint(len(choices))]

    def chance(self, one_in):
        return self.draw.randint(one_in) == 0

    def constant(self, shape):
        return tf.constant(self.draw.uniform(-1.0, 1.0, shape), tf.float64)

    def variable(self, shape):
        made = tf.get_variable(
            "v%d" % len(self.sources), initializer=self.constant(shape), use_resource=bool(self.draw.randint(2))
        )
        self.sources.append(made)
        if not self.chance(3):
            self.variables.append(made.op.name)
        return made

    def axis(self, x):
        return int(self.draw.randint(len(x.shape)))

    def like(self, x):
        """Another tensor of the same shape."""
        rows = self._rows_of[x.name]
        found = [each for each in self._pool if _shape(each) == _shape(x) and self._rows_of[each.name] == rows]
        return self.one_of(*found)

    def _source(self):
        kind = self.one_of("batch", "batch", "constant", "variable")
        if kind == "batch":
            made = tf.identity(self._batches[self.one_of(*WIDTHS)])
        else:
            shape = [self.number(1, 7) for _ in range(self.number(1, 3))]
            made = self.constant(shape) if kind == "constant" else self.variable(shape)
        made = tf.identity(made)
        if kind != "variable":
            self.sources.append(made)
        return made

    def _keep(self, x, rows=0):
        size = np.prod([_ROWS if each is None else each for each in _shape(x)])
        if not 0 < size <= _MOST_ELEMENTS:
            return
        if self.chance(5):
            x = self._marked(x)
        self._pool.append(x)
        self._rows_of[x.name] = rows

    def _marked(self, x):
        made = tf.identity(x)
        dims = [i for i, size in enumerate(_shape(x)) if size is None or size >= self.count]
        kind = self.one_of("sharded", "sharded", "whole", "partial")
        if kind == "sharded" and not dims:
            return made
        place = {"sharded": lambda: sharded(self.one_of(*dims)), "whole": lambda: WHOLE, "partial": partial}[kind]()
        self.marks[made.op.name] = place
        return made

    def _end(self):
        last = self._pool[-3:] + [self.one_of(*self._pool)]
        self.outputs.extend(last)
        # Nodes that all graphs would have are few: there is time for more graphs.
        self.loss = tf.add_n([tf.nn.l2_loss(tf.tanh(x)) for x in last])


def _shape(x):
    return x.shape.as_list()


def _unary(drawn, x):
    function = drawn.one_of(
        tf.tanh,
        tf.sigmoid,
        tf.nn.relu,
        tf.nn.elu,
        tf.nn.softplus,
        tf.nn.leaky_relu,
        tf.abs,
        tf.negative,
        tf.identity,
        lambda y: tf.exp(tf.tanh(y)),
        lambda y: tf.square(tf.tanh(y)),
        lambda y: tf.sqrt(tf.abs(y) + 0.1),
        lambda y: tf.rsqrt(tf.square(y) + 0.5),
        lambda y: y * 0.5,
        lambda y: y / 3.0,
        lambda y: y + 1.5,
        lambda y: 1.0 - y,
        lambda y: tf.clip_by_value(y, -0.5, 0.5),
        lambda y: y + tf.ones_like(y),
        lambda y: y + tf.stop_gradient(y),
    )
    return function(x)


def _binary(drawn, x):
    function = drawn.one_of(
        tf.add,
        tf.subtract,
        tf.multiply,
        tf.maximum,
        tf.minimum,
        tf.math.squared_difference,
        lambda a, b: a / (b * b + 1),
    )
    other = drawn.like(x)
    shape = _shape(x)
    if drawn.chance(2) and None not in shape[1:] and shape:
        other = drawn.variable([1 if drawn.chance(4) else size for size in shape[drawn.number(1, len(shape)) :]])
    elif drawn.chance(3) and shape:
        other = tf.reduce_mean(other, drawn.axis(x), keepdims=True)
    return function(*((x, other) if drawn.chance(2) else (other, x)))


def _dense(drawn, x):
    shape = _shape(x)
    if not shape or shape[-1] is None:
        return None
    width = drawn.number(1, 7)
    if len(shape) == 2 and drawn.chance(2):
        if drawn.chance(2):
            return tf.matmul(x, drawn.variable([width, shape[-1]]), transpose_b=True)
        return tf.nn.bias_add(tf.matmul(x, drawn.variable([shape[-1], width])), drawn.variable([width]))
    return tf.tensordot(x, drawn.variable([shape[-1], width]), 1)


def _product(drawn, x):
    shape = _shape(x)
    if len(shape) == 2:
        return tf.matmul(*[(x, drawn.like(x)), (drawn.like(x), x)][drawn.number(0, 1)], transpose_a=True)
    if len(shape) == 3:
        return drawn.one_of(
            lambda: tf.matmul(x, drawn.like(x), transpose_b=True),
            lambda: tf.einsum("abc,adc->abd", x, drawn.like(x)),
            lambda: tf.einsum("abc,abd->acd", x, drawn.like(x)),
        )()
    return None


def _reduced(drawn, x):
    if not _shape(x):
        return None
    function = drawn.one_of(tf.reduce_sum, tf.reduce_mean, tf.reduce_mean, tf.reduce_max, tf.reduce_min)
    axes = sorted(set(drawn.axis(x) for _ in range(drawn.number(1, 2))))
    return function(x, None if drawn.chance(6) else axes, keepdims=drawn.chance(2))


def _softmax(drawn, x):
    shape = _shape(x)
    if not shape or shape[-1] is None or len(shape) > 3:
        return None
    return drawn.one_of(tf.nn.softmax, tf.nn.log_softmax)(x)


def _normalised(drawn, x):
    if len(_shape(x)) < 2:
        return None
    mean, variance = tf.nn.moments(x, [drawn.one_of(0, len(_shape(x)) - 1)], keepdims=True)
    return (x - mean) * tf.rsqrt(variance + 0.1)


def _loss(drawn, x):
    """Losses of classes, of rows of two dimensions."""
    shape = _shape(x)
    if len(shape) < 2 or shape[-1] is None or shape[-1] < 2 or None in shape[1:]:
        return None
    classes = shape[-1]
    labels = tf.argmax(tf.stop_gradient(drawn.like(x)), -1, output_type=drawn.one_of(tf.int32, tf.int64))
    kind = drawn.one_of("sparse", "dense", "sigmoid")
    if kind == "sparse":
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)
    if kind == "dense":
        labels = tf.one_hot(labels, classes, dtype=tf.float64)
        return tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=x)
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.sigmoid(drawn.like(x)), logits=x)


def _reshaped(drawn, x):
    shape = _shape(x)
    sizes = [tf.shape(x)[i] if size is None else size for i, size in enumerate(shape)]
    if None in shape[1:]:
        return None
    if len(shape) < 2:
        return tf.reshape(x, [-1, 1])
    if len(shape) == 2:
        if shape[1] % 2 == 0 and drawn.chance(2):
            return tf.reshape(x, drawn.one_of([sizes[0], 2, shape[1] // 2], [-1, 2, shape[1] // 2]))
        return tf.reshape(x, drawn.one_of([-1], [1, -1], [sizes[0], 1, shape[1]], [-1, 1, shape[1], 1]))
    if len(shape) < 5:
        last = int(np.prod(shape[1:]))
        if shape[0] is not None and drawn.chance(4):
            return tf.reshape(x, [shape[-1], -1])
        return tf.reshape(x, drawn.one_of([sizes[0], last], [-1, last], [-1, shape[-1]], tf.stack([-1, shape[-1]])))
    return None


def _moved(drawn, x):
    rank = len(_shape(x))
    if rank < 2:
        return tf.expand_dims(x, 0)
    if rank < 4 and drawn.chance(3):
        return tf.expand_dims(x, drawn.number(0, rank))
    if drawn.chance(3) and 1 in _shape(x):
        return tf.squeeze(x, [_shape(x).index(1)])
    return tf.transpose(x, list(drawn.draw.permutation(rank)))


def _joined(drawn, x):
    if not _shape(x):
        return None
    others = [x, drawn.like(x)]
    if drawn.chance(2):
        return tf.concat(others, drawn.axis(x))
    if len(_shape(x)) < 3 and drawn.chance(2):
        return tf.stack(others, drawn.axis(x))
    return tf.add_n(others + [x])


def _parted(drawn, x):
    shape = _shape(x)
    axes = [i for i, size in enumerate(shape) if size is not None and size > 1]
    if not axes:
        return None
    axis = drawn.one_of(*axes)
    if shape[axis] % 2 == 0 and drawn.chance(2):
        parts = tf.split(x, 2, axis)
    elif drawn.chance(2):
        parts = tf.split(x, [1, shape[axis] - 1], axis)
        return parts[1] if drawn.chance(2) else parts[1] + parts[0]
    else:
        parts = tf.unstack(x, axis=axis)
    return parts[0] * parts[1]


def _sliced(drawn, x):
    shape = _shape(x)
    if not shape:
        return None
    axis = drawn.axis(x)
    if shape[axis] is None:
        return (
            drawn.one_of(lambda: x[:1], lambda: x[0], lambda: x[-1], lambda: tf.reverse(x, [0]))()
            if axis == 0
            else None
        )
    begin = drawn.number(0, shape[axis] - 1)
    index = [slice(None)] * axis + [drawn.one_of(begin, slice(begin, None), slice(0, begin + 1), slice(None, None, 2))]
    if drawn.chance(3):
        begins = [0] * axis + [begin] + [0] * (len(shape) - axis - 1)
        return tf.slice(x, begins, [-1] * len(shape))
    return x[tuple(index)]


def _grown(drawn, x):
    shape = _shape(x)
    if not shape:
        return tf.fill([3], x)
    axis = drawn.axis(x)
    each = [[drawn.number(0, 2), drawn.number(0, 2)] if i == axis else [0, 0] for i in range(len(shape))]
    times = [drawn.number(1, 2) if i == axis else 1 for i in range(len(shape))]
    return drawn.one_of(
        lambda: tf.pad(x, each),
        lambda: tf.tile(x, times),
        lambda: x + tf.fill(tf.shape(x), tf.reduce_mean(x)),
        lambda: tf.broadcast_to(x, tf.concat([[2], tf.shape(x)], 0)) if len(shape) < 3 else None,
        lambda: x / tf.cast(tf.shape(x)[axis], tf.float64),
        lambda: x / tf.cast(tf.size(x), tf.float64),
    )()


def _looked_up(drawn, x):
    shape = _shape(x)
    ids = drawn._ids
    if not shape or drawn.chance(2):
        return tf.nn.embedding_lookup(drawn.variable([drawn.number(4, 7), drawn.number(1, 5)]), ids)
    if None not in shape[1:] and len(shape) <= 3 and len(shape) > 1 and shape[-1] >= 4:
        return tf.gather(x, ids, axis=len(shape) - 1)
    chosen = tf.argmax(tf.reshape(x, [-1, 1]), 0)  # where the largest is, as rows of a table
    return tf.gather(drawn.variable([5, 3]), tf.cast(chosen % 5, tf.int32))


def _chosen(drawn, x):
    other = drawn.like(x)
    return drawn.one_of(
        lambda: tf.where(x > 0.1, x, other),
        lambda: tf.where(other > x, tf.zeros_like(x), x),
        lambda: tf.where(tf.reduce_sum(x, list(range(1, len(_shape(x))))) > 0.0, x, other) if _shape(x) else None,
        lambda: x * tf.cast(tf.not_equal(tf.sign(other), 1.0), tf.float64),
    )()


def _cumulative(drawn, x):
    if not _shape(x):
        return None
    axis, options = drawn.axis(x), {"exclusive": drawn.chance(2), "reverse": drawn.chance(2)}
    return tf.cumsum(x, axis, **options)


def _counted(drawn, x):
    """Whole numbers come of it: nothing goes back."""
    shape = _shape(x)
    if not shape or shape[-1] is None or shape[-1] < 2:
        return None
    return drawn.one_of(
        lambda: tf.one_hot(tf.argmax(x, -1), shape[-1], dtype=tf.float64) * x,
        lambda: tf.cast(tf.argmin(x, drawn.axis(x)), tf.float64) * 0.1,
        lambda: tf.nn.top_k(x, 2).values,
        lambda: tf.reduce_max(x, -1, keepdims=True)
        + 0.1 * tf.cast(tf.equal(tf.reduce_max(x, -1, keepdims=True), x), x.dtype),
        lambda: tf.cast(tf.reduce_any(x > 0.2, drawn.axis(x)), tf.float64),
        lambda: tf.cast(tf.reduce_all(x > -0.5, drawn.axis(x)), tf.float64),
    )()


def _whole_for_it(drawn, x):
    """Operations without a rule."""
    if len(_shape(x)) < 2:
        return None
    return tf.matrix_band_part(x, 1, 0)


def _clipped(drawn, x):
    other = drawn.like(x)
    return drawn.one_of(
        lambda: tf.clip_by_global_norm([x, other], 0.7)[0][0],
        lambda: x * tf.nn.l2_loss(other) * 0.1,
        lambda: x * tf.rsqrt(tf.reduce_sum(tf.square(other)) + 1.0),
    )()


def _convolved(drawn, x):
    shape = _shape(x)
    if len(shape) != 3 or None in shape[1:]:
        return None
    x = tf.expand_dims(x, 1)
    kernel = drawn.variable([1, 2, shape[-1], drawn.number(1, 5)])
    return tf.squeeze(tf.nn.conv2d(x, kernel, [1, 1, 1, 1], "SAME"), [1])


_OPERATIONS = {
    "unary": _unary,
    "unary again": _unary,
    "binary": _binary,
    "binary again": _binary,
    "dense": _dense,
    "dense again": _dense,
    "product": _product,
    "reduced": _reduced,
    "softmax": _softmax,
    "normalised": _normalised,
    "loss": _loss,
    "reshaped": _reshaped,
    "moved": _moved,
    "joined": _joined,
    "parted": _parted,
    "sliced": _sliced,
    "grown": _grown,
    "looked up": _looked_up,
    "chosen": _chosen,
    "cumulative": _cumulative,
    "counted": _counted,
    "whole for it": _whole_for_it,
    "clipped": _clipped,
    "convolved": _convolved,
}
# What comes of these may have another number of rows than what they take.
_OTHER_ROWS = frozenset(["reshaped", "joined", "grown", "sliced", "looked up"])


def draw_graphs(seed, count, graphs):
    """Draws many of them into the default graph.

    Args:
      seed: of what is drawn.
      count: number of shards.
      graphs: how many graphs.

    Returns:
      (list of Drawn, operation that trains the variables of all).
    """
    draw = np.random.RandomState(seed)
    batches = {width: tf.placeholder(tf.float64, [None, width], name="batch_%d" % width) for width in WIDTHS}
    ids = tf.placeholder(tf.int32, [None], name="ids")
    found = []
    for index in range(graphs):
        drawn = Drawn(draw, count, batches, ids)
        with tf.variable_scope("g%d" % index), tf.name_scope("g%d/" % index):
            drawn.build()
        found.append(drawn)
    sources = [source for drawn in found for source in drawn.sources]
    gradients = tf.gradients([drawn.loss for drawn in found], sources)
    pairs = [(g, v) for g, v in zip(gradients, sources) if g is not None and isinstance(v, tf.Variable)]
    given = iter(gradients)
    for drawn in found:
        own = [next(given) for _ in drawn.sources]
        drawn.outputs.extend(tf.convert_to_tensor(each) for each in own if each is not None)
    # No variable changes while another gradient may still be computed of it.
    rate = tf.constant(0.02, tf.float64)
    optimizers = [tf.train.GradientDescentOptimizer(rate), tf.train.MomentumOptimizer(rate, 0.9)]
    with tf.control_dependencies([tf.group(*[gradient for gradient, _ in pairs])]):
        each = [optimizers[i].apply_gradients(pairs[i::2]) for i in (0, 1)]
        return found, tf.group(*each, name="train")


def feeds(rows, seed):
    """For the placeholders."""
    draw = np.random.RandomState(seed)
    found = {"batch_%d:0" % width: draw.uniform(-1.0, 1.0, [rows, width]) for width in WIDTHS}
    return dict(found, **{"ids:0": draw.randint(0, 4, rows)})
