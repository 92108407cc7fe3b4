"""What each copy of the model draws from every kind of random operation that runs on a CPU."""

import os

import tensorflow.compat.v1 as tf

from tests.helpers.programs import common

SHAPE = [1, 64]


def _op(kind, *args, **kwargs):
    return getattr(tf.raw_ops, kind)(*args, **kwargs)


def seeded():
    """Random operations with seeds among their attributes."""
    rate, half = tf.fill([1], 3.0), tf.fill([1, 2], 0.5)
    return {
        "RandomUniform": tf.random.uniform(SHAPE, seed=1),
        "RandomUniformInt": tf.random.uniform(SHAPE, maxval=1 << 20, dtype=tf.int32, seed=1),
        "RandomStandardNormal": tf.random.normal(SHAPE, seed=1),
        "TruncatedNormal": tf.random.truncated_normal(SHAPE, seed=1),
        "ParameterizedTruncatedNormal": _op(
            "ParameterizedTruncatedNormal",
            shape=SHAPE,
            means=[0.0],
            stdevs=[1.0],
            minvals=[-2.0],
            maxvals=[2.0],
            seed=1,
        ),
        "RandomShuffle": tf.random.shuffle(tf.range(64), seed=1),
        "RandomGamma": tf.random.gamma([64], rate, seed=1),
        "RandomPoissonV2": tf.random.poisson(lam=rate * 1000, shape=[64], seed=1),
        "Multinomial": tf.random.categorical(half, 64, seed=1),
        "UniformCandidateSampler": tf.random.uniform_candidate_sampler([[1]], 1, 64, False, 1 << 20, seed=1)[0],
    }


def keyed(seed):
    """Random operations with a seed among their inputs."""
    found = {
        "uniform": tf.random.stateless_uniform(SHAPE, seed),
        "normal": tf.random.stateless_normal(SHAPE, seed),
        "truncated": tf.random.stateless_truncated_normal(SHAPE, seed),
        "int": tf.random.stateless_uniform(SHAPE, seed, 0, 1 << 20, tf.int32),
        "categorical": tf.random.stateless_categorical(tf.zeros([1, 64]), 64, seed),
        "in a loop": tf.while_loop(
            lambda i, x: i < 2,
            lambda i, x: (i + 1, x + tf.random.stateless_normal(SHAPE, seed + i)),
            [tf.constant(0), tf.zeros(SHAPE)],
        )[1],
    }
    if hasattr(tf.raw_ops, "StatelessRandomGammaV2"):
        found["gamma"] = tf.random.stateless_gamma(SHAPE, seed, 2.0)
        found["poisson"] = tf.random.stateless_poisson(SHAPE, seed, 1000.0)
        found["binomial"] = tf.random.stateless_binomial(SHAPE, seed, 1000.0, 0.5)
        found["V1"] = _op("StatelessRandomNormal", shape=SHAPE, seed=seed)
    return found


def drawn():
    """Random operations that draw from a variable each, or their order would be left open."""
    generators = [tf.random.experimental.Generator.from_seed(5 + i) for i in range(4)]
    return {
        "StatefulStandardNormal": generators[0].normal(SHAPE),
        "StatefulUniform": generators[1].uniform(SHAPE),
        "StatefulTruncatedNormal": generators[2].truncated_normal(SHAPE),
        "StatefulUniformFullInt": generators[3].uniform_full_int(SHAPE, tf.int64),
    }


def records(folder):
    """RecordInput reads files in an order of its own."""
    path = os.path.join(folder, "records-%d" % os.getpid())
    with tf.python_io.TFRecordWriter(path) as writer:
        for number in range(64):
            writer.write(b"%02d" % number)
    batch = _op("RecordInput", file_pattern=path, file_parallelism=1, file_buffer_size=64, batch_size=32)
    return {"RecordInput": tf.strings.to_number(batch)}


def draws(epl, kind, folder=None, config=None):
    """(What all copies of the model drew in the first step, in the second)."""
    common.init(epl, config)
    step = tf.get_variable("step", [], tf.int32, tf.zeros_initializer(), trainable=False)
    made = {
        "seeded": seeded,
        "keyed": lambda: keyed(tf.stack([7, step])),
        "drawn": drawn,
        "records": lambda: records(folder),
    }[kind]()
    everywhere = {name: common.rows_everywhere(epl, tf.reshape(tensor, [1, -1])) for name, tensor in made.items()}
    weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
    train_op = tf.train.GradientDescentOptimizer(0.0).minimize(weight * tf.to_float(tf.reduce_sum(step) + 1))
    # All are drawn before the step that is in their seeds changes.
    with tf.control_dependencies([train_op] + list(made.values())):
        count = step.assign_add(1)
    with common.session() as sess:
        common.initialize(sess)
        return [sess.run([everywhere, count])[0] for _ in range(2)]
