"""Programs with batch normalisation, trained on batches that are cut over the replicas."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.programs.split import dividing_scope, share_of_copy
from tests.helpers.zoo import model as m

STEPS = 4
SIDE = 4


def _images(step):
    rng = np.random.RandomState(300 + step)
    x = rng.normal(size=(common.BATCH, SIDE, SIDE, 3)).astype(np.float32)
    return x + 0.5 * rng.normal(size=(common.BATCH, 1, 1, 1)).astype(np.float32)  # the halves' means differ


def _norm(x, kind, number, training=True):
    name = "norm_%d" % number
    if kind == "keras":
        layer = tf.keras.layers.BatchNormalization(momentum=0.8, name=name)
        y = layer(x, training=training)
        for update in layer.updates:
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
        return y
    if kind == "moments":
        mean, variance = tf.nn.moments(x, [0, 1, 2])
        gamma = tf.get_variable(name + "/gamma", [x.shape[-1]], x.dtype, initializer=tf.ones_initializer())
        return tf.nn.batch_normalization(x, mean, variance, None, gamma, 1e-3)
    if kind == "channels_first":  # the CPU's kernel takes the other order only, so this goes through plain TF's moments
        x = tf.transpose(x, [0, 3, 1, 2])
        y = tf.layers.batch_normalization(x, axis=1, momentum=0.8, training=training, fused=False, name=name)
        return tf.transpose(y, [0, 2, 3, 1])
    return tf.layers.batch_normalization(
        x, momentum=0.8, training=training, fused=kind == "fused", name=name, reuse=tf.AUTO_REUSE
    )


def _network(x, kind, training=True):
    for number in range(2):
        x = tf.layers.conv2d(
            x,
            4,
            3,
            padding="same",
            use_bias=False,
            kernel_initializer=m.initial(number, 0.3),
            name="conv_%d" % number,
            reuse=tf.AUTO_REUSE,
        )
        x = tf.nn.relu(_norm(x, kind, number, training) + 0.1)
    x = tf.reshape(x, [-1, SIDE * SIDE * 4])
    x = tf.layers.dense(x, 5, use_bias=False, kernel_initializer=m.initial(7, 0.3), name="dense", reuse=tf.AUTO_REUSE)
    if kind == "plain":
        x += _norm(x, kind, 2, training)
    return x


def train(epl, kind, sync=True, splits=5):
    """Losses and all variables after each step, and the loss of an evaluation with the moving statistics."""
    common.init(epl, {"communication.sync_batch_norm": sync, "communication.max_splits": splits})
    # Gradients behind a normalisation are small differences, so float64 where the kernels have it.
    dtype = tf.float32 if kind in ("fused", "keras") else tf.float64
    x = tf.placeholder(dtype, [None, SIDE, SIDE, 3])
    loss = tf.reduce_mean(tf.square(_network(x, kind) - 0.5))
    step = tf.train.get_or_create_global_step()
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss, global_step=step)
    common.mean_everywhere(epl, loss)
    evaluation = None
    if kind in ("fused", "plain"):
        evaluation = tf.reduce_mean(tf.square(_network(x, kind, training=False) - 0.5))
    losses, states = [], []
    with common.session() as sess:
        common.initialize(sess)
        for number in range(STEPS):
            losses.append(sess.run([loss, train_op], {x: common.share(epl, _images(number))})[0])
            states.append(common.state(sess))
        evaluated = sess.run(evaluation, {x: _images(99)}) if evaluation is not None else 0.0
    return {"losses": losses, "states": states, "evaluated": evaluated}


def divided(epl, kind, scope, **config):
    """Losses and all variables of a model whose tensors the two devices of each copy divide, by rows ("replicate") or
    by columns ("split"), after each step."""
    common.init(epl, dict({"communication.sync_batch_norm": True}, **config))
    images = np.concatenate([share_of_copy(epl, 2, _images(number)) for number in range(STEPS)])
    copies = epl.Env.get().cluster.total_gpu_num // 2 if epl else 1
    # Devices divide rows where the graph knows their number.
    data = tf.data.Dataset.from_tensor_slices(images).batch(common.BATCH // copies, scope == "replicate")
    x = tf.data.make_one_shot_iterator(data).get_next()
    with dividing_scope(epl, 2, scope):
        x = tf.cast(x, tf.float32 if kind == "fused" else tf.float64)
        loss = tf.reduce_mean(tf.square(_network(x, kind) - 0.5))
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss)
    common.mean_everywhere(epl, loss)
    losses, states = [], []
    with common.session() as sess:
        common.initialize(sess)
        for _ in range(STEPS):
            losses.append(sess.run([loss, train_op])[0])
            states.append(common.state(sess))
    return {"losses": losses, "states": states}


def half(epl):
    """A fused normalisation of float16 images."""
    common.init(epl, {"communication.sync_batch_norm": True})
    x = tf.placeholder(tf.float32, [None, SIDE, SIDE, 3])
    scale = tf.get_variable("scale", [3], initializer=tf.ones_initializer())
    y, mean, variance = tf.nn.fused_batch_norm(tf.cast(x, tf.float16), scale, tf.zeros([3]), epsilon=1e-3)
    loss = tf.reduce_mean(tf.cast(y, tf.float32) * tf.cast(x, tf.float32))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    common.mean_everywhere(epl, loss)
    with common.session() as sess:
        common.initialize(sess)
        values = sess.run([mean, variance, loss, train_op], {x: common.share(epl, _images(0))})[:3]
        return values + [sess.run(scale)]


def refused(epl, what):
    """What sync_batch_norm answers to normalisations that it cannot synchronise."""
    common.init(epl, {"communication.sync_batch_norm": True})
    x = tf.placeholder(tf.float32, [None, SIDE, SIDE, 3])
    if what == "branch":
        y = tf.layers.batch_normalization(x, training=tf.placeholder_with_default(True, []), fused=True)
    elif what == "loop":
        y = tf.while_loop(lambda i, _: i < 2, lambda i, z: (i + 1, _norm(z, "moments", 0)), (0, x))[1]
    else:
        y = tf.layers.batch_normalization(x, training=True, fused=what != "second order of moments")
    loss = tf.reduce_mean(tf.square(y + tf.get_variable("weight", [], initializer=tf.ones_initializer())))
    if what.startswith("second order"):
        loss += tf.reduce_sum(tf.square(tf.gradients(loss, x)[0]))
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with common.session() as sess:
        try:
            common.initialize(sess)
            sess.run(train_op, {x: common.share(epl, _images(0))})
        except NotImplementedError as error:
            return str(error)
    return ""
