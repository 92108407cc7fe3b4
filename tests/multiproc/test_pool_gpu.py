"""The pool of workers with GPUs, with doubles of NCCL and of the CUDA runtime (csrc/tests/gpu) in their place.

No kernel can run on a GPU here. What is seen is that the pool connects through NCCL, and that what lies in host memory
goes over the same communicators, in their order; the collectives between GPUs themselves are tested in C++.
"""

import os
import subprocess

import pytest

from tests.multiproc.test_pool import results, start

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
