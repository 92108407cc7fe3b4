"""Checks of this machine: Python, TensorFlow, the native part, GPUs, cores, memory, descriptors, ports, names.

Each check takes what it depends on and gives a Finding, so that tests can hand it other machines.
"""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys

from epl.cluster.gpus import machine_gpus, tensorflow_knows_gpus
from epl.communicators.build import COMM_LIBRARY, ops_library
from epl.communicators.native import FOLDER
from epl.doctor.findings import fine, warning, wrong
from epl.launch.environment import container_quota, usable_cores
from epl.launch.machines import free_ports
from epl.plan.text import bytes_text

# Seconds for importing TensorFlow on a busy machine with a cold disk.
_IMPORT_S = 180
# What a worker with its connections, logs and data files may have open at the same time.
_DESCRIPTORS = 1024
# Communicators of a worker map some of shared memory for each, 64 MiB serve most models.
_SHARED_BYTES = 64 * 1024 * 1024
_MARK = "epl-doctor "
_ASK = (
    """
import json
import tensorflow as tf
from epl.communicators import gpu, library
from epl.config import Config
found = {"version": tf.version.VERSION, "problem": "", "nccl": ""}
try:
    library.load()
    found["nccl"] = gpu.nccl_problem(Config())
except Exception as error:
    found["problem"] = str(error)
print("%s" + json.dumps(found))
"""
    % _MARK
)


def python(version=sys.version_info):
    text = "%d.%d.%d" % tuple(version[:3])
    if tuple(version[:2]) == (3, 7) or (3, 9) <= tuple(version[:2]) <= (3, 11):
        return fine("Python", text)
    return wrong("Python", text, "TensorFlow 1.15 needs Python 3.7, TensorFlow 2.15 Python 3.9 to 3.11.")


def ask_tensorflow(seconds=_IMPORT_S):
    """What a process of its own finds that imports TensorFlow and loads EPL's operations into it.

    Returns:
      A dict with TensorFlow's `version`, `problem` and `nccl`, why the operations and NCCL cannot be loaded, "" where
      they can; `failure` alone, where TensorFlow cannot be imported.
    """
    environ = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    command = [sys.executable, "-W", "ignore", "-c", _ASK]
    try:
        asked = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"failure": "importing it took more than %g s" % seconds}
    said = [line for line in asked.stdout.decode("utf-8", "replace").splitlines() if line.startswith(_MARK)]
    if said:
        return json.loads(said[-1][len(_MARK) :])
    printed = asked.stderr.decode("utf-8", "replace").strip().splitlines()
    return {"failure": "it cannot be imported: %s" % (printed[-1] if printed else "it ended without a word")}


def tensorflow(found):
    """By what `ask_tensorflow` has found."""
    what = "TensorFlow"
    if "failure" in found:
        advice = "pip install 'tensorflow>=2.15.1,<2.16' with Python 3.9 to 3.11, tensorflow==1.15.5 with Python 3.7."
        return wrong(what, found["failure"], advice)
    if not found["version"].startswith(("1.15.", "2.15.")):
        return wrong(what, found["version"], "EPL serves 1.15 and 2.15. Install one of these.")
    return fine(what, found["version"])


def native_part(found):
    """The same, of EPL's own libraries."""
    what = "native part"
    if "failure" in found:
        return warning(what, "not looked at, as TensorFlow cannot be imported", "Mend that first.")
    if found["problem"]:
        return wrong(what, found["problem"], "`pip install .` builds it, `make csrc` in a checkout.")
    return fine(what, "loaded into TensorFlow %s" % found["version"])


def compiler(folder=FOLDER, which=shutil.which):
    """A compiler is needed only where the native part has to be built."""
    name = (os.environ.get("CXX") or "g++").split()[0]
    path = which(name)
    if path:
        return fine("compiler", path)
    line = "tf1" if sys.version_info < (3, 8) else "tf2"
    if all(os.path.exists(os.path.join(folder, library)) for library in (COMM_LIBRARY, ops_library(line))):
        return fine("compiler", "none, and none is needed: the native part is built")
    return wrong(
        "compiler", "there is no %s, and the native part is not built" % name, "apt-get install g++, or set CXX."
    )


def gpus(found, count=None, knows=None):
    """GPUs of this machine, and whether TensorFlow and NCCL can use them."""
    count = machine_gpus() if count is None else count
    if not count:
        return fine("GPUs", "none; workers have CPU devices")
    if not (tensorflow_knows_gpus() if knows is None else knows):
        advice = "Install the TensorFlow that has its GPU part: `pip install '.[gpu]'`; tensorflow-cpu has none."
        return warning("GPUs", "%d, but this TensorFlow was built without GPUs" % count, advice)
    if found.get("nccl"):
        advice = "`pip install '.[gpu]'` brings NCCL. Without it GPUs of several workers exchange through host memory."
        return warning("GPUs", "%d, without NCCL: %s" % (count, found["nccl"]), advice)
    return fine("GPUs", "%d, with NCCL" % count)


def cores(usable=None, quota=None):
    usable = len(usable_cores()) if usable is None else usable
    quota = container_quota() if quota is None else quota
    text = "%d" % usable
    if quota and quota < usable:
        return fine("cores", "%s, of which this container may use %g at a time" % (text, quota))
    return fine("cores", text)


def shared_memory(path="/dev/shm"):
    """Through it workers of one machine exchange data."""
    advice = (
        "Give it more: `docker run --shm-size 2g`, `mount -o remount,size=50% /dev/shm`; or communication.backend=tcp."
    )
    try:
        space = os.statvfs(path)
    except OSError as error:
        return wrong("shared memory", "%s: %s" % (path, error.strerror), advice)
    free = space.f_bavail * space.f_frsize
    text = "%s of %s free in %s" % (bytes_text(free), bytes_text(space.f_blocks * space.f_frsize), path)
    if not os.access(path, os.W_OK):
        return wrong("shared memory", "%s cannot be written to" % path, advice)
    if free < _SHARED_BYTES:
        return warning("shared memory", text, advice)
    return fine("shared memory", text)


def descriptors(limits=None):
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    most = soft if hard == resource.RLIM_INFINITY else hard
    if 0 <= most < _DESCRIPTORS:
        advice = "Raise it: `ulimit -n 4096`, or nofile in /etc/security/limits.conf."
        return warning("open files", "at most %d" % most, advice)
    return fine("open files", "at most %s" % ("any number" if most < 0 else most))


def ports(find=free_ports):
    try:
        return fine("ports", "free ones, such as %d" % find(1)[0])
    except (OSError, ValueError) as error:
        return wrong(
            "ports", "none can be listened at: %s" % error, "Look for a firewall, or another network namespace."
        )


def host_name(name=None, resolve=socket.gethostbyname):
    """Schedulers name machines; a name that leads to 127.0.0.1 serves jobs on one machine only."""
    name = name or socket.gethostname()
    try:
        address = resolve(name)
    except OSError:
        advice = "In jobs over several machines name them by address, or add the name to /etc/hosts or DNS."
        return warning("host name", "%s leads to no address" % name, advice)
    if address.startswith("127."):
        advice = "In jobs over several machines name this one by its address in the network."
        return warning("host name", "%s leads to %s, which is this machine only for itself" % (name, address), advice)
    return fine("host name", "%s, %s" % (name, address))
