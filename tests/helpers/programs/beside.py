"""Programs whose checkpoints are written while they train on (checkpoint.async)."""

import os
import resource
import signal
import threading

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common

KEY = {"checkpoint.async": True}
WAIT_S = 60


def _model(epl, config=(), use_resource=False):
    common.init(epl, dict(KEY, **dict(config)))
    if epl:
        epl.set_default_strategy(epl.replicate(1))
    feeds = common.Feeds(epl)
    with tf.variable_scope("", use_resource=use_resource):
        loss = common.classifier(feeds.x, feeds.labels)
        step = tf.train.get_or_create_global_step()
        return feeds, tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, step), step


def _held_up(gate):
    """Lets what is written wait for an Event; returns what undoes it."""
    from epl.session.save_graph import SaveGraph

    original = SaveGraph.write

    def write(saves):
        assert gate.wait(WAIT_S)
        return original(saves)

    SaveGraph.write = write
    return lambda: setattr(SaveGraph, "write", original)


def trains_on(epl, folder, use_resource, config=()):
    """Saves after two steps and trains on; the file is written only then.

    Returns:
      dict: at: values when it was saved, before: whether the checkpoint was there before training had gone on, read:
      what it has, now: values after it, restored: values once it is restored, files: of the folder.
    """
    feeds, train_op, step = _model(epl, config, use_resource)
    saver, gate = tf.train.Saver(sharded=True), threading.Event()
    undo = _held_up(gate)
    try:
        with common.session() as session:
            common.initialize(session)
            for number in range(2):
                session.run(train_op, feeds.of(number))
            at = common.state(session)
            path = saver.save(session, os.path.join(folder, "model"), step)
            for number in range(2, 5):
                session.run(train_op, feeds.of(number))
            before, now = os.path.exists(path + ".index"), common.state(session)
            gate.set()
            reader = tf.train.load_checkpoint(path)
            read = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
            saver.restore(session, tf.train.latest_checkpoint(folder))
            restored = common.state(session)
    finally:
        gate.set()
        undo()
    return dict(at=at, before=before, read=read, now=now, restored=restored, files=sorted(os.listdir(folder)))


def no_room(epl, folder, ends):
    """Of a monitored session's second checkpoint on there is no room for a file of more than 200 KB.

    Args:
      ends: whether training ends before it would save for the third time.

    Returns:
      (class and text of the error, steps that went well, the newest checkpoint, files of the folder).
    """
    feeds, train_op, _ = _model(epl)
    tf.get_variable("large", [1 << 18], trainable=False)
    limits, done, error = resource.getrlimit(resource.RLIMIT_FSIZE), 0, None
    saving = tf.train.CheckpointSaverHook(folder, save_steps=2)
    try:
        with tf.train.MonitoredTrainingSession(hooks=[saving], config=common.threads()) as session:
            tf.train.latest_checkpoint(folder)  # waits
            if common.workers(epl)[0] == 0:
                resource.setrlimit(resource.RLIMIT_FSIZE, (200000, limits[1]))
            for number in range(2 if ends else 6):
                session.run(train_op, feeds.of(number))
                done += 1
    except Exception as raised:  # whatever it is, the test looks at it
        error = "%s: %s" % (type(raised).__name__, raised)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    newest = os.path.basename(tf.train.latest_checkpoint(folder))
    return error, done, newest, sorted(name for name in os.listdir(folder) if name.startswith("model"))


def killed(epl, folder):
    """Is killed by the kernel in the middle of its second checkpoint's file, as it becomes larger than 200 KB."""
    feeds, train_op, _ = _model(epl)
    tf.get_variable("large", [1 << 18], trainable=False)
    options = dict(checkpoint_dir=folder, save_checkpoint_steps=2, save_summaries_steps=0)
    with tf.train.MonitoredTrainingSession(config=common.threads(), **options) as session:
        print("began at", session.run(tf.train.get_global_step()))
        if not int(os.environ["KILL"]):
            return
        tf.train.latest_checkpoint(folder)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))
        for number in range(50):
            session.run(train_op, feeds.of(number))


def unsaved(epl, folder):
    """What refuses to be written beside training: the errors, in words."""
    common.init(epl, KEY)
    epl.set_default_strategy(epl.replicate(1))
    variable = tf.get_variable("v", [2], use_resource=True)
    old = tf.train.Saver(write_version=tf.train.SaverDef.V1)
    objects, errors = tf.train.Checkpoint(v=variable), []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        saves = (lambda: objects.save(folder + "/objects", session=session)), lambda: old.save(session, folder + "/old")
        for save in saves:
            try:
                save()
            except Exception as error:
                errors.append("%s: %s" % (type(error).__name__, error))
    return errors


def exported(epl, folder):
    """Files of a SavedModel, which is there at once."""
    feeds, _, _ = _model(epl)
    with common.session() as session:
        common.initialize(session)
        tf.saved_model.simple_save(session, folder + "/export", {"x": feeds.x}, {"y": tf.identity(feeds.x)})
        return sorted(os.listdir(folder + "/export/variables"))


def same(one, other):
    """Whether two dicts of arrays are the same, bit by bit."""
    return sorted(one) == sorted(other) and all(
        np.asarray(one[n]).tobytes() == np.asarray(other[n]).tobytes() for n in one
    )
