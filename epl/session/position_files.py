"""The files beside a checkpoint in which each worker says how far it has read its data (checkpoint.data_position).

`model.ckpt-100.position-1-of-2` is worker 1's of 2. TensorFlow passes them over. They are whole or not there, and go
when the checkpoint goes.
"""

import os
import re

import tensorflow.compat.v1 as tf

from epl.session import plain

_FORMAT = 1
_NAME = re.compile(r"^(.+)\.position-(\d+)-of-(\d+)$")


def _path(checkpoint, worker, workers):
    return "%s.position-%d-of-%d" % (checkpoint, worker, workers)


def write(checkpoint, cluster, iterators):
    """Writes the file of this worker, at once.

    Args:
      checkpoint: prefix of the checkpoint's files.
      cluster: the Cluster.
      iterators: dict of name to plain data.
    """
    path = _path(checkpoint, cluster.worker_index, cluster.worker_num)
    content, unfinished = plain.pack({"format": _FORMAT, "iterators": iterators}), path + ".unfinished"
    tf.io.gfile.makedirs(os.path.dirname(path) or ".")
    with tf.io.gfile.GFile(unfinished, "wb") as file:
        file.write(content)
    tf.io.gfile.rename(unfinished, path, overwrite=True)


def read(checkpoint):
    """What workers have written.

    Returns:
      (list of what each of them gave to `write`, None), or (None, why there is nothing that could be taken).
    """
    why = problem(checkpoint)
    if why is not None:
        return None, why
    whole = _whole(_found(checkpoint))
    if not whole:
        return None, "it has no positions (checkpoint.data_position was not set)"
    # Of a checkpoint that others have begun to write anew, those of before are whole.
    every, workers = [], min(whole)
    for worker in range(workers):
        try:
            with tf.io.gfile.GFile(_path(checkpoint, worker, workers), "rb") as file:
                content = plain.unpack(file.read())
            if content["format"] != _FORMAT:
                return None, "its positions are written in another format"
            every.append(content["iterators"])
        except (ValueError, KeyError, TypeError) as error:
            return None, "worker %d's position is damaged (%s)" % (worker, error)
    return every, None


def problem(checkpoint):
    """Why a checkpoint does not have the positions of all its workers, in words; None if it has them, or has none."""
    found = _found(checkpoint)
    if not found or _whole(found):
        return None
    workers = max(num for _, num in found)
    missing = set(range(workers)) - {worker for worker, num in found if num == workers}
    return "it has no position of the data of worker %d" % min(missing)


def _whole(found):
    """Numbers of workers of which all have written."""
    return {num for _, num in found if all((worker, num) in found for worker in range(num))}


def _found(checkpoint):
    """{(worker, of how many)} of the files that a checkpoint has."""
    folder, name = os.path.split(checkpoint)
    names = [_NAME.match(each) for each in _listed(folder)]
    return {(int(match.group(2)), int(match.group(3))) for match in names if match and match.group(1) == name}


def clean(checkpoint, workers):
    """Removes what is no longer of use in a checkpoint's folder: files of checkpoints that are gone, and those of this
    one, which may not be there yet, that were of another number of workers."""
    folder, name = os.path.split(checkpoint)
    listed = _listed(folder)
    there = {each[: -len(".index")] for each in listed if each.endswith(".index")} | {name}
    for each in listed:
        match = _NAME.match(each[: -len(".unfinished")] if each.endswith(".unfinished") else each)
        if match and (match.group(1) not in there or match.group(1) == name and int(match.group(3)) != workers):
            tf.io.gfile.remove(os.path.join(folder, each))


def _listed(folder):
    return tf.io.gfile.listdir(folder or ".") if tf.io.gfile.isdir(folder or ".") else []
