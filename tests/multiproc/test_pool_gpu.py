"""Workers with GPUs, with doubles of NCCL and of the CUDA runtime (csrc/tests/gpu) in the place of theirs.

No kernel can run on a GPU here: TensorFlow puts on the CPU what the plan puts on GPUs. What is seen is that workers
connect through NCCL, that what lies in host memory goes over the same communicators in their order, and that the
graph that is made for GPUs computes what it should; the collectives between GPUs themselves are tested in C++.
"""

import glob
import os
import subprocess

import numpy as np
import pytest

from tests.helpers import processes
from tests.multiproc import gpu_script
from tests.multiproc.test_pool import results, start

pytestmark = pytest.mark.alone

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture(scope="module")
def doubles(tmp_path_factory):
    """The paths of the doubles, built once."""
    folder = str(tmp_path_factory.mktemp("doubles"))
    targets = [os.path.join(folder, "lib", name) for name in ("libfake_nccl.so", "libfake_cuda_runtime.so")]
    command = ["make", "-s", "-C", os.path.join(ROOT, "csrc"), "BUILD=" + folder, "CXXFLAGS=-O0"] + targets
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    assert done.returncode == 0, done.stdout.decode()
    return targets


def test_workers_with_gpus_connect_through_nccl(doubles, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_NCCL", doubles[0])
    monkeypatch.setenv("FAKE_CUDA", doubles[1])
    monkeypatch.setenv("FAKE_NCCL_FOLDER", str(tmp_path))
    scenarios = ("exchange", "order", "abort_and_reconnect")
    found = results(str(tmp_path), start(str(tmp_path), "nccl", 2, *scenarios), 120)
    for worker in found:
        for name in scenarios:
            assert "traceback" not in worker[name], worker[name]["traceback"]
        assert worker["exchange"]["backend"] == "nccl"


def plain_weights(steps, workers):
    """Gradient descent of the script's model over the rows of all workers, by NumPy."""
    w, b, found = np.zeros([3, 1]), np.zeros([1]), []
    for step in range(steps):
        parts = [gpu_script.rows(step, worker) for worker in range(workers)]
        x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        error = 2 * (x.dot(w) + b - y) / len(x)
        w, b = w - 0.1 * x.T.dot(error), b - 0.1 * error.sum(axis=0)
        found.append(w.ravel())
    return found


def test_a_graph_for_gpus_computes_what_one_device_does(doubles, tmp_path):
    """In a job of two workers and in one of a single worker, at the same time."""
    script = os.path.join(ROOT, "tests", "multiproc", "gpu_script.py")
    jobs = {workers: (str(tmp_path / str(workers)), []) for workers in (1, 2)}
    for workers, (folder, children) in jobs.items():
        os.makedirs(folder)
        for index, environ in enumerate(processes.worker_environments(workers, 1)):
            environ.update(FAKE_NCCL=doubles[0], FAKE_CUDA=doubles[1], FAKE_NCCL_FOLDER=folder, EPL_JOB_TOKEN="t")
            environ["EPL_DUMP_DIR"] = os.path.join(folder, "dump.%d" % index)
            children.append(processes.python([script, folder], environ, os.path.join(folder, "log.%d" % index)))
    for workers, (folder, children) in jobs.items():
        expected = plain_weights(gpu_script.STEPS, workers)
        for worker in results(folder, children, 120):
            assert worker["backend"] == ("nccl" if workers > 1 else "none")
            np.testing.assert_allclose(worker["weights"], expected, rtol=1e-5)
        for index in range(workers):
            (dumped,) = glob.glob(os.path.join(folder, "dump.%d" % index, "*_move_collectives_to_gpu.txt"))
            with open(dumped) as file:
                counts = file.read()
            assert "+2  AddN" in counts, counts  # the gradients of w and b, over the two GPUs of the worker
