"""Programs with Adam and Momentum that the configuration turns into LAMB and LARS."""

import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.references import Lamb, Lars

STEPS = 20
EXCLUDED = {"optimizer.exclude_from_weight_decay": "no_such_name, bias$"}
CONFIG = {
    "lamb": dict(EXCLUDED, **{"optimizer.lamb": True, "optimizer.lamb_weight_decay": 0.1}),
    "lars": dict(
        EXCLUDED,
        **{"optimizer.lars": True, "optimizer.lars_weight_decay": 0.01, "optimizer.lars_coeff": 0.1},
    ),
}
CONFIG["lamb, other epsilon"] = dict(CONFIG["lamb"], **{"optimizer.epsilon": 0.01})


def _optimizer(kind):
    if kind == "lars":
        return tf.train.MomentumOptimizer(0.5, 0.8)
    return tf.train.AdamOptimizer(0.02, 0.8, 0.95, 1e-4)


def _reference(kind, variable, value):
    excluded = variable.op.name.endswith("bias")
    if kind == "lars":
        return Lars(value, 0.5, 0.8, 0.1, 0.01, excluded)
    return Lamb(value, 0.02, 0.8, 0.95, 0.01 if "epsilon" in kind else 1e-4, 0.1, excluded)


def train(epl, kind, config=None, begin=0, until=STEPS, before=None, after=None):
    """Losses and trained variables after each step; the plain process updates by NumPy, with the optimizer's gradients.

    The variables' names with and without slots besides, as the program's optimizer knows them.

    Args:
      begin, until: the steps.
      before: a checkpoint to restore; None: first values.
      after: where to save a checkpoint at the end; None: nowhere.
    """
    common.init(epl, dict(CONFIG[kind], **(config or {})))
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    variables, optimizer = tf.trainable_variables(), _optimizer(kind)
    step = tf.train.get_or_create_global_step()
    if epl:
        update = optimizer.minimize(loss, global_step=step)
        own = {variable.op.name for variable in optimizer.variables()}
        assert own == {v.op.name for v in tf.global_variables()} - {v.op.name for v in variables} - {"global_step"}
        slots = optimizer.get_slot_names()
        assert all(optimizer.get_slot(v, slot) is not None for v in variables for slot in slots), slots
    gradients = tf.gradients(loss, variables)
    fetched = common.mean_everywhere(epl, loss)
    losses, states, saver = [], [], tf.train.Saver()
    with common.session() as sess:
        if before:
            saver.restore(sess, before)
        else:
            common.initialize(sess)
        if not epl:
            references = [_reference(kind, v, value) for v, value in zip(variables, sess.run(variables))]
        for number in range(begin, until):
            if epl:
                losses.append(sess.run([fetched, update], feeds.of(number))[0])
            else:
                values, found = sess.run([fetched, gradients], feeds.of(number))
                losses.append(values)
                for variable, reference, gradient in zip(variables, references, found):
                    variable.load(reference.step(gradient), sess)
            states.append({v.op.name: value for v, value in zip(variables, sess.run(variables))})
        if epl:
            assert sess.run(step) == until
        if after:
            saver.save(sess, after)
    return {"losses": losses, "states": states}


def refused(epl, kind):
    """The error of a program whose optimizer is none that the configuration replaces."""
    common.init(epl, CONFIG["lars" if kind == "nesterov" else "lamb"])
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    try:
        if kind == "nesterov":
            updates = tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True).minimize(loss)
        elif kind == "descent":
            updates = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        elif kind == "derived":
            updates = type("MyAdam", (tf.train.AdamOptimizer,), {})(0.1).minimize(loss)
        else:
            variables = tf.trainable_variables()
            updates = [tf.assign_sub(v, 0.1 * g) for v, g in zip(variables, tf.gradients(loss, variables))]
        with common.session() as sess:
            sess.run(updates, feeds.of(0))
    except epl.errors.UnsupportedError as error:
        return str(error)
    return None
