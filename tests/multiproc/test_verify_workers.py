"""`epl-launch --verify` and `python -m epl.verify`: a program under its strategy against one device."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.processes import clean_environment

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.join(ROOT, "tests", "helpers", "programs", "verified.py")

pytestmark = pytest.mark.either_line


def verify(folder, command, *script, **variables):
    """(exit status, output, report) of one run."""
    environ = clean_environment(TMPDIR=str(folder), EPL_DEVICE="cpu", **variables)
    environ["PYTHONPATH"] = os.pathsep.join([ROOT] + [environ.get("PYTHONPATH", "")])
    report = os.path.join(str(folder), "report.json")
    command = [sys.executable, "-m"] + command + list(script)
    ended = subprocess.run(
        command, cwd=str(folder), env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300
    )
    found = None
    if os.path.exists(report):
        with open(report) as stream:
            found = json.load(stream)
    return ended.returncode, ended.stdout.decode("utf-8", "replace"), found


def test_two_workers_compute_what_one_device_does(tmp_path):
    command = ["epl.verify", "--steps", "3", "--json", "report.json", "--num_workers", "2"]
    status, output, report = verify(tmp_path, command, PROGRAM)
    assert status == 0, output
    assert report["verdict"] == "equal up to rounding" and len(report["steps"]) == 3, output
    for step in report["steps"]:
        names = {each["name"] for each in step}
        assert {"variable table", "variable kernel/Adam", "variable global_step"} <= names
        assert sum(each["kind"] == "loss" for each in step) == 2
        assert {each["kind"] for each in step} == {"loss", "gradient", "variable"}


def test_the_launcher_finds_gradients_that_are_added_up(tmp_path):
    """A sum over two copies of the model in the place of the mean: twice the gradient of one device."""
    command = ["epl.launch", "--gpu_per_worker", "2", "--verify", "2"]
    wrong = {"EPL_COMMUNICATION_GRADIENTS_REDUCE_METHOD": "sum"}
    status, output, _ = verify(tmp_path, command, PROGRAM, "fixed", "norm", **wrong)
    assert status == 1, output
    assert "verdict: different" in output and "step 0 is the first that differs; most of all the gradient of" in output
    here, there = output.split("]: ")[1].split(" under the strategy")[0].split(" on one device, ")
    assert abs(float(there) / float(here) - 2) < 1e-4
    first = output.split("the first operation that differs: ")[1]
    assert "joining of gradients of step 0" in first and "made at %s:" % PROGRAM in first
    assert "EplAllReduce (aggregate_gradients" in first
    assert "perhaps it is the sum over 2 copies and micro-batches where their mean belongs" in first


def test_a_program_that_does_not_train(tmp_path):
    script = tmp_path / "idle.py"
    script.write_text(
        "import tensorflow.compat.v1 as tf, epl\ntf.disable_v2_behavior()\nepl.init()\n"
        "with tf.Session() as session:\n    session.run(tf.constant(1.0))\n"
    )
    status, output, _ = verify(tmp_path, ["epl.verify"], str(script))
    assert status == 2 and "the program has taken no training step under the strategy" in output
