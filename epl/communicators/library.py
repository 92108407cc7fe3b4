"""Loads the TensorFlow operations of epl (`csrc/ops`)."""

import ctypes

from epl import tf_compat
from epl.communicators import gpu, interface, native
from epl.communicators.build import ops_library
from epl.errors import CommunicationError

_LOADED = {}


def load():
    """The module with the wrappers of the operations: `load().epl_all_reduce(...)` and so on. Loaded once.

    Raises:
      CommunicationError: the operations are not built, not for the TensorFlow that runs, or not from the sources of
        this epl.
    """
    if "ops" not in _LOADED:
        native.comm()  # first, so that what is wrong with it is said in its own words
        path = native.library_path(ops_library(tf_compat.line()))
        try:
            loaded = tf_compat.load_op_library(path)
        except tf_compat.tf.errors.OpError as error:
            raise CommunicationError(
                "%s cannot be loaded into TensorFlow %s: %s. Build it again with this TensorFlow: `pip install .` or "
                "`make csrc`." % (path, tf_compat.version(), error.message)
            )
        problem = _problem(path, loaded)
        if problem is not None:
            raise native.unfit(path, problem)
        _LOADED["ops"] = loaded
    return _LOADED["ops"]


def _problem(path, loaded):
    """Why a library of operations that TensorFlow has loaded does not fit this epl; None if it does."""
    asked = getattr(ctypes.CDLL(path), "epl_ops_interface", None)  # what is loaded already is not loaded again
    problem = interface.comm_problem(asked() if asked is not None else "of an unknown number")
    if problem is not None:
        return problem
    names = [name for name in dir(loaded) if name.startswith("Epl")]  # beside their wrappers, epl_...
    return interface.operations_problem([tf_compat.op_def(name) for name in names])


def collectives_on_gpu(cluster, config):
    """Whether collectives between workers take and give tensors on GPUs, through NCCL.

    Raises:
      CommunicationError: `communication.backend` is "nccl", but it cannot be used.
    """
    if not gpu.uses_nccl(cluster, config):
        return False
    load()
    if tf_compat.has_kernel("EplAllReduce", "GPU"):
        return True
    if config.communication.backend == "nccl":
        raise CommunicationError(
            'communication.backend is "nccl", but the operations of epl were built with headers of TensorFlow that '
            "lack the GPU's part. Build them again with the TensorFlow wheel from PyPI: `pip install .` or `make csrc`."
        )
    return False
