"""How many GPUs this machine has and a process may use, found without importing TensorFlow or loading CUDA."""

import functools
import glob
import importlib.util
import os
import re

# Each of these lists one entry per GPU; which of them exist depends on the driver and on the container's runtime.
_DEVICE_PATTERNS = ("/dev/nvidia[0-9]*", "/proc/driver/nvidia/gpus/*")


def machine_gpus(patterns=_DEVICE_PATTERNS):
    """Number of NVIDIA GPUs of this machine (or container)."""
    counts = (len(glob.glob(pattern)) for pattern in patterns)
    return next((count for count in counts if count), 0)


def visible_gpus(environ=None, total=None):
    """Identifiers of the GPUs that a process with these variables sees, as CUDA_VISIBLE_DEVICES spells them.

    Args:
      environ: mapping with CUDA_VISIBLE_DEVICES, if it is set. Default: `os.environ`.
      total: number of GPUs of the machine. Default: counted.

    Returns:
      List of strings: indices as text, or the UUIDs that the variable names. Empty: no GPU.
    """
    environ = os.environ if environ is None else environ
    total = machine_gpus() if total is None else total
    every = [str(index) for index in range(total)]
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or not every:
        return every
    seen = []
    for name in (part.strip() for part in chosen.split(",")):
        # As CUDA does: the list ends at the first entry that is no device.
        if not (name in every or name.startswith(("GPU-", "MIG-"))) or name in seen:
            break
        seen.append(name)
    return seen


@functools.lru_cache(maxsize=None)
def tensorflow_knows_gpus():
    """False if the installed TensorFlow was built without GPU support; True if it was not, or if nobody can tell."""
    found = importlib.util.find_spec("tensorflow")
    for folder in (found and found.submodule_search_locations) or ():
        # TensorFlow 1.15's own modules lie beside the package of that name.
        for name in (folder, folder + "_core"):
            path = os.path.join(name, "python", "platform", "build_info.py")
            if os.path.exists(path):
                with open(path, encoding="utf-8", errors="replace") as stream:
                    return not re.search(r"is_cuda_build['\"]?\s*[=:]\s*False", stream.read())
    return True
