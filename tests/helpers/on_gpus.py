"""The tests' jobs on the GPUs of this machine instead of on CPU devices: `pytest --on-gpus`.

One GPU is enough. Workers that have to share one are told apart for NCCL, which otherwise refuses two ranks of a host
on the same GPU (NCCL_HOSTID, so that they talk over sockets as hosts do), and a worker that needs more devices than
there are divides its GPU with TensorFlow's virtual devices.
"""

import importlib
import os

# Of one virtual device. Small, as several workers and the test's own processes share a GPU.
_MEMORY_MB = 1024
_WANTED = "TESTS_ON_GPUS"


def want():
    """From now on, in this process and in those that it starts."""
    assert _count(), "--on-gpus was given, but this machine has no NVIDIA GPU."
    os.environ[_WANTED] = "1"


def wanted():
    return _WANTED in os.environ


def _count():
    return importlib.import_module("epl.cluster.gpus").machine_gpus()  # not above: plain processes must not import EPL


def variables(worker, workers):
    """What the environment of a worker needs beside the cluster's variables."""
    count = _count()
    found = {
        _WANTED: "1",
        "EPL_DEVICE": "gpu",
        "CUDA_VISIBLE_DEVICES": str(worker % count),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "NVIDIA_TF32_OVERRIDE": "0",  # numbers of 19 bits, which are compared with those of a single device
    }
    if workers > count:
        found["NCCL_HOSTID"] = "worker-%d" % worker
    return found


def divide():
    """In a process of a job, before its first session: as many devices as it is told to have, on the GPU it sees."""
    cluster, inner = (importlib.import_module(name) for name in ("epl.cluster.cluster", "epl.session.inner"))
    usual = inner.session_proto
    devices = int(os.environ["EPL_GPU_PER_WORKER"])

    def session_proto(*args):
        proto = usual(*args)
        proto.gpu_options.experimental.virtual_devices.add(memory_limit_mb=[_MEMORY_MB] * devices)
        return proto

    cluster.visible_gpus = lambda environ: []  # who set EPL_DEVICE=gpu knows
    if devices > 1:
        inner.session_proto = session_proto
