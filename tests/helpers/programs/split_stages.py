"""Two stages with devices of their own, whose variables are large enough for each device to write and read its part."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.programs.split import OPTIMIZERS, dividing_scope

_IDS, _WIDTH = 401, 50


def goes_on(epl, device_count, optimizer, kinds, folder, begins=None, resource=False, **config):
    """Trains, saves, changes everything and reads the checkpoint again, and trains on.

    Args:
      kinds: of the two scopes.
      folder: where the checkpoint "model" is written.
      begins: a checkpoint to begin with.
      config: with "__" for the dot.

    Returns:
      (what each step gave and all variables; names of what was gathered for the checkpoint).
    """
    common.init(epl, {key.replace("__", "."): value for key, value in config.items()})
    tf.set_random_seed(3)
    ids, wanted = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [None])
    with tf.variable_scope("model", use_resource=resource):
        with dividing_scope(epl, device_count, kinds[0]):
            table = tf.get_variable("table", [_IDS, _WIDTH])
            hidden = tf.nn.tanh(tf.nn.embedding_lookup(table, ids))
        with dividing_scope(epl, device_count, kinds[1]):
            kernel = tf.get_variable("kernel", [_WIDTH, _IDS], initializer=tf.glorot_uniform_initializer())
            logits = tf.matmul(hidden, kernel)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=wanted, logits=logits)
            loss = tf.reduce_mean(losses)
            best = tf.argmax(logits, 1)
            text = tf.as_string(best)
    made = OPTIMIZERS[optimizer]()
    pairs = made.compute_gradients(loss)
    step = made.apply_gradients(pairs, tf.train.get_or_create_global_step())
    if epl:
        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        epl.add_to_collection(best, epl.GraphKeys.GLOBAL_CONCAT_OBJECTS)
    of_kernel = next(gradient for gradient, variable in pairs if variable is kernel)
    fetches = {"loss": loss, "losses": losses, "hidden": hidden, "logits": logits, "best": best, "text": text}
    variables, saver, alone = tf.global_variables(), tf.train.Saver(), tf.train.Saver([kernel])
    values, history = [v.value() for v in variables], []
    with tf.Session() as session:

        def run(number, rows=8):
            drawn = np.random.RandomState(number).randint(0, _IDS, [2, rows])
            fed = dict(zip((ids, wanted), drawn))
            history.append(session.run({key: fetches[key] for key in ("hidden", "logits", "text")}, fed))
            history.append(session.run(dict(fetches, step=step), fed))
            history[-1].pop("step")
            history.append({"gradient": session.run(of_kernel, fed)})
            history.append(dict(zip([v.op.name for v in variables], session.run(values))))

        if begins:
            saver.restore(session, begins)
        else:
            session.run(tf.global_variables_initializer())
        run(0)
        run(1)
        written = saver.save(session, os.path.join(folder, "model"))
        kernel_alone = alone.save(session, os.path.join(folder, "kernel"))
        run(2)
        session.run(tf.global_variables_initializer())
        saver.restore(session, written)
        alone.restore(session, kernel_alone)
        run(3)
        if not epl:
            return history, None
        nodes = epl.session.hooks.driver_of(session).graph.nodes
        return history, [name for name in nodes if "SaveV2/all_gather" in name]


def monitored(epl, device_count, kinds, folder, steps, **config):
    """Losses of a monitored session that reads tf.data in a first stage with batch normalisation, writes checkpoints
    into `folder` and goes on from them; and the mean of the loss that its local variables hold."""
    common.init(epl, {key.replace("__", "."): value for key, value in config.items()})
    tf.set_random_seed(2)
    rows, _ = common.batch(0, size=24)
    data = tf.data.Dataset.from_tensor_slices((rows, np.arange(24) % 7)).repeat().batch(8)
    x, labels = tf.data.make_one_shot_iterator(data).get_next()
    with dividing_scope(epl, device_count, kinds[0]):
        hidden = tf.layers.dense(x, 8, activation=tf.nn.relu, name="hidden")
        hidden = tf.layers.batch_normalization(hidden, training=True)
        hidden = tf.nn.dropout(hidden, rate=0.25)
    with dividing_scope(epl, device_count, kinds[1]):
        hidden = tf.layers.dense(hidden, 9, activation=tf.nn.relu, name="second")
        loss = tf.losses.sparse_softmax_cross_entropy(labels, tf.layers.dense(hidden, 7, name="logits"))
        mean, update = tf.metrics.mean(loss)
    tf.summary.scalar("loss", loss)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS) + [update]):
        step = tf.train.AdamOptimizer(0.05).minimize(loss, tf.train.get_or_create_global_step())
    losses = []
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=folder, save_checkpoint_steps=2, save_summaries_steps=1, log_step_count_steps=None
    ) as session:
        for _ in range(steps):
            losses.append(session.run([loss, step])[0])
        losses.append(session.run(mean))
    return losses
