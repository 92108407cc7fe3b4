"""Only the chief (worker 0) writes checkpoints, summaries and graphs; the others do as if."""

import atexit
import collections
import contextlib
import functools
import numbers
import os
import re
import shutil
import tempfile

from epl import tf_compat
from epl.env import Env
from epl.errors import UnsupportedError
from epl.session import position_files
from epl.session.beside import BESIDE
from epl.session.endings.file_errors import told
from epl.session.front_ends.saves import Save, are_several, check_by_saver, check_seen
from epl.session.hooks import current_job, driver_of
from epl.session.owned import own

_STEP = re.compile(r"-\d+$")  # at the end of what tf.train.Checkpoint saves


def install():
    """Hooks the places where TensorFlow writes files. Calling it again changes nothing."""
    tf_compat.wrap_saver_save(told(_save))
    tf_compat.wrap_saver_restore(_restore)
    tf_compat.wrap_supervisor_saves(_save_by_timer)
    tf_compat.wrap_object_checkpoints(told(_save_objects), told(_update_state))
    tf_compat.wrap_saved_model_builder(told(_saved_model_builder), told(_save_model))
    tf_compat.wrap_write_graph(told(_write_graph))
    tf_compat.wrap_event_writers(told(_event_writer))
    tf_compat.wrap_profiler_hook(told(_profile))
    tf_compat.wrap_wait_for_session(_wait_for_session)


def is_chief():
    """True for worker 0, which writes the files."""
    return Env.get().cluster.worker_index == 0


def several_workers():
    return Env.get().cluster.worker_num > 1


def _profile(original, *args, **kwargs):
    if is_chief():
        original(*args, **kwargs)


def _own(path, driver, without=None):
    """No other job saves under this name; `without`: regular expression of what is no part of it."""
    path = tf_compat.tf.compat.path_to_str(path)
    if isinstance(path, str):  # what else it may be TensorFlow says
        own(without.sub("", path) if without is not None else path, driver)


# What `save` of a tf.train.Saver takes behind the global step.
_Options = collections.namedtuple(
    "_Options", "latest_filename meta_graph_suffix write_meta_graph write_state strip_default_attrs save_debug_info"
)
_Options.__new__.__defaults__ = (None, "meta", True, True, False, False)


def _save(original, saver, sess, save_path, global_step=None, *args, **kwargs):
    driver, options, config = driver_of(sess), _Options(*args, **kwargs), Env.get().config.checkpoint
    # What is written without the state file (exports) is there once `save` returns.
    beside = getattr(config, "async") and driver is not None and saver.saver_def is not None and options.write_state
    if beside:
        BESIDE.settle()
    save = Save(save_path) if are_several() else None
    if save is not None and not is_chief():
        return _save_with_chief(saver, save, driver, _numbered(saver, sess, save_path, global_step)[0], beside)

    def prepare():
        _own(save_path, driver)
        path, step = _numbered(saver, sess, save_path, global_step)
        if driver is not None:
            driver.save_positions(path)
        return path, step

    def write(session, step, options):
        with _keeping(saver, config.keep, options):
            path = original(saver, session, save_path, step, **options._asdict())
        if path and config.data_position:
            position_files.clean(path, Env.get().cluster.worker_num)
        return path

    if beside:
        return _save_beside(prepare, write, saver, sess, options, save)

    def prepare_and_write():
        _, step = prepare()
        return write(sess, step, options)

    return prepare_and_write() if save is None else save.write(prepare_and_write)


def _save_beside(prepare, write, saver, session, options, save):
    """Copies what is to be saved, and lets a thread write it (checkpoint.async).

    Args:
      prepare: function that returns the checkpoint's name and the global step, or None, before anything is copied.
      write: function (session, global step, options) that lets the Saver write.
      saver, session, options: of the call.
      save: the Save; None where there are no other workers.

    Returns:
      The checkpoint's name.
    """
    driver, names = driver_of(session), saver.saver_def
    if save is not None:
        save.begin()
    with save.telling() if save is not None else contextlib.nullcontext():
        path, step = prepare()
        kept = driver.keep_saved(names.save_tensor_name, {names.filename_tensor_name: path})
        if options.write_meta_graph:
            settings = options._asdict()
            more = {name: settings[name] for name in ("strip_default_attrs", "save_debug_info")}
            tf_compat.write_meta_graph(saver, session.graph, path, options.meta_graph_suffix, **more)

    @told
    def written():
        try:
            return write(
                tf_compat.writer_for_saver(session, kept.write), step, options._replace(write_meta_graph=False)
            )
        except Exception:
            _remove_unfinished(path, options.meta_graph_suffix)
            raise

    BESIDE.write(driver, path, written if save is None else functools.partial(save.end, written))
    return path


def _remove_unfinished(checkpoint, meta_graph_suffix):
    """Removes what there is of a checkpoint that could not be written: where there is no room, it takes some."""
    gfile = tf_compat.tf.io.gfile
    there = gfile.exists(checkpoint + ".index")  # one of the same name, which was there before
    for path in gfile.glob(checkpoint + "*"):
        rest = path[len(checkpoint) :]
        if rest.startswith("_temp") and gfile.isdir(path):
            gfile.rmtree(path)
        elif ".tempstate" in rest or not there and (rest.startswith(".data-") or rest == "." + meta_graph_suffix):
            gfile.remove(path)


