"""Which hardware this is, so that what was measured on it is found again; and where that is kept."""

import hashlib
import os
import platform
import re

_GIB = float(1 << 30)
_PROCESSOR, _MEMORY, _GPUS = "/proc/cpuinfo", "/proc/meminfo", "/proc/driver/nvidia/gpus"


def hardware(root="/"):
    """What tells a machine from others: processor, cores that this process may use, memory, GPUs. A list of texts.

    Args:
      root: folder in which /proc is looked for.
    """
    found = [_first(r"model name\s*:\s*(.+)", _below(root, _PROCESSOR)) or platform.machine()]
    found.append("%d cores" % cores())
    found.append("%d GiB" % round(memory_bytes(root) / _GIB))
    gpus = _below(root, _GPUS)
    for name in sorted(os.listdir(gpus)) if os.path.isdir(gpus) else ():
        found.append(_first(r"Model:\s*(.+)", os.path.join(gpus, name, "information")) or "GPU")
    return found


def cores():
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_bytes(root="/"):
    """Size of the host's memory; 0 where that is not known."""
    return int(_first(r"MemTotal:\s*(\d+) kB", _below(root, _MEMORY)) or 0) * 1024


def machine_file(environ=None):
    """The path at which `python -m epl.calibrate` keeps what it has measured on this hardware."""
    environ = os.environ if environ is None else environ
    folder = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256("\n".join(hardware()).encode()).hexdigest()[:16]
    return os.path.join(folder, "epl", "machines", "%s.yaml" % name)


def _below(root, path):
    return os.path.join(root, path.lstrip("/"))


def _first(pattern, path):
    """The first match of a pattern in a file; "" where there is none, or no such file."""
    if not os.path.isfile(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        found = re.search(pattern, file.read())
    return found.group(1).strip() if found else ""
