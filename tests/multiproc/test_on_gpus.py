"""Workers on real GPUs, connected by NVIDIA's NCCL: `pytest --on-gpus tests/multiproc/test_on_gpus.py`.

Here is what CPUs cannot show. With --on-gpus the other tests of jobs, such as test_combinations.py, compare what GPUs
compute with one device as well.
"""

import pytest

from tests.helpers import on_gpus
from tests.helpers.remote import RemoteError

PROGRAM = "tests.helpers.programs.gpus:"

pytestmark = pytest.mark.skipif(
    not on_gpus.wanted(), reason="needs a machine with an NVIDIA GPU, TensorFlow's CUDA libraries, NCCL, and --on-gpus"
)


@pytest.mark.parametrize("workers", [2, 4])
def test_gradients_go_from_gpu_to_gpu(jobs, workers):
    found = jobs[workers, 1](PROGRAM + "places")
    for each in found:
        assert each["backend"] == "nccl"
        assert each["devices"]["EplAllReduce"] == ["GPU"]
        assert each["devices"]["MatMul"] == ["GPU"]
        assert each["losses"] == found[0]["losses"]


def test_without_nccl_gradients_go_through_the_host(jobs):
    for each in jobs[2, 1](PROGRAM + "places", communication__backend="shm"):
        assert each["backend"] == "shm"
        assert each["devices"]["EplAllReduce"] == ["CPU"]
        assert each["devices"]["MatMul"] == ["GPU"]


@pytest.mark.parametrize("level, variables", [("v0", ["CPU", "GPU"]), ("v1", ["CPU"])])
def test_what_is_offloaded_lies_in_host_memory(jobs, level, variables):
    """Parameters; with v1 Adam's state too."""
    for found in jobs[2, 1](PROGRAM + "places", offload__level=level):
        assert found["devices"]["VariableV2"] == variables
        assert found["devices"]["MatMul"] == ["GPU"]


def test_the_end_of_a_worker_ends_a_collective_between_gpus(jobs):
    ends = jobs[2, 1].outcomes(PROGRAM + "dies", 1, 2)
    assert isinstance(ends[0], RemoteError) and "WorkerError" in ends[0].bases, ends[0]
    assert "worker 1" in ends[0].message