def _save_with_chief(saver, save, driver, path, beside):
    """On another worker than the chief, who saves: helps where that is needed, and waits, now or later."""
    if driver is not None:
        driver.save_positions(path)
    if driver is not None and saver.saver_def is not None:
        fetched, fed = (saver.saver_def.save_tensor_name,), (saver.saver_def.filename_tensor_name,)
        driver.help(fetched, fed)
        if driver.rewritten.plan.saves_together:  # all gather what the chief writes; here nothing is written
            driver.run(fetched, (), dict.fromkeys(fed, ""))
    if beside:
        BESIDE.follow(driver, lambda: save.until_written(path))
    else:
        save.until_written(path)
    return path


@contextlib.contextmanager
def _keeping(saver, number, options):
    """While a Saver saves, called with these options: so many checkpoints stay; 0: as it was told. Of what it writes
    without the state file, such as exports, it keeps no count."""
    counts = number and options.write_state and saver.saver_def is not None
    if counts:
        tf_compat.keep_latest(saver, number)
    yield
    if counts:
        tf_compat.remove_older(saver, options.meta_graph_suffix)


def _numbered(saver, session, save_path, global_step):
    """(the prefix of the files of a checkpoint that a Saver writes, the global step as a number, or None)."""
    path = tf_compat.tf.compat.as_str_any(tf_compat.tf.compat.path_to_str(save_path))
    if global_step is None:
        return path, None
    if not isinstance(global_step, numbers.Integral):  # NumPy's integers are; hooks pass those
        global_step = tf_compat.tf.train.global_step(session, global_step)
    return tf_compat.checkpoint_name(saver, path, global_step), global_step


def _restore(original, saver, sess, save_path, *args, **kwargs):
    if save_path is not None and are_several() and not is_chief():
        check_seen(save_path)
    BESIDE.finish()
    result = original(saver, sess, save_path, *args, **kwargs)
    driver = driver_of(sess)
    if driver is not None and save_path is not None:
        driver.take_up_data(tf_compat.tf.compat.as_str_any(save_path))
    step, here = _STEP.search(str(save_path)), current_job()
    if step is not None and here is not None:
        here.noting.restored(int(step.group()[1:]))
    return result


def _save_by_timer(original, *args, **kwargs):
    """The thread with which a Supervisor saves every so many minutes: workers do not come to that together."""
    return original(*args, **kwargs) if is_chief() else None


def _save_objects(original, saver, file_prefix, *args, **kwargs):
    check_by_saver("tf.train.Checkpoint")
    session = kwargs.get("session") or tf_compat.tf.get_default_session()
    driver = driver_of(session) if session is not None else None
    if driver is not None and (driver.divided or driver.rewritten.plan.saves_together):
        raise UnsupportedError(
            "tf.train.Checkpoint cannot save a model whose stages, or parts, lie in several workers, nor what "
            "zero.level divides or dgc.save_residuals gathers, as it builds what it saves only when it does. Use "
            "tf.train.Saver, built before the first session.run on every worker."
        )

    def write():
        _own(file_prefix, driver, _STEP)
        return original(saver, file_prefix, *args, **kwargs)

    if not are_several():
        return write()
    save = Save(file_prefix)
    if is_chief():
        return save.write(write)
    save.until_written()
    return file_prefix


def _update_state(original, *args, **kwargs):
    return original(*args, **kwargs) if is_chief() else None


_EXPORT = "_epl_export"  # on a builder: (folder that the program wants, private one that is written)


def _saved_model_builder(original, builder, export_dir, *args, **kwargs):
    if is_chief():
        original(builder, export_dir, *args, **kwargs)
        return
    private = tempfile.mkdtemp(prefix="epl_export_")
    atexit.register(shutil.rmtree, private, True)  # for a builder that is never saved
    setattr(builder, _EXPORT, (export_dir, private))
    original(builder, private, *args, **kwargs)


def _save_model(original, builder, as_text=False):
    if not are_several():
        return original(builder, as_text)
    if not hasattr(builder, _EXPORT):
        return Save(tf_compat.export_folder_of(builder), _EXPORT).write(lambda: original(builder, as_text))
    export_dir, private = getattr(builder, _EXPORT)
    save = Save(export_dir, _EXPORT)
    path = original(builder, as_text)
    shutil.rmtree(private, True)
    as_bytes = tf_compat.tf.compat.as_bytes
    path = os.path.join(as_bytes(export_dir), os.path.basename(as_bytes(path)))
    save.until_written(path)
    return path


def _write_graph(original, graph_or_graph_def, logdir, name, *args, **kwargs):
    if is_chief():
        return original(graph_or_graph_def, logdir, name, *args, **kwargs)
    return os.path.join(logdir, name)


class _NoEvents(object):
    """Stands in for an event writer: takes everything, writes nothing."""

    def __init__(self, logdir):
        self._logdir = logdir

    def get_logdir(self):
        return self._logdir

    def add_event(self, event):
        del event

    def reopen(self):
        pass

    def flush(self):
        pass

    def close(self):
        pass


def _event_writer(original, *args, **kwargs):
    if is_chief():
        return original(*args, **kwargs)
    return _NoEvents(args[0] if args else kwargs.get("logdir"))


def _wait_for_session(original, *args, **kwargs):
    del original, args, kwargs
    raise UnsupportedError(
        "tf.train.Supervisor(is_chief=False) waits for another process to initialise the variables, but with EPL "
        "every worker "
        "has its own copy of them. Pass is_chief=True on all workers; only worker 0 writes files all the same."
    )
