"""What TensorFlow calls the end of data and is none: no room for a file, or a checkpoint that is too short.

Monitored sessions, Estimator and this library take an OutOfRangeError for the end of data, with which a job ends well.
TensorFlow raises one too where the system says that a file would become too large, and where a checkpoint ends early.
"""

import errno
import functools
import os
import re

import tensorflow.compat.v1 as tf

from epl.graph.index import node_of
from epl.rules import effects

# What TensorFlow says for the error numbers of files that it calls out of range.
_TOO_LARGE = tuple("; " + os.strerror(number) for number in (errno.EFBIG, errno.EOVERFLOW, errno.ERANGE))
_FAILED_NODE = re.compile(r"\{\{node ([^\s}]+)\}\}")
_WRITES_FILE = effects.FILE_WRITES | effects.SUMMARY_WRITES | effects.SUMMARY_WRITERS


def in_run(error, graph, fed):
    """The error to raise for one that a run of a graph has raised.

    Args:
      error: a tf.errors.OpError.
      graph: the Graph that was run.
      fed: dict of the tensors that were fed, to their values.

    Returns:
      A ResourceExhaustedError for a file that cannot be written, a DataLossError that names a checkpoint that is
      damaged; else the same error.
    """
    if not isinstance(error, (tf.errors.OutOfRangeError, tf.errors.DataLossError)):
        return error
    failed = _FAILED_NODE.search(str(error.message))
    node = graph.nodes.get(failed.group(1)) if failed else None
    if node is not None and node.op in effects.RESTORES:
        text = "the checkpoint '%s' is damaged or incomplete: %s" % (_file(graph, node.input[0], fed), error.message)
        return tf.errors.DataLossError(None, None, text)
    if node is not None and node.op in _WRITES_FILE and isinstance(error, tf.errors.OutOfRangeError):
        return _no_room(error)
    return in_files(error)


def in_files(error):
    """The same for an error of code that writes a file itself."""
    if not isinstance(error, tf.errors.OutOfRangeError):
        return error
    too_large = any(line.endswith(_TOO_LARGE) for line in str(error.message).splitlines())
    return _no_room(error) if too_large else error


def told(function):
    """The function, raising ResourceExhaustedError where there is no room for the files that it writes."""

    @functools.wraps(function)
    def writing(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except tf.errors.OutOfRangeError as error:
            raised = in_files(error)
            if raised is error:
                raise
            raise raised from None

    return writing


def _no_room(error):
    text = "a file cannot be written (there is a limit to the size of files, or of the disk): %s" % error.message
    return tf.errors.ResourceExhaustedError(None, None, text)


def _file(graph, text, fed):
    """The file that a tensor names, as far as that can be told."""
    while True:
        for name in (text, text + ":0"):
            if name in fed:
                return tf.compat.as_str_any(fed[name])
        node = graph.nodes[node_of(text)]
        if node.op == "Const":
            return tf.compat.as_str_any(tf.make_ndarray(node.attr["value"].tensor).item())
        if not node.input:
            return node.name
        text = node.input[0]
