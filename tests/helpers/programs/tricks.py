"""Training tricks met in programs: schedules, clipping, decay, wrapped optimizers, tf.contrib (TF 1.15)."""

import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.zoo import model as m

STEPS = 4
AFTER = {"communication.clip_after_allreduce": True}


def _sgd(feeds, rate, step):
    loss = common.classifier(feeds.x, feeds.labels)
    return loss, tf.train.MomentumOptimizer(rate, 0.9, use_nesterov=True).minimize(loss, global_step=step)


def exponential(feeds, step):
    return _sgd(feeds, tf.train.exponential_decay(0.1, step, 2, 0.5, staircase=True), step)


def piecewise(feeds, step):
    return _sgd(feeds, tf.train.piecewise_constant(step, [1, 2], [0.1, 0.05, 0.2]), step)


def cosine_restarts(feeds, step):
    return _sgd(feeds, tf.train.cosine_decay_restarts(0.1, step, 2), step)


def warm_up(feeds, step):
    ready = tf.train.polynomial_decay(0.1, step, 6, end_learning_rate=0.01, power=2.0)
    rate = tf.cond(step < 2, lambda: 0.1 * tf.cast(step + 1, tf.float32) / 2.0, lambda: ready)
    return _sgd(feeds, rate, step)


def inverse_root(feeds, step):
    number = tf.cast(step + 1, tf.float32)
    rate = 0.1 * tf.minimum(tf.rsqrt(number), number * 0.5)
    tf.summary.scalar("rate", rate)
    return _sgd(feeds, rate, step)


def _clipped(feeds, step, clip):
    loss = common.classifier(feeds.x, feeds.labels) * 5.0
    optimizer = tf.train.AdamOptimizer(0.02)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    return loss, optimizer.apply_gradients(zip(clip(gradients), variables), global_step=step)


def clip_value(feeds, step):
    return _clipped(feeds, step, lambda gradients: [tf.clip_by_value(g, -0.05, 0.05) for g in gradients])


def clip_norm(feeds, step):
    return _clipped(feeds, step, lambda gradients: [tf.clip_by_norm(g, 0.1) for g in gradients])


def clip_average_norm(feeds, step):
    return _clipped(feeds, step, lambda gradients: [tf.clip_by_average_norm(g, 0.01) for g in gradients])


def clip_global(feeds, step):
    return _clipped(feeds, step, lambda gradients: tf.clip_by_global_norm(gradients, 0.2)[0])


def clip_own(feeds, step):
    """Clipping written by hand, with a norm that the program computes itself and zeroes where it is not finite."""

    def clip(gradients):
        norm = tf.sqrt(sum(tf.reduce_sum(tf.square(g)) for g in gradients))
        scale = tf.where(tf.is_finite(norm), 0.3 / tf.maximum(norm, 0.3), tf.zeros_like(norm))
        return [g * scale for g in gradients]

    return _clipped(feeds, step, clip)


def decoupled_decay(feeds, step):
    loss = common.classifier(feeds.x, feeds.labels)
    update = tf.train.AdamOptimizer(0.02).minimize(loss, global_step=step)
    with tf.control_dependencies([update]):
        decay = [tf.assign_sub(v, 0.01 * v) for v in tf.trainable_variables() if "bias" not in v.op.name]
    return loss, tf.group(update, *decay)


class Wrapper(tf.train.Optimizer):
    """An optimizer around another one, which scales and filters gradients."""

    def __init__(self, inner):
        super(Wrapper, self).__init__(False, "Wrapper")
        self._inner = inner

    def compute_gradients(self, loss, *args, **kwargs):
        pairs = self._inner.compute_gradients(loss * 8.0, *args, **kwargs)
        return [(g / 8.0, v) for g, v in pairs if g is not None]

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        return self._inner.apply_gradients(grads_and_vars, global_step, name)


def wrapped(feeds, step):
    loss = common.classifier(feeds.x, feeds.labels)
    inner = tf.train.RMSPropOptimizer(0.01, centered=True, momentum=0.5)
    return loss, Wrapper(Wrapper(inner)).minimize(loss, global_step=step)


class LookAhead(tf.train.Optimizer):
    """Fast weights, which go back half the way to slow ones every second step (Zhang et al., 2019)."""

    def __init__(self, inner):
        super(LookAhead, self).__init__(False, "LookAhead")
        self._inner = inner

    def compute_gradients(self, *args, **kwargs):
        return self._inner.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        pairs = list(grads_and_vars)
        slow = [
            tf.get_variable(v.op.name + "/slow", initializer=v.initialized_value(), trainable=False) for _, v in pairs
        ]
        with tf.control_dependencies([self._inner.apply_gradients(pairs, global_step)]):
            now = tf.cast(tf.equal(tf.floormod(global_step, 2), 0), tf.float32)
            new = [s + 0.5 * now * (v - s) for s, (_, v) in zip(slow, pairs)]
            changes = [tf.assign(s, n) for s, n in zip(slow, new)]
            changes += [tf.assign(v, now * n + (1.0 - now) * v) for n, (_, v) in zip(new, pairs)]
            return tf.group(*changes)


