"""Builds the native libraries of epl with the compiler of this machine.

Two libraries land in `epl/communicators/lib/`:

- `libepl_comm.so`: the communicators (`csrc/comm`). No TensorFlow in it, one build serves both TensorFlow lines.
- `epl_ops-tf1.so` or `epl_ops-tf2.so`: the TensorFlow kernels (`csrc/ops`), built for the TensorFlow of the Python that
    runs this file. Both may lie side by side, so one checkout serves both lines.

`python epl/communicators/build.py` builds in place in a checkout; `setup.py` calls `build()` for `pip install .`. What
is up to date is not built again: each object remembers a digest of its command, its source and what that includes.

This file imports nothing else of epl, because it runs before epl can be imported.

Environment: `CXX` (default `g++`), `EPL_CXXFLAGS` (added to every compile command), `EPL_WITH_GLOO` (`1`: fail if Gloo
is not there; `0`: build without; unset: use it when found), `EPL_BUILD_JOBS` (compilers at a time, default the
number of cores).
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

COMM_LIBRARY = "libepl_comm.so"
_COMPILE_TIMEOUT_S = 1200
_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))
# Into so many files are the kernels put together: TensorFlow's headers take most of the time of compiling one.
_UNITS = 2
_WARNINGS = ["-Wall", "-Wextra", "-Werror"]
_GLOO_PROBE = """
#include <gloo/context.h>
#include <gloo/transport/tcp/device.h>
int main() { gloo::transport::tcp::attr attr; gloo::transport::tcp::CreateDevice(attr); return 0; }
"""
# The TensorFlow headers include pyconfig-free C++ only, so this compiles exactly what csrc/ops needs from them.
_TENSORFLOW_QUERY = """
import json, sys
import tensorflow as tf
print(json.dumps({
        "version": tf.version.VERSION,
        "include": tf.sysconfig.get_include(),
        "compile": tf.sysconfig.get_compile_flags(),
        "link": tf.sysconfig.get_link_flags()}), file=sys.stderr)
"""


class BuildError(Exception):
    """The native part cannot be built here; the text says why and what to install."""


def ops_library(line):
    """The file name of the TensorFlow kernels for `line`, which is "tf1" or "tf2"."""
    return "epl_ops-%s.so" % line


def _say(text):
    print(text + "\n", end="", flush=True)  # in one piece, as several compilers run at a time


def build(output=None, work=None, root=_ROOT, log=_say):
    """Builds both libraries and returns their paths.

    Args:
        output: the folder for the libraries; default `epl/communicators/lib` of the checkout.
        work: the folder for objects; default `build/native` of the checkout.
        root: the folder that holds `csrc`.
        log: called with one line of text for each thing that is built.

    Raises:
        BuildError: no compiler, no headers, or the sources do not compile; says what to install.
    """
    output = output or os.path.join(root, "epl", "communicators", "lib")
    work = work or os.path.join(root, "build", "native")
    os.makedirs(output, exist_ok=True)
    os.makedirs(work, exist_ok=True)
    compiler = _find_compiler()
    tensorflow = _find_tensorflow()
    comm = _build_comm(compiler, root, output, os.path.join(work, "comm"), log)
    return [comm, _build_ops(compiler, tensorflow, root, output, work, log)]


@contextlib.contextmanager
def _alone_in(folder):
    """Makes a folder, and no other process is in it meanwhile."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_comm(compiler, root, output, work, log):
    folder = os.path.join(root, "csrc", "comm")
    flags = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread", "-I" + folder] + _WARNINGS
    libraries = ["-pthread", "-lrt", "-ldl"]
    sources = _sources(folder)
    with _alone_in(work):  # both lines may be built at the same time
        if _with_gloo(compiler, work):
            flags.append("-DEPL_WITH_GLOO")
            libraries.insert(0, "-lgloo")
        else:
            log("epl: Gloo was not found: this build is without communication.backend=gloo")
        return _build_library(compiler, sources, flags, libraries, os.path.join(output, COMM_LIBRARY), work, log)


