"""What happens to a worker that has one stage of a pipeline ends all workers, soon, and is named."""

import os
import re
import signal
import time

import numpy as np
import pytest

from tests.multiproc.test_faults import NOTICE_S, TIMEOUT_S, alive, names_worker, start_runs

pytestmark = pytest.mark.alone

__all__ = ["start_runs"]


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_stage(start, victim):
    run = start("hang", victim, FAULT_STAGES=2)
    run.wait_for_file("in_step")
    time.sleep(1)
    pids = run.pids()
    os.kill(pids[victim], signal.SIGKILL)
    killed = time.time()
    ended = run.end(60)
    assert time.time() - killed < NOTICE_S, ended
    assert ended.code not in (0, None), ended
    assert not any(alive(pid) for pid in pids)
    assert names_worker(ended.output[-3000:], victim) and re.search(r"SIGKILL|signal 9", ended.output[-3000:]), ended


def test_stopped_stage(start):
    run = start("hang", 0, EPL_COMMUNICATION_TIMEOUT_S=TIMEOUT_S, FAULT_STAGES=2)
    run.wait_for_file("in_step")
    os.kill(run.pids()[0], signal.SIGSTOP)
    stopped = time.time()
    ended = run.end(60)
    assert time.time() - stopped < TIMEOUT_S + 2 * NOTICE_S, ended
    assert ended.code not in (0, None), ended
    error = run.read("error.1")
    assert names_worker(error, 0) and re.search(r"\b%d(\.0)? ?s" % TIMEOUT_S, error), error
    assert "hidden" in error, error  # which message it was


def test_data_ends_at_the_first_stage(start):
    run = start("data_ends", 0, FAULT_STAGES=2)
    ended = run.end()
    assert ended.code == 0, ended
    assert [run.read("steps.%d" % index) for index in range(2)] == ["4", "4"]
    assert "Traceback" not in ended.output


@pytest.mark.parametrize("scenario, victim", [("raise_in_graph", 0), ("raise_in_graph", 1), ("raise_in_script", 1)])
def test_stage_that_raises(start, scenario, victim):
    run = start(scenario, victim, FAULT_STAGES=2)
    ended = run.end()
    assert ended.code not in (0, None), ended
    error = run.read("error.%d" % (1 - victim))
    assert error is not None and "WorkerError" in error.splitlines()[0], ended
    assert names_worker(error, victim) and "no such luck" in error and re.search(r"step \d", error), error


def test_disk_full_while_saving_stages(start, plain):
    run = start("disk_full", 0, FAULT_STAGES=2)
    ended = run.end()
    assert ended.code not in (0, None), ended
    assert names_worker(run.read("error.1"), 0), ended
    tensors, kept = plain("tests.helpers.programs.sessions:read_checkpoint", run.folder)
    assert kept == ["model-1"]
    np.testing.assert_array_equal(tensors["big"], np.load(os.path.join(run.folder, "big.npy")))
    assert {"hidden/kernel", "out/kernel"} <= set(tensors)
