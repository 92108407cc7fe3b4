"""Programs that say how often they save and how many checkpoints stay, of which the configuration may say else."""

import os

import tensorflow.compat.v1 as tf

from tests.helpers.programs import common


def _model(epl, config):
    common.init(epl, config)
    if epl:
        epl.set_default_strategy(epl.replicate(1))
    step = tf.train.get_or_create_global_step()
    weight = tf.get_variable("weight", [4], initializer=tf.ones_initializer())
    return step, tf.train.MomentumOptimizer(0.1, 0.9).minimize(tf.reduce_mean(tf.square(weight)), step)


def train(epl, folder, config, steps, **options):
    """Trains on in a monitored session until a global step.

    Args:
      folder: of checkpoints, the same for all workers.
      config: keys.
      steps: the global step at which it ends.
      **options: of MonitoredTrainingSession.

    Returns:
      (at which steps this worker saved, those of the checkpoints that its folder then has).
    """
    step, train_op = _model(epl, config)
    saved = []

    class Listener(tf.train.CheckpointSaverListener):
        def after_save(self, session, number):
            saved.append(int(number))

    hook = tf.train.CheckpointSaverHook(folder, save_steps=2, listeners=[Listener()])
    hooks = [hook, tf.train.StopAtStepHook(last_step=steps)]
    options = dict({"save_checkpoint_secs": None, "save_checkpoint_steps": None}, **options)
    with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks, **options) as session:
        while not session.should_stop():
            session.run(train_op)
    return saved, sorted(
        int(name[len("model.ckpt-") : -len(".index")]) for name in os.listdir(folder) if ".index" in name
    )


def unsaved(epl, folder, config):
    """Trains a step in a session that no hook saves, saves it by a tf.train.Checkpoint; the error, in words."""
    _, train_op = _model(epl, config)
    checkpoint = tf.train.Checkpoint(weight=tf.get_variable("other", [], use_resource=True))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        try:
            session.run(train_op)
            checkpoint.save(os.path.join(folder, "objects"), session=session)
        except Exception as error:  # whatever it is, the test looks at it
            return "%s: %s" % (type(error).__name__, error)
    return None