def _build_ops(compiler, tensorflow, root, output, work, log):
    folder = os.path.join(root, "csrc", "ops")
    line = "tf%s" % tensorflow["version"].split(".")[0]
    # System headers: their warnings are not ours.
    includes = [flag.replace("-I", "-isystem", 1) if flag.startswith("-I") else flag for flag in tensorflow["compile"]]
    # TensorFlow 1.15 says nothing about the language: its headers are C++11.
    standard = [] if any("std=" in flag for flag in includes) else ["-std=c++11"]
    # NDEBUG: some of TensorFlow's classes have other members without it, and its wheels are built with it.
    # -fno-math-errno: square roots of several numbers at once.
    flags = standard + ["-O3", "-DNDEBUG", "-fno-math-errno", "-fPIC", "-pthread"]
    flags += ["-I" + os.path.join(root, "csrc", "comm")] + includes + _WARNINGS
    # -Wno-...: in code that TensorFlow's headers instantiate in our files.
    flags += ["-Wno-unused-parameter", "-Wno-deprecated-declarations", "-Wno-sign-compare", "-Wno-ignored-qualifiers"]
    libraries = ["-L" + output, "-l:" + COMM_LIBRARY, "-Wl,-rpath,$ORIGIN"] + tensorflow["link"]
    target = os.path.join(output, ops_library(line))
    work = os.path.join(work, "ops-" + line)
    with _alone_in(work):
        units = _put_together(_sources(folder), work)
        return _build_library(compiler, units, flags, libraries, target, work, log)


def _sources(folder):
    if not os.path.isdir(folder):
        raise BuildError(
            "The C++ sources are missing: there is no folder %s. Build from a complete checkout or source package."
            % folder
        )
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".cc"))


def _put_together(sources, work):
    """Writes files that include all sources, about as much each; returns them.

    Names that a source has for itself must therefore differ from those of the others; the compiler tells.
    """
    shares = [[] for _ in range(_UNITS)]
    for source in sorted(sources, key=os.path.getsize, reverse=True):
        min(shares, key=lambda share: sum(map(os.path.getsize, share))).append(source)
    units = []
    for number, share in enumerate(shares):
        units.append(os.path.join(work, "unit_%d.cc" % number))
        _write(units[-1], "".join('#include "%s"\n' % source for source in sorted(share)))
    return units


def _build_library(compiler, sources, flags, libraries, target, work, log):
    """Compiles what is out of date, links when anything changed, returns `target`."""
    if not sources:
        raise BuildError("There are no C++ sources for %s." % target)
    jobs = int(os.environ.get("EPL_BUILD_JOBS", "0")) or os.cpu_count() or 1
    command = compiler + flags + shlex.split(os.environ.get("EPL_CXXFLAGS", ""))
    with ThreadPoolExecutor(jobs) as executor:
        objects = list(executor.map(lambda source: _compile(command, source, work, log), sources))
    # Compared as a digest too: a library from other objects (a branch, other flags) may be younger than these.
    # -z defs: what is missing shows here and not when the library is loaded.
    link = compiler + ["-shared", "-Wl,-z,defs", "-o", target + ".tmp"] + [path for path, _ in objects] + libraries
    stamp = os.path.join(work, os.path.basename(target) + ".stamp")
    digest = _digest([" ".join(link)] + [state for _, state in objects])
    if os.path.exists(target) and _read(stamp) == digest:
        return target
    log("epl: linking %s" % os.path.basename(target))
    _run(link, "linking %s" % os.path.basename(target))
    os.replace(target + ".tmp", target)  # a running process keeps the old file
    _write(stamp, digest)
    return target


def _compile(command, source, work, log):
    """Returns (object file, digest of everything that went into it)."""
    base = os.path.join(work, os.path.basename(source)[: -len(".cc")])
    command = command + ["-c", source, "-o", base + ".o"]
    known = _read(base + ".json")
    if known and os.path.exists(base + ".o"):
        known = json.loads(known)
        if known["digest"] == _inputs_digest(command, known["inputs"]):
            return base + ".o", known["digest"]
    log("epl: compiling %s" % os.path.relpath(source, os.path.dirname(os.path.dirname(os.path.dirname(source)))))
    _run(command + ["-MMD", "-MF", base + ".d"], "compiling %s" % source)  # -MMD leaves system headers out
    inputs = _read_dependencies(base + ".d")
    digest = _inputs_digest(command, inputs)
    _write(base + ".json", json.dumps({"inputs": inputs, "digest": digest}))
    return base + ".o", digest


def _read_dependencies(path):
    text = _read(path).replace("\\\n", " ")
    return sorted(set(shlex.split(text.split(":", 1)[1])))