def look_ahead(feeds, step):
    loss = common.classifier(feeds.x, feeds.labels)
    return loss, LookAhead(tf.train.GradientDescentOptimizer(0.1)).minimize(loss, global_step=step)


def uncertainty(feeds, step):
    """Several losses whose weights are learnt, with gradients stopped between them, and two optimizers in one step."""
    x = feeds.x
    x.set_shape([None, common.FEATURES])
    hidden = m.dense(x, 8, "hidden", seed=1, activation=tf.nn.tanh)
    first = m.classification(m.dense(hidden, common.CLASSES, "first", seed=3), feeds.labels)
    second = tf.reduce_mean(tf.square(m.dense(tf.stop_gradient(hidden), 2, "second", seed=5) - x[:, :2]))
    # Read once, so that what is fetched and the gradients see the same value, whenever the update comes.
    weights = tf.get_variable("weights", [2], initializer=tf.zeros_initializer(), use_resource=True).read_value()
    loss = tf.exp(-weights[0]) * first + tf.exp(-weights[1]) * second + tf.reduce_sum(weights)
    slow = [v for v in tf.trainable_variables() if v.op.name.startswith("hidden")]
    fast = [v for v in tf.trainable_variables() if v not in slow]
    gradients = tf.tuple(tf.gradients(loss, slow + fast))  # all of them before the first update
    one = tf.train.AdagradOptimizer(0.05).apply_gradients(zip(gradients[: len(slow)], slow))
    two = tf.train.FtrlOptimizer(0.1).apply_gradients(zip(gradients[len(slow) :], fast), global_step=step)
    return loss, tf.group(one, two)


def smoothed_variables(feeds, step):
    """A moving average of the variables, which the update waits for."""
    loss = common.classifier(feeds.x, feeds.labels)
    update = tf.train.AdadeltaOptimizer(0.5).minimize(loss, global_step=step)
    average = tf.train.ExponentialMovingAverage(0.9, num_updates=step)
    with tf.control_dependencies([update]):
        return loss, average.apply(tf.trainable_variables())


def l2_and_loss_collection(feeds, step):
    x = feeds.x
    x.set_shape([None, common.FEATURES])
    hidden = tf.layers.dense(
        x,
        8,
        tf.nn.relu,
        kernel_initializer=m.initial(3),
        kernel_regularizer=lambda kernel: 0.01 * tf.nn.l2_loss(kernel),
    )
    logits = tf.layers.dense(hidden, common.CLASSES, kernel_initializer=m.initial(4))
    tf.losses.sparse_softmax_cross_entropy(feeds.labels, logits)
    loss = tf.losses.get_total_loss()
    return loss, tf.train.ProximalAdagradOptimizer(0.1, l2_regularization_strength=0.01).minimize(loss, step)


def contrib_ada_max(feeds, step):
    from tensorflow.contrib import opt

    loss = common.classifier(feeds.x, feeds.labels)
    return loss, opt.AdaMaxOptimizer(0.02).minimize(loss, global_step=step)


def contrib_lazy_adam(feeds, step):
    from tensorflow.contrib import opt

    table = m.variable("table", [common.CLASSES, 4], seed=9)
    rows = tf.nn.embedding_lookup(table, feeds.labels)
    loss = tf.reduce_mean(tf.square(rows - feeds.x[:, :4]))
    return loss, opt.LazyAdamOptimizer(0.02).minimize(loss, global_step=step)


def contrib_average(feeds, step):
    from tensorflow.contrib import opt

    loss = common.classifier(feeds.x, feeds.labels)
    optimizer = opt.MovingAverageOptimizer(opt.NadamOptimizer(0.02), average_decay=0.8)
    return loss, optimizer.minimize(loss, global_step=step)


def contrib_lars(feeds, step):
    from tensorflow.contrib import opt

    loss = common.classifier(feeds.x, feeds.labels)
    return loss, opt.LARSOptimizer(0.5, momentum=0.9).minimize(loss, global_step=step)


def contrib_optimize_loss(feeds, step):
    from tensorflow.contrib import layers

    x = feeds.x
    x.set_shape([None, common.FEATURES])
    hidden = layers.fully_connected(x, 8, weights_initializer=m.initial(3), normalizer_fn=layers.layer_norm)
    logits = layers.linear(hidden, common.CLASSES, weights_initializer=m.initial(4))
    loss = tf.losses.sparse_softmax_cross_entropy(feeds.labels, logits)
    return loss, layers.optimize_loss(
        loss,
        step,
        0.05,
        "Adam",
        clip_gradients=0.5,
        learning_rate_decay_fn=lambda rate, number: tf.train.exponential_decay(rate, number, 2, 0.9),
    )


