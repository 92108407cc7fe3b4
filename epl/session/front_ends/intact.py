"""The newest checkpoint is taken only if it can be read; else the one before it, with a warning.

A machine that is lost while it writes, a disk that forgets, somebody who copies files by hand: the state file of a
folder then names a checkpoint of which parts are missing or changed. TensorFlow would end there, in each attempt anew.
"""

import logging
import os

import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.env import Env
from epl.session import position_files
from epl.session.beside import BESIDE

_LOG = logging.getLogger("epl")


def install():
    """Hooks how TensorFlow finds the newest checkpoint of a folder. Calling it again changes nothing."""
    tf_compat.wrap_get_checkpoint_state(_state)
    tf_compat.wrap_load_checkpoint(_load)


class KnownCheckpoints(object):
    """Checkpoints that were read whole, with what tells whether they have changed; kept by Env."""

    def __init__(self):
        self._stamps = {}

    def problem(self, path):
        """Why a checkpoint cannot be read, in words; None if it can. It is read once, as long as its files stay."""
        stamp = _stamp(path)
        if not stamp:
            return "it has no files"
        if self._stamps.get(path) != stamp:
            found = tf_compat.problem_of_checkpoint(path)
            if found is not None:
                return found
            self._stamps[path] = stamp
        return None


def _stamp(path):
    """Names, sizes and times of a checkpoint's files."""
    folder, name = os.path.split(path)
    if "://" in folder:  # of a file system that TensorFlow alone knows
        return tuple(sorted(tf.gfile.Glob(path + "*"))) or None
    found = []
    for file in os.listdir(folder or ".") if os.path.isdir(folder or ".") else ():
        if file == name or file.startswith((name + ".index", name + ".data-")):
            status = os.stat(os.path.join(folder, file))
            found.append((file, status.st_size, status.st_mtime_ns))
    return tuple(sorted(found))


def _load(original, *args, **kwargs):
    BESIDE.finish()
    return original(*args, **kwargs)


def _state(original, *args, **kwargs):
    BESIDE.finish()
    state = original(*args, **kwargs)
    if state is None or not state.model_checkpoint_path or not Env.get().config.checkpoint.verify:
        return state
    newest = state.model_checkpoint_path
    before = [path for path in reversed(state.all_model_checkpoint_paths) if path != newest]
    known, problems = Env.get().state("intact checkpoints", KnownCheckpoints), []
    positions = Env.get().config.checkpoint.data_position
    for path in [newest] + before:
        problem = known.problem(path) or (position_files.problem(path) if positions else None)
        if problem is None:
            break
        problems.append("%s (%s)" % (path, problem))
    else:
        _LOG.warning("No checkpoint of this folder can be read: %s.", "; ".join(problems))
        return state
    if problems:
        _LOG.warning("Taking checkpoint %s, as a later one cannot be read: %s.", path, "; ".join(problems))
        state = type(state).FromString(state.SerializeToString())
        state.model_checkpoint_path = path
    return state
