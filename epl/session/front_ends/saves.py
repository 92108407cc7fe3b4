"""Once `save` returns, the file is there: for the chief, who writes it, and for every worker that calls `save` too.

The chief tells when it begins to write a file and when it is through; whoever calls the same `save` waits for that.
They know that it is the same by the file's name without its folder, which may differ, and by how far they have come
together, so that the chief may save alone too. A worker that saves alone gets an error: nothing would be written.
"""

import collections
import contextlib
import json
import logging
import os
import time

import tensorflow.compat.v1 as tf

from epl.communicators.bootstrap import WaitTimeout
from epl.env import Env
from epl.errors import CommunicationError, UnsupportedError, WorkerError
from epl.session.hooks import current_job, job

_LOG = logging.getLogger("epl")
# A file of another machine may take that long to be seen on a disk that both share.
_SEEN_S = 10.0
_LOOK_EVERY_S = 0.05
# Of communication.timeout_s: whoever waits says so before the others lose patience with it.
_PATIENCE = 0.8
# By one of these a checkpoint, a file of Keras, a SavedModel is known.
_SUFFIXES = ("", ".index", "/saved_model.pb")


def are_several():
    """True where other workers may wait for what the chief saves: not where a script is only planned."""
    return Env.get().cluster.worker_num > 1 and current_job() is not None


class Saves(object):
    """What this worker has saved so far; kept by Env."""

    def __init__(self):
        self._counts = collections.Counter()
        self.apart = set()  # folders of this worker in which it does not see what the chief writes

    def next(self, name):
        """The topic under which the next save of that name is told."""
        topic = "saved/%s/%s" % (job().place, name)
        self._counts[topic] += 1
        return "%s/%d" % (topic, self._counts[topic])


def _saves():
    return Env.get().state("saves", Saves)


class Save(object):
    """One call of `save`, from its beginning on.

    Args:
      path: of the file, as far as it is known before it is written.
      name: what is the same on all workers; default the file's name without its folder.
    """

    def __init__(self, path, name=None):
        self._path = path = _text(path)
        self._topic = _saves().next(name or os.path.basename(path))

    def write(self, write):
        """On the chief: calls `write()` and tells the others. Returns its value, the path, if it is any."""
        self.begin()
        return self.end(write)

    def begin(self):
        """On the chief, in the place of `write` where something comes before that, for which there is `telling`."""
        job().tell(self._topic + "/begun", b"{}")

    def end(self, write):
        """On the chief, after `begin`: as `write`."""
        with self.telling():
            result = write()
        path = _text(result or self._path)
        self._tell(path=path, looks=_looks_of(path))
        return result

    @contextlib.contextmanager
    def telling(self):
        """On the chief: what goes wrong in this context the others are told."""
        try:
            yield
        except Exception as error:
            self._tell(failure="%s: %s" % (type(error).__name__, error))
            raise

    def _tell(self, **news):
        job().tell(self._topic + "/done", json.dumps(news).encode())

    def until_written(self, path=None):
        """On the others: returns when the chief has written the file and this worker sees it.

        A worker whose disk the chief does not write to is warned once; what it reads there is not what was saved.

        Args:
          path: the file's name here.

        Returns:
          The file's name as the chief has it.

        Raises:
          WorkerError: the chief could not write it.
          CommunicationError: the chief does not save it.
        """
        path = _text(path or self._path)
        env = Env.get()
        worker, limit_s = env.cluster.worker_index, _PATIENCE * env.config.communication.timeout_s
        what = "worker 0 to save '%s'" % path
        try:
            job().told(self._topic + "/begun", what, limit_s)
        except WaitTimeout:
            error = CommunicationError(
                "worker %d saves '%s', but worker 0 has not saved it within %g s: all workers must save at the same "
                "steps, or worker 0 alone, which writes the files" % (worker, path, limit_s)
            )
            job().note(error)
            raise error from None
        news = json.loads(job().told(self._topic + "/done", what).decode())
        if "failure" in news:
            text = "worker 0 could not write '%s': %s" % (path, news["failure"])
            raise WorkerError(text, worker=0, cause=news["failure"])
        if news["looks"] is not None:
            _look(path, news, worker)
        return news["path"]


def _look(path, news, worker):
    """Waits until a file looks as the chief says."""
    apart, folder = _saves().apart, os.path.dirname(path)
    patience_s = _SEEN_S if path == news["path"] and folder not in apart else 0.0
    deadline = time.monotonic() + patience_s
    while _looks_of(path) != news["looks"]:
        if time.monotonic() >= deadline:
            if folder not in apart:
                _LOG.warning(
                    "worker %d does not see '%s', which worker 0 has written: the folder is not shared. Training goes "
                    "on, but this worker cannot read what is saved there.",
                    worker,
                    path,
                )
            apart.add(folder)
            return
        time.sleep(_LOOK_EVERY_S)
    apart.discard(folder)


def check_by_saver(what):
    """Raises UnsupportedError where something else than a tf.train.Saver saves, for which there is a key.

    Args:
      what: saves, at the beginning of a sentence.
    """
    config = Env.get().config.checkpoint
    if config.keep:
        raise UnsupportedError(
            "%s saves under names that the program gives, and removes none: checkpoint.keep is for what a "
            "tf.train.Saver saves (monitored sessions and Estimators too). Save with one, or leave checkpoint.keep "
            "at 0." % what
        )
    if getattr(config, "async"):
        raise UnsupportedError(
            "%s writes while training waits: checkpoint.async is for what a tf.train.Saver saves (monitored sessions "
            "and Estimators too). Save with one, or leave checkpoint.async at False." % what
        )


def check_seen(path):
    """Raises UnsupportedError for a checkpoint that this worker wants to read, but that only the chief can see."""
    folder = os.path.dirname(_text(path))
    if folder in _saves().apart and _looks_of(path) is None:
        raise UnsupportedError(
            "worker %d wants to read '%s', which worker 0 has written where this worker does not see it. Put it into a "
            "folder that all machines share, or let worker 0 restore alone: the others take its values with the next "
            "step." % (Env.get().cluster.worker_index, path)
        )


def _looks_of(path):
    """[the suffix of the file that it is known by, its size, when it was written]; None where there is none."""
    for suffix in _SUFFIXES:
        name = _text(path) + suffix
        try:
            if not tf.io.gfile.isdir(name):
                found = tf.io.gfile.stat(name)
                return [suffix, found.length, found.mtime_nsec]
        except tf.errors.OpError:
            continue
    return None


def _text(path):
    return tf.compat.as_str_any(tf.compat.path_to_str(path))
