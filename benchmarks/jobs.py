"""What the benchmarks of several workers have in common: starting jobs of EPL and of Horovod, and pinning workers."""

import json
import os
import platform
import re
import subprocess
import sys

WORKERS = 2
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIMIT_S = 600


def rank():
    """The number of this worker in its job, 0 without a job."""
    if "HOROVOD_RANK" in os.environ:
        return int(os.environ["HOROVOD_RANK"])
    return json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)


def settle(favoured):
    """Pins this worker to one core; TensorFlow takes the number of its threads from that, so call it before the import.

    Args:
      favoured: give this worker's threads a high weight against other programs of the machine (Linux autogroups; root).
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank() % len(cores)]})
    if favoured:
        with open("/proc/self/autogroup", "w") as group:
            group.write("-19")


def command(kind, script, horovod_python):
    """The command line of a job: `kind` is plain, waiting, epl or horovod; `script` the script and its arguments."""
    if kind in ("plain", "waiting"):
        return [sys.executable] + script
    if kind == "epl":
        options = ["--num_workers", str(WORKERS), "--gpu_per_worker", "1", "--device", "cpu", "--bind", "none"]
        return [sys.executable, "-m", "epl.launch"] + options + script
    launcher = os.path.join(os.path.dirname(horovod_python), "horovodrun")
    return [launcher, "-np", str(WORKERS), "--gloo", horovod_python] + script


def numbers(kind, script, horovod_python, label):
    """Runs a job and returns the numbers that it prints after `label`, in a list for each line that has it."""
    path = [ROOT] + [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    ended = subprocess.run(
        command(kind, script, horovod_python),
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(path), TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES=""),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=_LIMIT_S,
    )
    found = re.findall(re.escape(label) + r"((?: [-0-9.]+)+)", ended.stdout)
    if ended.returncode or not found:
        sys.exit("the %s job failed with status %d:\n%s" % (kind, ended.returncode, ended.stdout[-4000:]))
    return [[float(number) for number in line.split()] for line in found]


def machine():
    """What the numbers were measured on, in words."""
    with open("/proc/cpuinfo") as source:
        models = re.findall(r"^model name\s*: (.*)$", source.read(), re.MULTILINE)
    return "%d cores of %s, Linux %s" % (
        os.cpu_count(),
        models[0] if models else platform.machine(),
        platform.release(),
    )


def save(path, results):
    """Writes results, a dict, as JSON together with the machine and the version of Python."""
    with open(path, "w") as target:
        json.dump(dict(results, machine=machine(), python=platform.python_version()), target, indent=1, sort_keys=True)
        target.write("\n")
