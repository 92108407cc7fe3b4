"""A native library that does not fit the Python code is refused in words, before anything of it runs."""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys

import pytest

from epl import tf_compat
from epl.communicators import interface, library, native
from epl.errors import CommunicationError

CSRC = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "csrc")
# Of what the headers declare, without comments and spaces. It changes with them, and EPL_COMM_INTERFACE should too,
# unless only members were added at a structure's end: earlier libraries do not look at those.
HEADERS = {5: "bed232b7"}


def header(name):
    with open(os.path.join(CSRC, "comm", name)) as source:
        return source.read()


@pytest.mark.skipif(not os.path.isdir(CSRC), reason="needs the C++ sources")
def test_headers_have_not_changed_under_the_same_number():
    text = "".join(header(name) for name in ("epl_comm.h", "epl_measure.h"))
    number = int(re.search(r"#define EPL_COMM_INTERFACE (\d+)", text).group(1))
    digest = hashlib.sha256("".join(re.sub(r"//.*", "", text).split()).encode()).hexdigest()[:8]
    assert number == interface.COMM
    assert HEADERS.get(number) == digest, (
        "the C interface has changed: raise EPL_COMM_INTERFACE in csrc/comm/epl_comm.h and epl.communicators."
        "interface.COMM by 1, and write {%d: '%s'} here" % (number + 1, "the digest that this test then finds")
    )


def test_operations_are_those_that_the_libraries_bring():
    library.load()
    names = [name for name in dir(library.load()) if name.startswith("Epl")]
    there = {name: interface.digest(tf_compat.op_def(name)) for name in names}
    assert there == interface.OPERATIONS, "write these to epl.communicators.interface.OPERATIONS: %s" % there
    assert interface.comm_problem(native.comm().epl_comm_interface()) is None


@pytest.fixture
def fresh(monkeypatch):
    """As if nothing had been loaded yet."""
    native.comm()
    monkeypatch.setattr(native, "_LOADED", {})
    monkeypatch.setattr(library, "_LOADED", {})
    return monkeypatch


def test_operations_of_another_time(fresh):
    changed = dict(interface.OPERATIONS, EplFromTomorrow="00000000", EplGate="00000000")
    del changed["EplBarrier"]
    fresh.setattr(interface, "OPERATIONS", changed)
    with pytest.raises(CommunicationError) as raised:
        library.load()
    text = str(raised.value)
    assert "lacks the operations EplFromTomorrow;" in text and "other forms of EplGate;" in text
    assert "does not know: EplBarrier." in text and "make csrc" in text and "pip install ." in text


def test_operations_for_another_interface(fresh):
    fresh.setattr(interface, "COMM", interface.COMM + 1)
    fresh.setattr(native, "comm", lambda: None)  # that one has been mended already
    expected = "interface %d of the communicators, and this epl expects %d" % (interface.COMM - 1, interface.COMM)
    with pytest.raises(CommunicationError, match=expected):
        library.load()


@pytest.mark.skipif(not shutil.which("g++"), reason="needs a compiler")
@pytest.mark.parametrize(
    "number,what", [(None, "undefined symbol: epl_comm_"), (interface.COMM + 1, "this epl expects")]
)
def test_library_of_other_sources(fresh, tmp_path, number, what):
    names = [name for name in native._FUNCTIONS if number or "measure" not in name]
    bodies = {"epl_comm_interface": "return %d;" % (number or 0)}
    source = tmp_path / "other.c"
    source.write_text("\n".join("int %s(void) { %s }" % (name, bodies.get(name, "return 0;")) for name in names))
    path = str(tmp_path / "other.so")
    subprocess.check_call(["g++", "-x", "c", "-shared", "-fPIC", str(source), "-o", path])
    fresh.setattr(native, "library_path", lambda name: path)
    assert ctypes.CDLL(path).epl_comm_destroy() == 0
    with pytest.raises(CommunicationError, match=what) as raised:
        native.comm()
    assert path in str(raised.value) and "make csrc" in str(raised.value)


def test_sources_that_are_not_built_use_what_is_installed(monkeypatch, tmp_path):
    """In the folder of the sources `import epl` finds ./epl, whatever pip has installed."""
    monkeypatch.setattr(native, "FOLDER", str(tmp_path / "sources"))
    monkeypatch.setattr(sys, "path", ["", str(tmp_path)])
    with pytest.raises(CommunicationError, match="not built"):
        native.library_path("some.so")
    folder = tmp_path / "epl" / "communicators" / "lib"
    folder.mkdir(parents=True)
    (folder / "some.so").write_text("")
    assert native.library_path("some.so") == str(folder / "some.so")
