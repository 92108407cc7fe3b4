"""Jobs that start again end as if nothing had happened; the first part of `python -m tests.faults.restarts`."""

import os
import re
import signal
import time

import numpy as np
import pytest

from tests.faults.restarts import SCRIPT, VARIABLES, assert_bit_equal, faults_of, restarts_of, run
from tests.helpers import processes

pytestmark = pytest.mark.alone

SEEDS = [pytest.param(seed, marks=[] if seed < 2 else [pytest.mark.exhaustive]) for seed in range(8)]


@pytest.fixture(name="undisturbed", scope="module")
def undisturbed_values(template, tmp_path_factory):
    return run(template.python, tmp_path_factory.mktemp("undisturbed"), [])[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_faults(template, undisturbed, tmp_path, seed):
    faults = faults_of(seed)
    found, output = run(template.python, tmp_path, faults)
    assert_bit_equal(found, undisturbed)
    # A fault whose instant comes after the job's end does not happen.
    assert 0 < restarts_of(output) <= len(faults)


def test_a_lost_worker_leaves_no_record_out(template, undisturbed, tmp_path):
    """The other one reads the batches of both; sums are then made in another order."""
    found, output = run(template.python, tmp_path, [[1, "kill", 0.1], [1, "kill", 0.1]], "--min_workers", 1)
    assert "attempt 3: 1 worker" in output and sorted(found) == sorted(undisturbed)
    for name, value in undisturbed.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_notice_saves_at_the_next_step(template, tmp_path):
    variables = dict(VARIABLES, STEPS=100000)
    arguments = [
        "-m",
        "epl.launch",
        "--num_workers",
        2,
        "--device",
        "cpu",
        "--notice_s",
        100,
        "--verbose",
        SCRIPT,
        tmp_path,
    ]
    job = template.python(arguments, processes.clean_environment(**variables), str(tmp_path / "output"))
    deadline = time.time() + 90
    while not all((tmp_path / ("trains.%d" % index)).exists() for index in (0, 1)):
        assert time.time() < deadline, job.output()[-3000:]
        time.sleep(0.05)
    os.kill(job.pid, signal.SIGTERM)
    ended = job.wait(90)
    assert ended.code == 143, ended.output[-3000:]
    steps = [int(text) for text in re.findall(r"worker \d ended at step (\d+)", ended.output)]
    assert len(steps) == 2 and steps[0] == steps[1] < 100000
    assert "model.ckpt-%d.index" % steps[0] in os.listdir(str(tmp_path / "kept"))
