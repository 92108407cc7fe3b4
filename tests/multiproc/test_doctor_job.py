"""`epl-launch --doctor` on this machine, workers included."""

import sys

import pytest

from tests.helpers import processes

pytestmark = pytest.mark.either_line


def doctor(template, folder, *arguments):
    command = ["-m", "epl.launch", "--doctor"] + list(arguments)
    return template.python(command, processes.clean_environment(), str(folder / "log"), str(folder)).wait(300)


def test_this_machine(template, tmp_path):
    ended = doctor(template, tmp_path, str(tmp_path))
    assert ended.code == 0, ended
    for said in (
        "TensorFlow",
        "native part      loaded",
        "renames and locks there work",
        "2 workers through shm",
        "jobs will run" if "warning" in ended.output else "all is well",
    ):
        assert said in ended.output, said
    assert "Python           %d.%d" % sys.version_info[:2] in ended.output


def test_a_job_that_cannot_be_started(template, tmp_path):
    ended = doctor(template, tmp_path, "--gpus", "0", "--device", "cpu")
    assert ended.code == 1 and "--gpus names GPUs, but --device cpu asks for none" in ended.output
    assert "jobs will not run here: see all-reduce" in ended.output
