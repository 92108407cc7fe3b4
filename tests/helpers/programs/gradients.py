"""Programs about how gradients of replicas become one."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers import references
from tests.helpers.programs import common
from tests.helpers.zoo import model as m

STEPS = 5


def _train(epl, loss, train_op, feeds, steps=STEPS):
    """Runs the steps; the losses and the variables after each step."""
    losses, states = [], []
    with common.session() as sess:
        common.initialize(sess)
        for step in range(steps):
            value, _ = sess.run([loss, train_op], feeds.of(step))
            losses.append(value)
            states.append(common.state(sess))
    return {"losses": losses, "states": states}


def classifier(epl, config=None, optimizer="momentum", gradient_scale=1.0, annotate=True, device_count=1):
    """The small classifier, fed; `gradient_scale` multiplies the gradients before they are applied."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    if epl and annotate:
        with epl.replicate(device_count=device_count):
            loss = common.classifier(feeds.x, feeds.labels)
    else:
        loss = common.classifier(feeds.x, feeds.labels)
    optimizer = m.OPTIMIZERS[optimizer]()
    pairs = optimizer.compute_gradients(loss)
    if gradient_scale != 1.0:
        pairs = [(gradient_scale * gradient, variable) for gradient, variable in pairs]
    train_op = optimizer.apply_gradients(pairs, global_step=tf.train.get_or_create_global_step())
    return _train(epl, common.mean_everywhere(epl, loss), train_op, feeds)


def from_dataset(epl, device_count):
    """The small classifier over a data set; a model replica on `device_count` devices pulls one batch a step."""
    common.init(epl)
    index, count = common.workers(epl)
    pulls = common.replicas(epl) // (device_count if epl else 1)
    batches = [tuple(common.share(epl, part) for part in common.batch(step)) for step in range(STEPS)]
    rows = tuple(np.concatenate(parts) for parts in zip(*batches))
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(common.BATCH // pulls)
    x, labels = tf.data.make_one_shot_iterator(dataset).get_next()
    if epl:
        with epl.replicate(device_count=device_count):
            loss = common.classifier(x, labels)
            seen = tf.shape(x)[:1]
    else:
        loss, seen = common.classifier(x, labels), tf.shape(x)[:1]
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    loss, seen = common.mean_everywhere(epl, loss), common.rows_everywhere(epl, seen)
    losses, sizes = [], []
    with common.session() as sess:
        common.initialize(sess)
        for _ in range(STEPS):
            value, size, _ = sess.run([loss, seen, train_op])
            losses.append(value)
            sizes.append(size)
        return {"losses": losses, "sizes": sizes, "state": common.state(sess)}


def clipped(epl, replicas, after=False, **config):
    """Clipping by global norm. Plain: clips the gradient of each replica's part by itself and applies the mean."""
    config = {key.replace("__", "."): value for key, value in config.items()}
    common.init(epl, dict(config, **{"communication.clip_after_allreduce": after}))
    feeds = common.Feeds(epl)
    parts = 1 if epl else replicas
    losses, clipped_parts = [], []
    for x, labels in zip(tf.split(feeds.x, parts), tf.split(feeds.labels, parts)):
        with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
            losses.append(common.classifier(4.0 * x, labels))
        gradients, _ = tf.clip_by_global_norm(tf.gradients(losses[-1], tf.trainable_variables()), 0.1)
        clipped_parts.append(gradients)
    means = [tf.add_n(same) / float(len(same)) for same in zip(*clipped_parts)] if parts > 1 else clipped_parts[0]
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).apply_gradients(zip(means, tf.trainable_variables()))
    loss = common.mean_everywhere(epl, tf.add_n(losses) / float(len(losses)) if parts > 1 else losses[0])
    return _train(epl, loss, train_op, feeds)


def embedding(epl, config=None):
    """A table of which each replica touches a few rows."""
    common.init(epl, config)
    ids = tf.placeholder(tf.int32, [None, 3])
    table = m.variable("table", [10, 4], seed=1)
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.nn.embedding_lookup(table, ids), axis=1) - 1.0))
    train_op = tf.train.AdagradOptimizer(0.1).minimize(loss)

    class Ids(object):
        @staticmethod
        def of(step):
            return {ids: common.share(epl, np.random.RandomState(step).randint(0, 10, (common.BATCH, 3)))}

    return _train(epl, common.mean_everywhere(epl, loss), train_op, Ids())


def overflow(epl, scale):
    """A gradient of 100 that fp16_scale makes too large for half precision. The error is what the test looks at."""
    common.init(epl, {"communication.fp16": True, "communication.fp16_scale": scale})
    weight = tf.get_variable("weight", [2], initializer=tf.zeros_initializer())
    x = tf.placeholder(tf.float32, [None, 2])
    loss = tf.reduce_mean(tf.reduce_sum(100.0 * x * weight, axis=1))
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
    with common.session() as sess:
        common.initialize(sess)
        sess.run(train_op, {x: common.share(epl, np.ones([common.BATCH, 2], np.float32))})
        return sess.run(weight)


def measured_link(epl, config=None):
    """Trains a step: (the tensors of each group of gradients, the plan's Link)."""
    from epl.session.hooks import driver_of

    common.init(epl, config)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with common.session() as sess:
        common.initialize(sess)
        sess.run(train_op, feeds.of(0))
        plan = driver_of(sess).rewritten.plan
        return [group.tensors for group in plan.aggregation.groups], plan.link


# The epsilon for the reason that tests.helpers.zoo.model gives for Adam's.
LARGE_BATCH = {"Lamb": {"rate": 0.05, "epsilon": 1e-3}, "Lars": {"rate": 0.5, "coeff": 0.1}}


def large_batch(epl, kind, micro_batches=1):
    """LAMB or LARS; without EPL by NumPy, from the gradients of the whole batch."""
    common.init(epl, {"pipeline.num_micro_batch": micro_batches})
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    variables = tf.trainable_variables()
    if epl:
        numbers = {{"rate": "learning_rate", "coeff": "lars_coeff"}.get(k, k): v for k, v in LARGE_BATCH[kind].items()}
        optimizer = getattr(epl.optimizers, kind + "Optimizer")(exclude_from_weight_decay=["bias"], **numbers)
        train = optimizer.minimize(loss)
        loss = common.mean_everywhere(epl, loss)
    else:
        train = tf.gradients(loss, variables)
    losses, states, simulated = [], [], None
    with common.session() as sess:
        common.initialize(sess)
        for step in range(STEPS):
            value, gradients = sess.run([loss, train], feeds.of(step))
            losses.append(value)
            if not epl:
                make = getattr(references, kind)
                simulated = simulated or [
                    make(v.eval(sess), excluded="bias" in v.op.name, **LARGE_BATCH[kind]) for v in variables
                ]
                for variable, each, gradient in zip(variables, simulated, gradients):
                    variable.load(each.step(gradient), sess)
            states.append(sess.run({v.op.name: v for v in variables}))
    return {"losses": losses, "states": states}
