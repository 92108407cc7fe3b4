"""Optimizers that programs write themselves, by assignments of what tf.gradients returned, and accumulators."""

import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.zoo import model as m

STEPS = 5


def _slot(variable, name):
    return tf.get_variable(
        "%s/%s" % (variable.op.name, name), variable.shape, initializer=tf.zeros_initializer(), trainable=False
    )


def _adam(gradients, variables, step):
    """Adam (Kingma & Ba 2015, algorithm 1), as the package keras writes it."""
    number = tf.cast(step, tf.float32) + 1.0
    rate = 0.05 * tf.sqrt(1.0 - tf.pow(0.999, number)) / (1.0 - tf.pow(0.9, number))
    with tf.control_dependencies([rate]):
        updates = [tf.assign_add(step, 1)]
    for gradient, variable in zip(gradients, variables):
        first, second = _slot(variable, "m"), _slot(variable, "v")
        new_first = 0.9 * first + 0.1 * gradient
        new_second = 0.999 * second + 0.001 * tf.square(gradient)
        new = variable - rate * new_first / (tf.sqrt(new_second) + 1e-7)
        updates += [tf.assign(first, new_first), tf.assign(second, new_second), tf.assign(variable, new)]
    return tf.group(*updates)


def _accumulated(gradients, variables, step):
    """Gradients are assigned to accumulators, or added to them, and applied, in branches (as OpenNMT-tf does)."""
    optimizer = tf.train.AdamOptimizer(0.05)
    sums = [_slot(v, "sum") for v in variables]
    first, last = tf.equal(step % 2, 0), tf.equal(step % 2, 1)

    def collect(change):
        return lambda: tf.group(*[change(total, gradient) for total, gradient in zip(sums, gradients)])

    with tf.control_dependencies([tf.cond(first, collect(tf.assign), collect(tf.assign_add))]):
        apply = tf.cond(
            last, lambda: optimizer.apply_gradients([(s / 2.0, v) for s, v in zip(sums, variables)]), tf.no_op
        )
    with tf.control_dependencies([apply]):
        return tf.group(tf.assign_add(step, 1))


def _steady(gradients, variables, step):
    """Accumulators that are added to outside of branches, and applied every second step with what comes then."""
    optimizer = tf.train.AdamOptimizer(0.05)
    sums = [_slot(v, "sum") for v in variables]
    now = tf.cast(step % 2, tf.float32)
    old = [tf.identity(total) for total in sums]
    whole = [now * (total + gradient) for total, gradient in zip(old, gradients)]
    with tf.control_dependencies(whole):  # the number of the step is read by then too
        kept = [tf.assign(s, (1.0 - now) * (o + g)) for s, o, g in zip(sums, old, gradients)]
        return tf.group(optimizer.apply_gradients(zip(whole, variables), global_step=step), *kept)


def _clipped(gradients, variables, step):
    """Clipping by the norm, whose average the program keeps, and momentum by hand."""
    clipped, norm = tf.clip_by_global_norm(gradients, 0.2)
    average = tf.get_variable("average", [], initializer=tf.zeros_initializer(), trainable=False)
    updates = [tf.assign_add(step, 1), tf.assign(average, 0.9 * average + 0.1 * norm)]
    for gradient, variable in zip(clipped, variables):
        momentum = _slot(variable, "momentum")
        new = 0.9 * momentum + gradient
        updates += [tf.assign(momentum, new), tf.assign_sub(variable, new)]
    return tf.group(*updates)


def _sparse(gradients, variables, step):
    """Adagrad by scatter operations, from the rows of a table that a batch has looked up; descent for the others."""
    updates = [tf.assign_add(step, 1)]
    for gradient, variable in zip(gradients, variables):
        if not isinstance(gradient, tf.IndexedSlices):
            updates.append(tf.assign_sub(variable, 0.05 * gradient))
            continue
        squares = _slot(variable, "squares")
        grown = tf.scatter_add(squares, gradient.indices, tf.square(gradient.values))
        with tf.control_dependencies([grown]):
            scale = tf.rsqrt(tf.gather(squares, gradient.indices) + 1e-3)
        updates += [grown, tf.scatter_sub(variable, gradient.indices, 0.05 * scale * gradient.values)]
    return tf.group(*updates)


UPDATES = {"adam": _adam, "accumulated": _accumulated, "steady": _steady, "clipped": _clipped}
SPARSE = {"sparse": _sparse}  # with gradients as tf.gradients returns them: IndexedSlices


def train(epl, names=None, config=None, resource=False, tape=False, stages=1, factor=1.0, together=False):
    """dict of way to its losses and variables after each step.

    Args:
      names: keys of UPDATES and SPARSE; None for all of UPDATES.
      resource: resource variables.
      tape: gradients from tf.GradientTape.
      factor: of the gradients.
      stages: scopes that the two layers and the loss are built in, 1 or 2.
      together: the workers compute one copy of the model, so each is fed all rows.
    """
    found = {}
    for name in names or sorted(UPDATES):
        with tf.Graph().as_default():
            common.init(epl, config)
            with tf.variable_scope("", use_resource=resource):
                found[name] = _train(epl, name, tape, stages, factor, together)
    return found


def _train(epl, name, tape, stages, factor, together):
    feeds = common.Feeds(None if together else epl)
    ids = tf.cast(feeds.labels, tf.int32)
    scope = common.scope_of(epl) if stages > 1 else common.no_scope
    with tf.GradientTape() if tape else common.no_scope() as recorded:
        with scope():
            table = m.variable("table", [common.CLASSES, common.FEATURES], seed=4)
            hidden = m.dense(feeds.x + tf.nn.embedding_lookup(table, ids), 8, "hidden", seed=1, activation=tf.nn.tanh)
        with scope():
            loss = m.classification(m.dense(hidden, common.CLASSES, "logits", seed=3), feeds.labels)
    variables = tf.trainable_variables()
    gradients = recorded.gradient(loss, variables) if tape else tf.gradients(loss, variables)
    step = tf.train.get_or_create_global_step()
    if name in UPDATES:
        gradients = [factor * tf.convert_to_tensor(g) for g in gradients]
    gradients = tf.tuple(gradients)  # all of them before the first update
    train_op = dict(UPDATES, **SPARSE)[name](gradients, variables, step)
    loss = common.mean_everywhere(epl, loss)
    losses, states = [], []
    with common.session() as sess:
        common.initialize(sess)
        for number in range(STEPS):
            losses.append(sess.run([loss, train_op], feeds.of(number))[0])
            states.append(common.state(sess))
    return {"losses": losses, "states": states}
