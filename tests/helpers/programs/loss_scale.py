"""A model in float16 with a loss scale, whose data is infinite in chosen steps."""

import contextlib
import importlib
import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common, pipelines
from tests.helpers.zoo import model as m

FLOAT16 = {"amp.level": "O1", "amp.dtype": "float16"}
ROWS, WIDTH = 16, 6


def rows(number, bad=False, place=0):
    """The global batch of a step: (x, labels, words); one number of x is infinite in a bad one."""
    rng = np.random.RandomState(500 + number)
    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    labels = x.reshape(ROWS, 3, 2).sum(axis=2).argmax(axis=1)
    if bad:
        x[place % ROWS, 1] = np.inf
    return x, labels, rng.randint(0, 10, ROWS)


def _whole(_):
    return contextlib.nullcontext()


def model(kind, resource, scope=_whole):
    """(loss, placeholders, training operation) of a kind of optimizer; `scope` gives that of a half of it."""
    x, labels = tf.placeholder(tf.float32, [None, WIDTH], "x"), tf.placeholder(tf.int64, [None], "labels")
    words = tf.placeholder(tf.int64, [None], "words")
    fed = x, labels, words
    with tf.variable_scope("net", use_resource=resource), scope(0):
        alone, whole = 0.0, x
        if kind in ("one", "last"):  # of whose gradients one alone is infinite
            alone = _alone(whole) if kind == "one" else 0.0
            x = tf.where(tf.is_finite(x), x, tf.zeros_like(x))
        table = tf.get_variable("table", [10, 8], initializer=m.initial(7))
        hidden = m.dense(x, 8, "hidden", seed=1, activation=tf.nn.relu) + tf.gather(table, words)
        if kind == "norm":
            hidden = tf.layers.batch_normalization(hidden, momentum=0.8, training=True, name="norm")
    with tf.variable_scope("net", use_resource=resource), scope(1):
        logits = m.dense(hidden, 3, "logits", seed=3)
        alone = _alone(whole) if kind == "last" else alone
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)) + alone
    step = tf.train.get_or_create_global_step()
    if kind == "norm":
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
    elif kind in ("adam", "one", "last"):
        train_op = tf.train.AdamOptimizer(0.02, epsilon=1e-3).minimize(loss, global_step=step)
    elif kind == "clipped":
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        clipped = [tf.clip_by_value(g, -0.05, 0.05) for g in map(tf.convert_to_tensor, gradients)]
        train_op = optimizer.apply_gradients(zip(clipped, variables), global_step=step)
    elif kind == "keras":
        optimizer = tf.keras.optimizers.RMSprop(0.01)
        optimizer.iterations = step
        train_op = tf.group(optimizer.get_updates(loss, tf.trainable_variables()))
    elif kind == "gradients":
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss)
        for gradient, variable in pairs:
            tf.identity(tf.convert_to_tensor(gradient), "gradient_of/" + variable.op.name)
        train_op = optimizer.apply_gradients(pairs, global_step=step)
    elif kind == "two":
        ours, others = tf.trainable_variables()[:1], tf.trainable_variables()[1:]
        first = tf.train.AdamOptimizer(0.02, epsilon=1e-3).minimize(loss, global_step=step, var_list=others)
        train_op = tf.group(tf.train.AdagradOptimizer(0.1).minimize(loss, var_list=ours), first)
    return loss, fed, train_op


def _alone(x):
    return tf.get_variable("alone", [], initializer=tf.ones_initializer()) * (1.0 + tf.reduce_sum(x - x))


def train(
    epl,
    steps,
    bad,
    kind="adam",
    resource=True,
    restore=None,
    save=None,
    config=None,
    stages=1,
    groups=None,
    devices=None,
):
    """Trains steps first..last-1 of `steps`; those in `bad` have infinite data.

    With two `stages` each half of the model is one. `groups` divide the data, by default all workers. `devices`, by
    default all, are those of each worker.

    Returns:
      {"losses", "steps": global steps, "states": values of all variables, after each step, first values in front;
      "scales": (loss scale, good steps, bad steps) after each step}.
    """
    with pipelines.devices_of(devices) if devices else contextlib.nullcontext():
        common.init(epl, dict(FLOAT16, **(config or {})) if epl else None)
    scoped = (lambda stage: epl.replicate(1, name="stage_%d" % stage)) if stages > 1 else _whole
    loss, placeholders, train_op = model(kind, resource, scoped)
    fetched = common.mean_everywhere(epl, loss)
    variables, saver = tf.global_variables(), tf.train.Saver()
    found = {"losses": [], "states": [], "scales": []}
    if epl:
        scale_of = importlib.import_module("tests.helpers.programs.scale_of")
    with common.session() as sess:
        if restore:
            saver.restore(sess, restore)
        else:
            common.initialize(sess)

        def note():
            found["states"].append(dict(zip([v.op.name for v in variables], sess.run(variables))))

        note()
        for number in range(*steps):
            whole = rows(number, number in bad, place=5 * number)
            values = [pipelines.share(epl, part, groups or common.workers(epl)[1]) for part in whole]
            found["losses"].append(sess.run([fetched, train_op], dict(zip(placeholders, values)))[0])
            note()
            if epl:
                found["scales"].append(scale_of.read(sess))
        if save:
            path = os.path.join(save, "worker_%d" % common.workers(epl)[0])
            os.makedirs(path, exist_ok=True)
            saver.save(sess, os.path.join(path, "model"))
    found["steps"] = [int(state["global_step"]) for state in found["states"]]
    return found


def two_scales(epl, steps, bad, config=None):
    """Trains two models side by side, each by a loss and an optimizer of its own, in one run of a session.

    Args:
      steps: how many.
      bad: for each of the two, the steps in which its data is infinite.

    Returns:
      for each of the two {"states": its variables and slots after each step, first values in front; "scales": as of
      `train`}.
    """
    common.init(epl, dict(FLOAT16, **(config or {})))
    sides = []
    for side, make in (("one", tf.train.AdamOptimizer), ("other", tf.train.AdagradOptimizer)):
        x, labels = tf.placeholder(tf.float32, [None, WIDTH]), tf.placeholder(tf.int64, [None])
        with tf.variable_scope(side, use_resource=True):
            logits = m.dense(m.dense(x, 8, "hidden", seed=1, activation=tf.nn.relu), 3, "logits", seed=3)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
            sides.append(((x, labels), make(0.02, name="apply").minimize(loss)))
    found = [{"states": [], "scales": []} for _ in sides]
    read = importlib.import_module("tests.helpers.programs.scale_of").read
    with common.session() as sess:
        common.initialize(sess)

        def note():
            state = common.state(sess)
            for own, name in zip(found, ("one", "other")):
                own["states"].append({n: value for n, value in state.items() if n.startswith(name + "/")})

        note()
        for number in range(steps):
            fed = {}
            for (placeholders, _), wrong in zip(sides, bad):
                whole = rows(number, number in wrong, place=5 * number)
                values = [pipelines.share(epl, part, common.workers(epl)[1]) for part in whole]
                fed.update(zip(placeholders, values))
            sess.run([update for _, update in sides], fed)
            note()
            for place, own in enumerate(found):
                own["scales"].append(read(sess, place))
    return found
