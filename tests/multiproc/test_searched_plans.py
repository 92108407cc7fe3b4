"""Plans that EPL chooses train as one device does, and all workers choose the same."""

import pytest

from epl.cluster.machine import write
from tests.helpers.checks import assert_same_training
from tests.helpers.machines import simple_machine
from tests.numerics.test_pipelines import ATOL

pytestmark = pytest.mark.each_line

TRAIN = "tests.helpers.programs.searched:train"
SEARCHED = ("pipeline.num_stages", "pipeline.num_micro_batch", "zero.level", "gradient_checkpoint.type")


@pytest.fixture(name="slow_link")
def _slow_link(tmp_path):
    """A machine on which stages pay, as a file."""
    path = str(tmp_path / "slow.yaml")
    write(simple_machine(1e9, 1e9, link=1e5, start=1e-6, latency=1e-6), path)
    return path


def test_copies_of_the_model(plain, two_devices):
    want = plain(TRAIN, "tied_mlp")
    got = two_devices(TRAIN, "tied_mlp", {"auto.auto_parallel": True, "cluster.machine": "V100"})
    assert_same_training(got, want, atol=ATOL)
    assert not got["chosen"]["auto.search"] and not got["chosen"]["auto.auto_parallel"]  # it has been followed


def test_stages(plain, two_devices, slow_link):
    want = plain(TRAIN, "tiny_bert")
    got = two_devices(TRAIN, "tiny_bert", {"auto.auto_parallel": True, "cluster.machine": slow_link})
    assert got["chosen"]["pipeline.num_stages"] >= 2
    assert_same_training(got, want, atol=ATOL)


def test_stages_that_are_asked_for(plain, two_devices):
    keys = {"auto.auto_parallel": True, "auto.search": True, "pipeline.num_stages": 2, "cluster.machine": "V100"}
    want, got = plain(TRAIN, "tied_mlp"), two_devices(TRAIN, "tied_mlp", keys)
    assert got["chosen"]["pipeline.num_stages"] == 2 and got["chosen"]["pipeline.num_micro_batch"] >= 1
    assert_same_training(got, want, atol=ATOL)


@pytest.mark.parametrize(
    "config",
    [{"zero.level": "v1"}, {"gradient_checkpoint.type": "auto", "pipeline.num_micro_batch": 3}, {}],
    ids=["zero", "recomputation", "all"],
)
def test_two_workers(plain, two_workers, config):
    want = plain(TRAIN, "tiny_bert")
    found = two_workers(TRAIN, "tiny_bert", dict({"auto.search": True, "cluster.machine": "A100"}, **config))
    for got in found:
        assert_same_training(got, want, atol=ATOL)
        assert got["chosen"] == found[0]["chosen"]
        assert all(got["chosen"][key] == value for key, value in config.items())


def test_a_limit_of_memory(plain, two_workers):
    """State and gradients are divided, or micro-batches are smaller, so that it fits."""
    limits = {"auto.search": True, "cluster.machine": "A100", "auto.memory_limit_mb": 0.0125}
    want = plain(TRAIN, "tied_mlp")
    for got in two_workers(TRAIN, "tied_mlp", limits):
        assert_same_training(got, want, atol=ATOL)
        told = {key: got["chosen"][key] for key in SEARCHED}
        assert told["zero.level"] or told["pipeline.num_micro_batch"] > 1 or told["gradient_checkpoint.type"], told
