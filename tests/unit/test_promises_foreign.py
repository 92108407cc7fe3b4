"""Programs of operations that no other test has are not refused for what passes do to them."""

import random

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.errors import ConfigError, PlanError, UnsupportedError
from epl.passes.promises import PROMISES
from tests.helpers import planning
from tests.helpers.planning import ROWS, capture, control_flow, variable

pytestmark = pytest.mark.either_line


def looked_up(x):
    """Rows of a variable by ids, whose gradient asks for the variable's shape."""
    table = tf.get_variable("table", [8, 4], initializer=tf.ones_initializer(), use_resource=True)
    return x + tf.gather(table, tf.cast(tf.abs(x[:, 0]), tf.int32) % 8)


def of_a_list(x):
    return tf.reshape(tf.concat(tf.dynamic_partition(x, tf.cast(x[:, 0] > 0, tf.int32), 2), 0), [-1, 4])


def in_arrays(x):
    array = tf.TensorArray(tf.float32, 2).unstack(tf.split(x, 2, 1)[0][:2])
    return x + tf.reduce_sum(array.stack())


def in_a_loop(x):
    return tf.while_loop(
        lambda n, y: n < 3, lambda n, y: (n + 1, tf.math.asinh(y) + tf.math.xlogy(y, 2.0 + y * y)), [0, x]
    )[1]


def chosen_by(x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.math.betainc(0.5 + x * x, 0.5 + x * x, tf.sigmoid(x)), lambda: -x)


def looked_up_in_a_table(x):
    keys = tf.constant([0, 1, 2], tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1.0, 2.0, 3.0])), 0.5)
    return x * table.lookup(tf.cast(x[:, :1] > 0, tf.int64))


BLOCKS = {
    "linear algebra": lambda x: x + tf.linalg.matvec(tf.linalg.cholesky(tf.eye(4) * 2.0), tf.linalg.l2_normalize(x, 1)),
    "solved": lambda x: tf.transpose(tf.linalg.triangular_solve(tf.eye(4) + 0.1, tf.transpose(x))),
    "determinant": lambda x: x + tf.linalg.slogdet(tf.eye(4) + x[:, :, None] * x[:, None, :])[1][:, None],
    "unique": lambda x: x + tf.cast(tf.unique(tf.cast(x[:, 0], tf.int32))[1], tf.float32)[:, None],
    "sorted": lambda x: tf.sort(x, 1) + tf.nn.top_k(x, 4).values,
    "random": lambda x: x + tf.random.stateless_uniform([4], seed=[1, 2]) + tf.random.gamma([4], 1.0),
    "multinomial": lambda x: x + tf.cast(tf.random.categorical(x, 4), tf.float32),
    "strings": lambda x: x + tf.cast(tf.strings.length(tf.strings.as_string(x)), tf.float32),
    "python": lambda x: x + tf.stop_gradient(tf.reshape(tf.py_func(lambda y: np.sin(y), [x], tf.float32), [-1, 4])),
    "image": lambda x: tf.image.resize_bilinear(x[:, :, None, None], [8, 2])[:, ::2, 0, 0],
    "fourier": lambda x: x + tf.abs(tf.signal.rfft(x))[:, :1],
    "scattered": lambda x: x + tf.scatter_nd([[0], [2]], [1.0, 2.0], [4]),
    "quantised": lambda x: tf.quantization.fake_quant_with_min_max_args(x),
    "printed": lambda x: tf.Print(x, [x], first_n=0),
    "parallel": lambda x: tf.math.segment_sum(x, tf.range(tf.shape(x)[0])),
    "partitioned": of_a_list,
    "sequence mask": lambda x: x * tf.sequence_mask(tf.cast(tf.abs(x[:, 0]), tf.int32), 4, tf.float32),
    "lookup": looked_up,
    "table": looked_up_in_a_table,
    "arrays": in_arrays,
    "loop": in_a_loop,
    "branch": chosen_by,
}
OPTIMIZERS = {
    "ftrl": lambda: tf.train.FtrlOptimizer(0.1),
    "rms": lambda: tf.train.RMSPropOptimizer(0.1, centered=True),
    "adadelta": lambda: tf.train.AdadeltaOptimizer(0.1),
    "proximal": lambda: tf.train.ProximalAdagradOptimizer(0.1),
    "adam": lambda: tf.train.AdamOptimizer(0.1),
}
CONFIGS = {
    "again": {"gradient_checkpoint__type": "auto"},
    "checked": {"gradient_checkpoint__type": "auto", "gradient_checkpoint__check_gradients": True},
    "bfloat16": {"amp__level": "O1", "amp__dtype": "bfloat16"},
    "float16": {"amp__level": "O1", "amp__dtype": "float16", "amp__loss_scale": "dynamic"},
    "state": {"zero__level": "v0"},
    "gradients": {"zero__level": "v1"},
    "parameters": {"zero__level": "v3"},
    "groups": {"optimizer__num_apply_group": 2},
    "batches": {"pipeline__num_micro_batch": 2},
    "host": {"offload__level": "v0"},
    "weighed": {"communication__gradients_reduce_method": "auto"},
    "coded": {"communication__wire_dtype": "int8"},
    "averaged": {"communication__fp16": True, "communication__clip_after_allreduce": True},
}


