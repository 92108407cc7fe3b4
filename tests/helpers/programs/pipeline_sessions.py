"""What programs do around the training of a pipeline: they resume, save in several ways, use several graphs."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.programs.pipelines import fed, optimizer, start
from tests.helpers.zoo import model as m


def resumes(epl, folder, model, stages, micro_batches, until):
    """A monitored session goes on from what the folder has up to step `until`; (losses, variables at each step)."""
    loss, feeds, train_op = start(epl, 1, model, stages, micro_batches)
    losses, states = [], []
    saving = dict(checkpoint_dir=folder, save_checkpoint_steps=2, save_summaries_steps=None)
    with tf.train.MonitoredTrainingSession(config=common.threads(), **saving) as sess:
        variables = {v.op.name: v for v in tf.global_variables()}
        begun = int(sess.run(tf.train.get_global_step()))
        for step in range(begun, until):
            losses.append(sess.run([loss, train_op], fed(epl, feeds, step, micro_batches, 1))[0])
            states.append(sess.run(variables))
    return losses, states


def saves(epl, folder, how):
    """Three steps of a pipeline with Savers that are made or used in special ways.

    Args:
      folder: exists; the working directory for that time, where a Saver that was given no name for its files would
        leave them.
      how: "chief": worker 0 alone has a Saver; "late": it is made after two steps; "two": there are two, one is used;
        "sharded": the checkpoint has files for devices; "bare": the last stage has no variables.

    Returns:
      All variables at the end; the last checkpoint holds the same ones.
    """
    _, feeds, train_op = _bare(epl) if how == "bare" else start(epl, 1, "tied_mlp", 2, 2)
    saver = None
    if how in ("two", "bare") or how == "chief" and common.workers(epl)[0] == 0:
        saver = tf.train.Saver(name="mine")
    if how == "sharded":
        saver = tf.train.Saver(sharded=True)
    if how == "two":
        tf.train.Saver(tf.trainable_variables(), name="other")
    before = os.getcwd()
    os.chdir(folder)
    try:
        with common.session() as sess:
            common.initialize(sess)
            for step in range(3):
                sess.run(train_op, fed(epl, feeds, step, 2, 1))
                if how == "late" and step == 1:
                    saver = tf.train.Saver()
                if saver is not None:
                    saver.save(sess, os.path.join(folder, "model"), global_step=step + 1)
            return common.state(sess)
    finally:
        os.chdir(before)


def _bare(epl):
    """A model whose last stage has nothing to train."""
    common.init(epl, {"pipeline.num_micro_batch": 2})
    tokens, labels = tf.placeholder(tf.int32, [None, 3], "tokens"), tf.placeholder(tf.int64, [None], "labels")
    with epl.replicate(device_count=1):
        x = m.dense(tf.cast(tokens, tf.float32), 4, "only", seed=1)
    with epl.replicate(device_count=1):
        loss = m.classification(tf.tanh(x), labels)
    return loss, {"tokens": tokens, "labels": labels}, optimizer().minimize(loss, tf.train.get_or_create_global_step())


def graphs_in_turn(epl, models, stages, micro_batches):
    """Trains several models, a step of each in turn, each in a graph and a session of its own; losses of each."""
    built, losses = [], [[] for _ in models]
    for index, model in enumerate(models):
        graph = tf.Graph()
        with graph.as_default():
            loss, feeds, train_op = start(epl, 1, model, stages, micro_batches, begin=index == 0)
            session = common.session()
            common.initialize(session)
            built.append((session, loss, feeds, train_op))
    for step in range(3):
        for index, (session, loss, feeds, train_op) in enumerate(built):
            losses[index].append(session.run([loss, train_op], fed(epl, feeds, step, micro_batches, 1))[0])
    for session, _, _, _ in built:
        session.close()
    return losses


def reads_after_the_chief_has_begun_anew(epl):
    """All workers end with the same read, though only the chief has run an initialiser before."""
    _, feeds, train_op = start(epl, 1, "tied_mlp", 2, 2)
    extra = tf.get_variable("extra", [2], initializer=tf.ones_initializer(), trainable=False)
    variables = tf.trainable_variables() + [extra]
    with common.session() as sess:
        common.initialize(sess)
        sess.run(train_op, fed(epl, feeds, 0, 2, 1))
        if common.workers(epl)[0] == 0:
            sess.run(extra.initializer)
        return [np.sum(value) for value in sess.run(variables)]