def _inputs_digest(command, inputs):
    contents = []
    for path in inputs:
        if not os.path.exists(path):
            return ""
        with open(path, "rb") as source:
            contents.append(hashlib.sha256(source.read()).hexdigest())
    return _digest([" ".join(command)] + contents)


def _find_compiler():
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    try:
        subprocess.run(
            command + ["--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(
            "The C++ compiler '%s' cannot be run (%s). Install one (Debian or Ubuntu: apt-get install g++; Fedora: dnf "
            "install gcc-c++) or name another in the variable CXX, then try again." % (" ".join(command), error)
        )
    with tempfile.TemporaryDirectory() as folder:
        if not _compiles(
            command, "#include <cstdint>\n#include <thread>\nint main() { return 0; }\n", ["-std=c++17"], folder
        ):
            raise BuildError(
                "'%s' cannot compile a C++17 program. GCC 7 or newer with its C++ headers is needed (Debian or Ubuntu: "
                "apt-get install g++ libc6-dev)." % " ".join(command)
            )
    return command


def _find_tensorflow():
    environ = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    try:
        # On stderr among others' output: TensorFlow and its plug-ins may print to stdout when they are imported.
        result = subprocess.run(
            [sys.executable, "-c", _TENSORFLOW_QUERY],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            timeout=300,
        )
    except subprocess.TimeoutExpired:
        raise BuildError("Importing TensorFlow in %s took more than 300 s." % sys.executable)
    text = result.stderr.decode("utf-8", "replace")
    if result.returncode:
        raise BuildError(
            "TensorFlow cannot be imported by %s, and its headers are needed to build the kernels. Install "
            "tensorflow==1.15.5 (Python 3.7) or tensorflow>=2.15,<2.16 (Python 3.9 to 3.11) first. The import said:\n%s"
            % (sys.executable, text)
        )
    found = json.loads([line for line in text.splitlines() if line.startswith("{")][-1])
    header = os.path.join(found["include"], "tensorflow", "core", "framework", "op_kernel.h")
    if not os.path.exists(header):
        raise BuildError(
            "TensorFlow %s has no C++ headers at %s. Install the wheel from PyPI, which has them."
            % (found["version"], header)
        )
    return found


def _with_gloo(compiler, work):
    wanted = os.environ.get("EPL_WITH_GLOO", "")
    if wanted not in ("", "0", "1"):
        raise BuildError("EPL_WITH_GLOO is '%s'; it may be 0, 1 or unset." % wanted)
    if wanted == "0":
        return False
    found = _compiles(compiler, _GLOO_PROBE, ["-std=c++17"], work, ["-lgloo", "-pthread"])
    if wanted == "1" and not found:
        raise BuildError(
            "EPL_WITH_GLOO=1, but a program that uses Gloo does not compile. Install it (Debian or Ubuntu: apt-get "
            "install libgloo-dev)."
        )
    return found


def _compiles(compiler, text, flags, folder, libraries=()):
    source = os.path.join(folder, "probe.cc")
    _write(source, text)
    command = compiler + flags + [source, "-o", os.path.join(folder, "probe")] + list(libraries)
    result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_COMPILE_TIMEOUT_S)
    return result.returncode == 0


def _run(command, what):
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_COMPILE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise BuildError("%s took more than %d s and was stopped." % (what, _COMPILE_TIMEOUT_S))
    if result.returncode:
        raise BuildError(
            "%s failed with status %d.\n%s\n%s"
            % (what, result.returncode, " ".join(command), result.stdout.decode("utf-8", "replace"))
        )


def _digest(parts):
    return hashlib.sha256("\n".join(parts).encode("utf-8")).hexdigest()


def _read(path):
    if not os.path.exists(path):
        return None
    with open(path) as source:
        return source.read()


def _write(path, text):
    with open(path, "w") as target:
        target.write(text)


def main():
    parser = argparse.ArgumentParser(description="Build the native libraries of epl in place.")
    parser.add_argument("--output", help="folder for the libraries (default: epl/communicators/lib of this checkout)")
    parser.add_argument("--work", help="folder for objects (default: build/native of this checkout)")
    arguments = parser.parse_args()
    try:
        build(arguments.output, arguments.work)
    except BuildError as error:
        sys.exit("epl: %s" % error)


if __name__ == "__main__":
    main()