def build(draw):
    """A model of three drawn blocks between layers, its optimizer and summaries; the names of what was drawn."""
    names = draw.sample(sorted(BLOCKS), 3)
    optimizer = draw.choice(sorted(OPTIMIZERS))
    x = tf.placeholder(tf.float32, [ROWS, 4], name="x")
    with tf.variable_scope("net", use_resource=draw.random() < 0.5):
        for number, name in enumerate(names):
            with tf.variable_scope("block_%d" % number):
                w = variable("w", use_resource=None)
                x = tf.tanh(tf.matmul(tf.reshape(BLOCKS[name](x), [ROWS, 4]), w))
                tf.summary.histogram("x", x)
    loss = tf.reduce_mean(tf.square(x)) + 0.01 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])
    made = OPTIMIZERS[optimizer]()
    gradients, variables = zip(*made.compute_gradients(loss))
    if draw.random() < 0.5:
        gradients = tf.clip_by_global_norm(gradients, 1.0)[0]
    made.apply_gradients(list(zip(gradients, variables)), tf.train.get_or_create_global_step())
    epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    tf.train.Saver()
    return names, optimizer


def config_of(draw):
    names = draw.sample(sorted(CONFIGS), draw.randint(1, 3))
    found = {}
    for name in names:
        found.update(CONFIGS[name])
    return names, found


def compiled(seed):
    """Compiles what is drawn; what was drawn, and whether it is refused for a reason that is written down."""
    draw = random.Random(seed)
    with control_flow("v1"), capture(seed=5) as graph:
        about = build(draw)
    names, config = config_of(draw)
    try:
        planning.compiled(graph, *draw.choice([(1, 2), (2, 1), (2, 2)]), **config)
    except (ConfigError, PlanError, UnsupportedError):
        return about, names, True
    return about, names, False


SEEDS = list(range(6)) + [pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(6, 100)]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_pass_breaks_its_promise(seed):
    compiled(seed)


# Passes that put copies of the user's operations beside them.
COPYING = "scale_loss recompute check_gradients weigh_losses mixed_precision divide_variables group_updates"
COPYING = COPYING.split() + ["copy_micro_batches", "clone_instances"]


@pytest.mark.parametrize("name", COPYING)
def test_copies_may_be_of_any_type(name):
    assert PROMISES[name].footprint.copies


def asks_for_a_shape():
    w = tf.get_variable("w", [4, 4], use_resource=True)
    shape = tf.raw_ops.VariableShape(input=w.handle)
    return tf.matmul(tf.ones([ROWS, 4]), w) * tf.cast(shape[0], tf.float32), {"zero__level": "v3"}


def with_several_gradients():
    """Of which two are of variables."""
    scale, offset = variable("scale", [4]), variable("offset", [4])
    x = tf.reshape(tf.range(ROWS * 4.0), [ROWS, 1, 1, 4])
    return tf.nn.fused_batch_norm(x, scale, offset)[0], CONFIGS["float16"]


@pytest.mark.parametrize("build", [asks_for_a_shape, with_several_gradients], ids=lambda build: build.__name__)
def test_what_becomes_of_an_operation(build):
    with capture() as graph:
        y, config = build()
        tf.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.square(y)))
    assert planning.compiled(graph, 1, 2, **config)