def contrib_slim(feeds, step):
    from tensorflow.contrib import slim

    x = tf.reshape(feeds.x, [-1, 3, 2, 1])
    with slim.arg_scope(
        [slim.conv2d, slim.fully_connected],
        weights_initializer=m.initial(5, 0.3),
        weights_regularizer=slim.l2_regularizer(0.001),
        biases_initializer=m.initial(6, 0.1),
    ):
        net = slim.conv2d(x, 4, [2, 2], scope="conv")
        net = slim.fully_connected(slim.flatten(net), common.CLASSES, activation_fn=None, scope="logits")
    slim.losses.softmax_cross_entropy(net, tf.one_hot(feeds.labels, common.CLASSES))
    loss = slim.losses.get_total_loss()
    train = slim.learning.create_train_op(
        loss, tf.train.MomentumOptimizer(0.1, 0.9), clip_gradient_norm=0.3, summarize_gradients=True
    )
    return loss, train


def contrib_rnn(feeds, step):
    from tensorflow.contrib import rnn

    x = tf.reshape(feeds.x, [-1, 3, 2])
    with tf.variable_scope("cells", initializer=m.initial(8, 0.4)):
        cells = rnn.MultiRNNCell([rnn.LSTMBlockCell(4), rnn.GRUCell(4)])
        outputs, _ = tf.nn.dynamic_rnn(cells, x, dtype=tf.float32)
        forward, backward = rnn.BasicLSTMCell(3), rnn.NASCell(3)
        both, _ = tf.nn.bidirectional_dynamic_rnn(forward, backward, outputs, dtype=tf.float32)
    logits = m.dense(tf.concat(both, 2)[:, -1], common.CLASSES, "logits", seed=3)
    loss = m.classification(logits, feeds.labels)
    return loss, tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)


COMMON = [
    "exponential",
    "piecewise",
    "cosine_restarts",
    "warm_up",
    "inverse_root",
    "clip_value",
    "clip_norm",
    "clip_average_norm",
    "clip_global",
    "clip_own",
    "decoupled_decay",
    "wrapped",
    "look_ahead",
    "uncertainty",
    "smoothed_variables",
    "l2_and_loss_collection",
]
CONTRIB = [
    "contrib_ada_max",
    "contrib_lazy_adam",
    "contrib_average",
    "contrib_lars",
    "contrib_optimize_loss",
    "contrib_slim",
    "contrib_rnn",
]
CLIPS = ("clip", "contrib_optimize_loss", "contrib_slim")


def train(epl, names, config=None):
    """dict of trick to its losses and its variables after each step."""
    results = {}
    for name in names:
        common.init(epl, dict(config or {}, **(AFTER if name.startswith(CLIPS) else {})))
        with tf.Graph().as_default():
            tf.set_random_seed(11)
            results[name] = _train(epl, globals()[name])
    return results


def _train(epl, build):
    feeds = common.Feeds(epl)
    step = tf.train.get_or_create_global_step()
    loss, train_op = build(feeds, step)
    loss = common.mean_everywhere(epl, loss)
    losses, states = [], []
    with common.session() as sess:
        common.initialize(sess)
        for number in range(STEPS):
            losses.append(sess.run([loss, train_op], feeds.of(number))[0])
            states.append(common.state(sess))
    return {"losses": losses, "states": states}


def accumulated(epl):
    """Gradients that the program itself adds up over two runs and applies in a third."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    optimizer = tf.train.AdamOptimizer(0.02)
    pairs = optimizer.compute_gradients(loss)
    sums = [
        tf.get_variable("sum_%d" % i, v.shape, initializer=tf.zeros_initializer(), trainable=False)
        for i, (_, v) in enumerate(pairs)
    ]
    add = tf.group(*[tf.assign_add(total, g) for total, (g, _) in zip(sums, pairs)])
    apply_op = optimizer.apply_gradients([(total / 2.0, v) for total, (_, v) in zip(sums, pairs)])
    clear = tf.group(*[tf.assign(total, tf.zeros_like(total)) for total in sums])
    states = []
    with common.session() as sess:
        common.initialize(sess)
        for number in range(STEPS):
            sess.run(add, feeds.of(number))
            if number % 2:
                sess.run(apply_op)
                sess.run(clear)
            states.append(common.state(sess))
    return states


def refused(epl):
    """What tf.train.SyncReplicasOptimizer is answered."""
    common.init(epl)
    loss = tf.square(tf.get_variable("weight", [], initializer=tf.ones_initializer()))
    try:
        optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(0.1), replicas_to_aggregate=2)
        optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    except NotImplementedError as error:
        return type(error).__name__, str(error)
    return "", ""
