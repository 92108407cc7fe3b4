"""Models and strategies, between which ranks exchange all kinds of things that they do exchange."""

import tensorflow.compat.v1 as tf

import epl
from epl.program import collective as kinds
from tests.helpers import planning, split_models

SMALL = 1e-5  # in MiB: each tensor travels by itself


# What only the finished graph tells: data that workers with parts of the same model compare or put together; and what
# joins the micro-batches of one device.
NOT_PLANNED = ("epl_same_batch/", "epl_whole_batch/", "epl_micro_batches/")


def matrices(count=3):
    """The loss of some layers whose kernels are just as large as lines of memory, which updates are filled up to."""
    x = planning.batch()
    for index in range(count):
        x = tf.tanh(tf.matmul(x, planning.variable("w%d" % index)))
    return tf.reduce_mean(tf.square(x))


def dense():
    loss = matrices()
    tf.train.AdamOptimizer(0.1).minimize(loss)
    epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    epl.add_to_collection(tf.identity(loss), epl.GraphKeys.LOCAL_SUM_OBJECTS)


def momentum():
    tf.train.MomentumOptimizer(0.1, 0.9).minimize(matrices())


def table():
    rows = tf.gather(planning.variable("table", [100, 4]), tf.cast(planning.batch()[:, 0], tf.int32))
    planning.sgd(planning.layers(1, x=rows))


def norms(fused):
    y = tf.matmul(planning.batch(), planning.variable("w"))
    y = tf.reshape(y, [-1, 1, 1, 4]) if fused else y
    y = tf.layers.batch_normalization(y, training=True, fused=fused)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        planning.sgd(tf.reduce_mean(tf.square(y)))


def metric():
    x = planning.batch()
    _, update = tf.metrics.mean(x)
    with tf.control_dependencies([update]):
        planning.sgd(planning.layers(1, x=x))


def by_user():
    loss = planning.layers(1)
    gradients, variables = zip(*tf.train.GradientDescentOptimizer(0.1).compute_gradients(loss))
    epl.ops.all_gather(loss[None])
    gradients = [epl.ops.all_reduce(gradient) for gradient in gradients]
    tf.train.GradientDescentOptimizer(0.1).apply_gradients(zip(gradients, variables))


def staged():
    x = planning.batch()
    for index in range(2):
        with epl.replicate(1, name="stage_%d" % index):
            x = tf.tanh(tf.matmul(x, planning.variable("w%d" % index)))
            if index:
                loss = tf.reduce_mean(tf.square(x))
    tf.train.AdamOptimizer(0.1).minimize(loss)


def split():
    tokens = tf.placeholder(tf.int32, [None, 6])
    x = tf.gather(tf.get_variable("table", [11, 16]), tokens)
    with epl.split(2):
        x = split_models.transformer_block(x, 4, "block")
    planning.sgd(tf.reduce_mean(tf.square(x - tf.one_hot(tokens, 16))))


def experts():
    epl.set_default_strategy(epl.replicate(2))
    tokens = tf.placeholder(tf.float32, [4, 6, 64]) * tf.get_variable("gain", [64])
    y = tokens + split_models.experts(tokens, 4, 128, lambda: epl.split(2), capacity=2)
    planning.sgd(tf.reduce_mean(tf.square(tf.tanh(y) - 1.0)))


def lamb():
    rows = tf.get_variable("table", [8192, 8], initializer=tf.ones_initializer(), use_resource=True)
    epl.optimizers.LambOptimizer(0.1).minimize(tf.reduce_sum(tf.square(rows - planning.batch()[0, 0])))


