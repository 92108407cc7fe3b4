"""tf.keras in graph mode: losses over the whole batch, files at the chief only."""

import functools
import logging
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture.collections import report_loss
from epl.capture.record import record_of
from epl.env import Env
from epl.errors import UnsupportedError
from epl.plan.layout.layout import is_split
from epl.session.front_ends.chief import is_chief, several_workers
from epl.session.front_ends.meeting import check_found_by_all, from_chief, wait_for_all
from epl.session.front_ends.saves import Save, are_several, check_by_saver
from epl.session.hooks import driver_of, job

_LOG = logging.getLogger("epl")
_ONE_FILE = (".h5", ".hdf5", ".keras")


def install():
    """Hooks tf.keras. Calling it again changes nothing."""
    tf_compat.wrap_keras_model(
        make_train_function=functools.partial(_make_function, "train_function"),
        make_test_function=functools.partial(_make_function, "test_function"),
        fit=_fit,
        save=_save,
        save_weights=_save,
        load_weights=_load_weights,
        csv_log=_chief_only,
        values=_in_order,
    )


def _in_order(original, graph=None):
    """Keras keeps variables in a set, and makes operations for them in an order that differs from worker to worker."""
    return sorted(original(graph), key=tf_compat.variable_op_name)


def _make_function(name, original, model):
    """The loss that Keras reports, and that callbacks decide by, is that of the whole batch on every worker."""
    original(model)
    if Env.get().config.local_sgd.k_steps and several_workers():
        raise UnsupportedError(
            "local_sgd.k_steps cannot be used with the training of Keras' models over several workers, as Keras saves "
            "and reports what one worker's copy of the model is. Train with tf.estimator or a session, or leave "
            "local_sgd.k_steps at 0."
        )
    loss = tf_compat.loss_of_function(getattr(model, name))
    if loss is not None and not tf_compat.is_function_graph(loss.graph):
        report_loss(loss, Env.get().config)


def _fit(original, model, *args, **kwargs):
    if _shares_batches(model):
        # Keras shuffles rows by NumPy's generator, those of validation whatever `shuffle` says.
        np.random.set_state(from_chief(np.random.get_state))
    job().following.wants(lambda: tf_compat.training_steps(model))
    result = original(model, *args, **kwargs)
    driver = _driver(model)
    if driver is not None and driver.divided:
        driver.synchronise()  # meanwhile they help with what the chief reads
    wait_for_all()  # the chief has written what its callbacks write, which others may read from here on
    return result


def _save(original, model, filepath, overwrite=True, *args, **kwargs):
    """The chief writes; where other workers have some of the variables, they help until it is through."""
    check_by_saver("Keras")
    if not are_several() or not isinstance(filepath, (str, os.PathLike)):
        return original(model, filepath, overwrite, *args, **kwargs) if is_chief() else None
    if _shares_batches(model):
        return _save_together(original, model, filepath, overwrite, *args, **kwargs)
    driver, save = _driver(model), Save(filepath)
    if not is_chief():
        if driver is not None:
            driver.help_until_done()
        save.until_written()
        return None
    try:
        return save.write(lambda: _write(original, model, filepath, overwrite, *args, **kwargs))
    finally:
        if driver is not None:
            driver.done()


class _Aside(object):
    """Folders to which this worker writes what it drops, as the chief writes it; kept by Env."""

    def __init__(self):
        self.folders = set()


def _save_together(original, model, filepath, overwrite, *args, **kwargs):
    """All workers read the variables, of which each has a part, by doing what the chief does.

    Raises:
      UnsupportedError: the file is no single one.
    """
    folder, name = os.path.split(str(filepath))
    aside = Env.get().state("keras_aside", _Aside).folders
    if folder in aside:  # saving a model calls what is hooked twice
        return original(model, filepath, overwrite, *args, **kwargs)
    if not name.endswith(_ONE_FILE):
        raise UnsupportedError(
            "'%s' cannot be saved where epl.split divides a model of Keras over several workers: these can save one "
            "file (%s) together. Give it such a name, or save checkpoints by tf.train.Saver."
            % (filepath, ", ".join(_ONE_FILE))
        )
    save = Save(filepath)
    if is_chief():
        return save.write(lambda: _write(original, model, filepath, overwrite, *args, **kwargs))
    with tempfile.TemporaryDirectory(prefix="epl_") as own:
        aside.add(own)
        try:
            original(model, os.path.join(own, name), overwrite, *args, **kwargs)
        finally:
            aside.discard(own)
    save.until_written()
    return None


def _write(original, model, filepath, overwrite, *args, **kwargs):
    """Whoever reads the file meanwhile goes on reading the one before, whole, and its lock is in nobody's way."""
    filepath = str(filepath)
    if not filepath.endswith(_ONE_FILE) or "://" in filepath or not overwrite and os.path.exists(filepath):
        return original(model, filepath, overwrite, *args, **kwargs)
    folder, name = os.path.split(filepath)
    private = os.path.join(folder, ".%d_%s" % (os.getpid(), name))
    try:
        original(model, private, overwrite, *args, **kwargs)
        os.replace(private, filepath)
    finally:
        if os.path.exists(private):
            os.remove(private)


def _shares_batches(model):
    """Whether each of several workers has a part of the tensors of one copy of the model (epl.split)."""
    if not (several_workers() and is_split(record_of(tf.get_default_graph()).taskgraphs)):
        return False
    return _driver(model).shards_span_workers


def _driver(model):
    """What stands behind the session of a model; None in a job of one worker."""
    return driver_of(tf_compat.keras_session(model)) if several_workers() else None


def _chief_only(original, *args, **kwargs):
    return original(*args, **kwargs) if is_chief() else None


def _load_weights(original, model, filepath, *args, **kwargs):
    """A file that the chief has written may be on its disk only; its values come with the next training step."""
    found, driver = any(os.path.exists(str(filepath) + end) for end in ("", ".index")), _driver(model)
    if driver is not None and (driver.divided or driver.shards_span_workers):
        check_found_by_all(filepath, found)
    elif not is_chief() and not found:
        _LOG.info(
            "worker %d does not find the weights '%s', and takes those of worker 0",
            Env.get().cluster.worker_index,
            filepath,
        )
        return None
    return original(model, filepath, *args, **kwargs)
