"""Devices, cores and environment variables of each worker."""

import json
import math
import os
import secrets
import shutil
import subprocess
import sys

from epl.cluster.gpus import machine_gpus, tensorflow_knows_gpus, visible_gpus
from epl.config import Config, as_variables, read_yaml
from epl.errors import LaunchError

_NVIDIA_SMI_TIMEOUT_S = 20
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
# glibc hands memory of freed tensors back to the kernel by default, and each step gets it again page by page. Here it
# keeps what is below 32 MiB, the most that it allows, until 1 GiB of it lies unused; with this padding it does not give
# back the 64 MiB heaps of threads either, when they are empty for a moment.
_KEPT_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
# And here all of it, which takes a single arena: the heaps of others hold no block above 64 MiB. -1 is "never", as a
# number that is large enough would not fit into the int that an older glibc reads.
_ALL_KEPT_MEMORY = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
# Threads of an arena take turns. That costs two of them nothing that can be measured; many might wait for each other.
_MOST_THREADS_OF_AN_ARENA = 8


def config_variables(path, environ):
    """What `--config` adds to the workers' variables.

    Args:
      path: of the YAML file; None: there is none.
      environ: variables of the launcher. What they say besides holds too; where both say something, the file counts.

    Returns:
      (variables, names of those in `environ` that they overrule).

    Raises:
      ConfigError: the file cannot be read, or is wrong together with the variables.
    """
    if path is None:
        return {}, []
    Config.from_yaml(path, environ)
    found = as_variables(read_yaml(path))
    return found, sorted(name for name in found if environ.get(name, found[name]) != found[name])


def only_these_gpus(names, environ):
    """`environ` as a program sees it that may use the GPUs `names` alone; None: all that it sees now.

    Raises:
      LaunchError: CUDA_VISIBLE_DEVICES hides one of them.
    """
    if not names:
        return environ
    seen = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", ",".join(names)).split(",")]
    hidden = [name for name in names if name not in seen]
    if hidden:
        raise LaunchError(
            "--gpus names %s, which CUDA_VISIBLE_DEVICES=%s hides. Unset it, or name others."
            % (", ".join(hidden), environ["CUDA_VISIBLE_DEVICES"])
        )
    return dict(environ, CUDA_VISIBLE_DEVICES=",".join(names))


def choose_gpus(device, num_workers, gpu_per_worker, environ, total=None):
    """GPUs of each local worker.

    Args:
      device: "auto", "cpu" or "gpu", as `--device` has it.
      num_workers: workers on this machine.
      gpu_per_worker: devices of each.
      environ: variables of the launcher, for CUDA_VISIBLE_DEVICES.
      total: GPUs of the machine; None: counted.

    Returns:
      (list of lists of GPU names, or None for CPU devices; reason why not GPUs, or "").

    Raises:
      LaunchError: device is "gpu" and there are too few.
    """
    if device == "cpu":
        return None, ""
    gpus = visible_gpus(environ, _count_gpus() if total is None else total)
    needed = num_workers * gpu_per_worker
    if len(gpus) >= needed and (device == "gpu" or tensorflow_knows_gpus()):
        return [gpus[worker * gpu_per_worker : (worker + 1) * gpu_per_worker] for worker in range(num_workers)], ""
    found = "%s here%s" % (
        "%d GPU%s" % (len(gpus), "" if len(gpus) == 1 else "s") if gpus else "no GPU",
        " with CUDA_VISIBLE_DEVICES=%s" % environ["CUDA_VISIBLE_DEVICES"] if "CUDA_VISIBLE_DEVICES" in environ else "",
    )
    if device == "gpu":
        raise LaunchError(
            "--device gpu: %d worker%s on this machine with %d GPU%s each need %d, but there %s %s. Start "
            "fewer, or use --device cpu."
            % (
                num_workers,
                "" if num_workers == 1 else "s",
                gpu_per_worker,
                "" if gpu_per_worker == 1 else "s",
                needed,
                "are" if len(gpus) > 1 else "is",
                found,
            )
        )
    if len(gpus) >= needed:
        return None, "this TensorFlow was built without GPU support"
    return None, "%s, %d needed" % (found, needed)


def _count_gpus():
    """GPUs of this machine; asks nvidia-smi where no device file shows one."""
    count = machine_gpus()
    program = shutil.which("nvidia-smi")
    if count or program is None:
        return count
    try:
        listed = subprocess.run(
            [program, "-L"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=_NVIDIA_SMI_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith(b"GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0


def share_cores(cores, num_workers):
    """`cores` (list of core numbers) in `num_workers` equal runs, or None if there is not one for each."""
    if len(cores) < num_workers:
        return None
    return [
        cores[worker * len(cores) // num_workers : (worker + 1) * len(cores) // num_workers]
        for worker in range(num_workers)
    ]


def usable_cores():
    """Numbers of the cores on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def threads_per_worker(cores, num_workers, quota=None):
    """Threads for each of `num_workers`, at least 1.

    Args:
      cores: number of cores.
      quota: cores' worth of time that a container allows, or None for no limit.
    """
    if quota is not None:
        cores = min(cores, int(math.ceil(quota)))
    return max(1, cores // num_workers)


def container_quota(path="/sys/fs/cgroup/cpu.max"):
    """Cores' worth of time that this container may use (a float), or None where there is no limit."""
    try:
        with open(path) as stream:
            quota, period = stream.read().split()[:2]
        return None if quota == "max" else float(quota) / float(period)
    except (OSError, ValueError):
        return None


def job_token(environ, several_machines):
    """Token of the job: the user's, else a random one; "" where machines would have to agree on one without talking.

    Workers then make it of the user's own secret and of their addresses, see `epl.cluster.job_secret`.
    """
    given = environ.get("EPL_JOB_TOKEN", "")
    return given or ("" if several_machines else secrets.token_hex(16))


def token_of_attempt(before):
    """Token of the next attempt of a job, which workers of the one before, whose token is given, cannot know."""
    return before and secrets.token_hex(16)


def worker_environment(environ, addresses, index, gpu_per_worker, gpus, threads, token):
    """All variables of one worker.

    Args:
      environ: variables of the launcher, which the worker inherits.
      addresses: "host:port" of all workers.
      index: this worker's index.
      gpu_per_worker: devices of each worker.
      gpus: names of this worker's GPUs, or None for CPU devices.
      threads: threads of this worker. What the user has set of them stays as it is.
      token: the job's token, or "".
    """
    result = dict(environ)
    result["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
    result["EPL_GPU_PER_WORKER"] = str(gpu_per_worker)
    result["EPL_DEVICE"] = "cpu" if gpus is None else "gpu"
    result["CUDA_VISIBLE_DEVICES"] = ",".join(gpus or ())
    if token:
        result["EPL_JOB_TOKEN"] = token
    for variable in _THREAD_VARIABLES:
        result.setdefault(variable, str(threads))
    result.update(_malloc_variables(environ, gpus, threads))
    result["PYTHONUNBUFFERED"] = "1"
    # So that `python` in a shell script is the one that has EPL, whether or not its environment is activated.
    folder = os.path.dirname(sys.executable)
    path = result.get("PATH", os.defpath).split(os.pathsep)
    result["PATH"] = os.pathsep.join([folder] + [part for part in path if part != folder])
    return result


def _malloc_variables(environ, gpus, threads):
    """How malloc is to keep memory for the next step; nothing if the user has set anything of it."""
    if any(name.startswith("MALLOC_") for name in environ):
        return {}
    return _ALL_KEPT_MEMORY if gpus is None and threads <= _MOST_THREADS_OF_AN_ARENA else _KEPT_MEMORY
