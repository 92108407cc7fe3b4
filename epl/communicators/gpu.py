"""NCCL for workers with GPUs: where its libraries are, and whether a job uses it. No TensorFlow in it.

`pip install .[gpu]` brings NCCL as a wheel, which unpacks to `nvidia/nccl/lib` beside the other packages; the CUDA
runtime comes in the same way for TensorFlow 2.15 and from the system for TensorFlow 1.15.
"""

import ctypes
import glob
import importlib.util
import os

from epl.communicators import native
from epl.errors import CommunicationError

_ERROR_BYTES = 4096


def library_paths(config, folders=None):
    """The files of NCCL and of the CUDA runtime: (path, path).

    A path is that of `communication.nccl_library` or `communication.cuda_library`, else of a wheel of this Python, else
    "", which leaves the search to the system's loader.

    Args:
      config: the `Config`.
      folders: where wheels of NVIDIA are unpacked; default: looked up.
    """
    folders = _wheel_folders() if folders is None else folders
    communication = config.communication
    return (
        communication.nccl_library or _newest(folders, "nccl", "libnccl.so.2"),
        communication.cuda_library or _newest(folders, "cuda_runtime", "libcudart.so.*"),
    )


def uses_nccl(cluster, config):
    """Whether GPUs of different workers exchange data through NCCL.

    With `communication.backend` "auto" they do where this process can load it; other workers' found_infs come out when
    they connect.

    Raises:
      CommunicationError: `communication.backend` is "nccl", but there are no GPUs or no NCCL; says what to install.
    """
    communication = config.communication
    if cluster.worker_num == 1 or communication.backend not in ("auto", "nccl"):
        return False
    if cluster.device_type != "GPU":
        if communication.backend == "nccl":
            raise CommunicationError(
                'communication.backend is "nccl", which connects GPUs, but the workers of this job have CPU devices. '
                'Leave it at "auto", or start the workers with GPUs.'
            )
        return False
    problem = nccl_problem(config)
    if problem and communication.backend == "nccl":
        raise CommunicationError('communication.backend is "nccl", but %s' % problem)
    return not problem


def nccl_problem(config):
    """Why this process cannot load NCCL, in words; "" if it can."""
    nccl, cuda = library_paths(config)
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    code = native.comm().epl_find_nccl(_text(nccl), _text(cuda), error, len(error))
    return "" if code == native.OK else error.value.decode("utf-8", "replace")


def device_number(cluster):
    """The GPU of this worker that takes part, as CUDA numbers it in this process: TensorFlow's GPU:0."""
    first = cluster.visible_device_list.split(",")[0].strip()
    return int(first) if first else 0


def set_options(options, cluster, config, on_host):
    """Fills in what a communicator between GPUs needs; `on_host` is its back end for host memory, such as "auto"."""
    nccl, cuda = library_paths(config)
    # "gpu": without NCCL here, but with a vote, so that workers that have it do not wait for this one.
    kind = "nccl" if uses_nccl(cluster, config) else "gpu"
    options.backend = _text("%s/%s" % (kind, on_host))
    options.device = device_number(cluster)
    options.nccl_library, options.cuda_library = _text(nccl), _text(cuda)


def _text(path):
    return os.fsencode(path)


def _wheel_folders():
    spec = importlib.util.find_spec("nvidia")
    return [] if spec is None else list(spec.submodule_search_locations or [])


def _newest(folders, package, pattern):
    """The file with the highest version among those that match, in the first folder that has one; else ""."""
    for folder in folders:
        found = glob.glob(os.path.join(glob.escape(folder), package, "lib", pattern))
        if found:
            return max(found, key=_version)
    return ""


def _version(path):
    numbers = os.path.basename(path).split(".so.")[-1].split(".")
    return [int(number) if number.isdigit() else -1 for number in numbers]
