"""`python -m epl.calibrate` as people run it: all figures of this machine, in a file that plans read."""

import os
import subprocess
import sys

import pytest

from epl.cluster.machine import FLOAT32, machine

pytestmark = pytest.mark.either_line


def test_this_machine_is_measured(tmp_path):
    path = str(tmp_path / "ours.yaml")
    command = [sys.executable, "-m", "epl.calibrate", "--output", path]
    done = subprocess.run(
        command, env=dict(os.environ, EPL_DEVICE="cpu"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300
    )
    told = done.stdout.decode()
    assert done.returncode == 0, told
    found = machine(path)
    speeds = [speed for _, speed in dict(found.device.products)[FLOAT32]]
    assert len(speeds) == 3 and min(speeds) > 1e6 and found.device.start_s < 1e-2
    assert found.host.source == "measured by 2 workers" and found.worker.source == "measured: sums in memory"
    assert "kept in %s" % path in told and "products in float32" in told
