"""What `epl-launch --doctor` says of machines, those included that this one is not."""

import errno
import fcntl
import os
import time

import pytest

from epl.doctor import exchange, folder, this_machine
from epl.doctor.findings import OK, WARNING, WRONG, fine, lines, verdict, warning, wrong
from epl.errors import LaunchError

FOUND = {"version": "2.15.1", "problem": "", "nccl": ""}
RESULT = {"workers": 2, "right": True, "seconds": 0.004, "bytes": 2**24, "through": "shm", "clocks_apart_s": 0.01}


def no_ports(count):
    raise LaunchError("found only 0 free TCP ports for %d workers." % count)


def no_address(name):
    raise OSError(errno.ENOENT, "unknown name")


def test_what_is_well_here():
    for finding in (
        this_machine.cores(),
        this_machine.ports(),
        this_machine.descriptors(),
        this_machine.compiler(which=lambda name: "/cc"),
    ):
        assert finding.state == OK and finding.advice == "", finding


@pytest.mark.parametrize(
    "finding, state, said",
    [
        (this_machine.python((3, 8, 1)), WRONG, "3.8.1"),
        (this_machine.python((3, 12, 0)), WRONG, "3.12.0"),
        (this_machine.python((3, 7, 16)), OK, "3.7.16"),
        (this_machine.tensorflow({"failure": "it cannot be imported: no module"}), WRONG, "no module"),
        (this_machine.tensorflow(dict(FOUND, version="2.16.1")), WRONG, "2.16.1"),
        (this_machine.tensorflow(FOUND), OK, "2.15.1"),
        (this_machine.native_part(dict(FOUND, problem="it is of another epl")), WRONG, "of another epl"),
        (this_machine.native_part({"failure": "x"}), WARNING, "not looked at"),
        (this_machine.compiler("/nowhere", lambda name: None), WRONG, "there is no g++"),
        (this_machine.gpus(FOUND, 0), OK, "none"),
        (this_machine.gpus(FOUND, 2, False), WARNING, "built without GPUs"),
        (
            this_machine.gpus(dict(FOUND, nccl="libnccl.so.2 is not there"), 2, True),
            WARNING,
            "libnccl.so.2 is not there",
        ),
        (this_machine.gpus(FOUND, 2, True), OK, "2, with NCCL"),
        (this_machine.cores(8, 2.5), OK, "8, of which this container may use 2.5 at a time"),
        (this_machine.shared_memory("/nowhere"), WRONG, "/nowhere: No such file"),
        (this_machine.descriptors((256, 256)), WARNING, "at most 256"),
        (this_machine.descriptors((256, 4096)), OK, "at most 4096"),
        (this_machine.ports(no_ports), WRONG, "only 0 free TCP ports"),
        (this_machine.host_name("node1", lambda name: "127.0.1.1"), WARNING, "node1 leads to 127.0.1.1"),
        (this_machine.host_name("node1", lambda name: "10.0.0.1"), OK, "node1, 10.0.0.1"),
        (this_machine.host_name("node1", no_address), WARNING, "node1 leads to no address"),
    ],
)
def test_machines(finding, state, said, monkeypatch):
    assert finding.state == state and said in finding.text
    assert bool(finding.advice) == (state != OK)


def test_tensorflow_that_takes_too_long(monkeypatch):
    assert this_machine.ask_tensorflow(seconds=0.001) == {"failure": "importing it took more than 0.001 s"}


def test_a_folder_for_checkpoints(tmp_path):
    new = os.path.join(str(tmp_path), "not", "there", "yet")
    space, works = folder.folder(new)
    assert space.state == OK and str(tmp_path) in space.text
    assert works.state == OK and "renames and locks there work" in works.text
    assert os.listdir(str(tmp_path)) == []


def test_a_folder_without_locks_and_with_another_clock(tmp_path):
    def refuse(file, how):
        raise OSError(errno.ENOLCK, "no locks available")

    _, locks, clock = folder.folder(str(tmp_path), refuse, lambda: time.time() - 60)
    assert locks.state == WARNING and "cannot be locked there (ENOLCK)" in locks.text
    assert clock.state == WARNING and "differs by 60.0 s" in clock.text


def test_a_folder_that_cannot_be_written_to():
    (finding,) = folder.folder("/proc/self", fcntl.flock)
    assert finding.state == WRONG and "/proc/self" in finding.text


def test_the_type_of_a_file_system(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/vda / ext4 rw 0 0\nserver:/x /data nfs4 rw 0 0\nnone /data/fast tmpfs rw 0 0\n")
    kinds = [folder.kind_of(path, str(mounts)) for path in ("/home", "/data/a", "/data/fast", "/database")]
    assert kinds == ["ext4", "nfs4", "tmpfs", "ext4"]


def test_what_workers_left():
    assert [finding.state for finding in exchange.judge(RESULT)] == [OK, OK]
    assert "2 workers through shm: 16 MiB in 4.0 ms, 4.19 GB/s" == exchange.judge(RESULT)[0].text
    assert exchange.judge(dict(RESULT, right=False))[0].state == WRONG
    assert exchange.judge(dict(RESULT, clocks_apart_s=30.0))[1].text == "the workers' differ by 30.0 s"


def test_the_last_line():
    assert verdict([fine("a", "")]) == ("all is well", 0)
    assert verdict([fine("a", ""), warning("b", "", "x")]) == ("jobs will run here; see the warning on b", 0)
    assert verdict([wrong("a", "", "x"), warning("b", "", "x")]) == ("jobs will not run here: see a", 1)
    assert len(lines(fine("a", "text"))) == 1 and lines(wrong("a", "text", "advice"))[1].strip() == "advice"