TWO, FOUR = (2, 1), (2, 2)
COLOCATED = {"cluster__colocate_split_and_replicate": True}
# Name to (model, (workers, devices of each), configuration, purposes of which there are collectives).
CASES = {
    "data": (dense, FOUR, {}, [kinds.GRADIENTS, kinds.OUTPUTS]),
    "data_in_a_worker": (dense, (1, 2), {}, [kinds.GRADIENTS, kinds.OUTPUTS]),
    "several_groups": (dense, TWO, {"communication__fuse_size_mb": SMALL}, [kinds.GRADIENTS]),
    "micro_batches": (metric, TWO, {"pipeline__num_micro_batch": 3}, [kinds.GRADIENTS, kinds.STATE]),
    "sparse": (table, FOUR, {}, [kinds.SPARSE]),
    "sparse_as_dense": (table, FOUR, {"communication__sparse_as_dense": True}, [kinds.SPARSE]),
    "half": (dense, TWO, {"communication__fp16": True}, [kinds.GRADIENTS]),
    "int8": (
        dense,
        TWO,
        {"communication__wire_dtype": "int8", "communication__fuse_size_mb": SMALL},
        [kinds.GRADIENTS, kinds.SUMS],
    ),
    "bfloat16_on_the_wire": (dense, FOUR, {"communication__wire_dtype": "bfloat16"}, [kinds.GRADIENTS, kinds.SUMS]),
    "int8_to_owners": (
        momentum,
        FOUR,
        {"communication__wire_dtype": "int8", "zero__level": "v2"},
        [kinds.GRADIENTS, kinds.PARAMETERS],
    ),
    "compressed": (momentum, TWO, {"dgc__sparsity": [0.5], "dgc__min_elements": 1}, [kinds.GRADIENTS]),
    "local_sgd": (momentum, TWO, {"local_sgd__k_steps": 4}, [kinds.AVERAGES]),
    "local_sgd_overlapped": (
        momentum,
        FOUR,
        {"local_sgd__k_steps": 4, "local_sgd__overlap": True, "local_sgd__average_slots": False},
        [kinds.AVERAGES],
    ),
    "fused_norms": (
        lambda: norms(True),
        FOUR,
        {"communication__sync_batch_norm": True, "pipeline__num_micro_batch": 2},
        [kinds.STATISTICS],
    ),
    "norms": (lambda: norms(False), TWO, {"communication__sync_batch_norm": True}, [kinds.STATISTICS]),
    "state": (metric, FOUR, {}, [kinds.STATE]),
    "user": (by_user, FOUR, {}, [kinds.OF_USER]),
    "loss_scale": (
        dense,
        TWO,
        {"amp__level": "O1", "amp__dtype": "float16", "amp__loss_scale": 128.0, "zero__level": "v1"},
        [kinds.FOUND_INF],
    ),
    "v0": (dense, FOUR, {"zero__level": "v0"}, [kinds.PARAMETERS, kinds.GRADIENTS]),
    "v1": (dense, FOUR, {"zero__level": "v1"}, [kinds.PARAMETERS, kinds.GRADIENTS]),
    "v1_within_workers": (dense, FOUR, {"zero__level": "v1", "zero__degree": 2}, [kinds.PARAMETERS]),
    "half_scattered": (dense, TWO, {"communication__fp16": True, "zero__level": "v1"}, [kinds.GRADIENTS]),
    "ends_of_data": (dense, TWO, {"io__equal_steps": "repeat"}, [kinds.DATA]),
    "v2": (dense, FOUR, {"zero__level": "v2"}, [kinds.PARAMETERS]),
    "v3": (
        dense,
        TWO,
        {"zero__level": "v3", "zero__segment_mb": SMALL, "pipeline__num_micro_batch": 2},
        [kinds.PARAMETERS],
    ),
    "norms_of_rows": (lamb, TWO, {"zero__level": "v1"}, [kinds.PARAMETERS, kinds.NORMS]),
    "stages_in_workers": (staged, (4, 1), {"pipeline__num_micro_batch": 2}, [kinds.GRADIENTS]),
    "stages_in_workers_scaled": (
        staged,
        (4, 1),
        {"amp__level": "O1", "amp__dtype": "float16", "amp__loss_scale": 128.0},
        [kinds.FOUND_INF],
    ),
    "split": (split, TWO, {}, [kinds.SHARDS]),
    "split_in_a_worker": (split, (1, 2), {}, [kinds.SHARDS]),
    "split_in_micro_batches": (split, FOUR, {"pipeline__num_micro_batch": 2}, [kinds.SHARDS, kinds.GRADIENTS]),
    "experts": (experts, TWO, COLOCATED, [kinds.SHARDS]),
}


def config_of(case):
    """The configuration, by keys."""
    return {key.replace("__", "."): value for key, value in CASES[case][2].items()}
