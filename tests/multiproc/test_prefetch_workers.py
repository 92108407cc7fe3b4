"""io.prefetch_to_device: the same numbers, the same ends and beginnings of data, no batch lost, none seen twice."""

import pytest

from tests.helpers.checks import assert_same

PROGRAM = "tests.helpers.programs.ahead:"
AHEAD = {"io.prefetch_to_device": True}


@pytest.mark.parametrize(
    "workers, devices, kind, looks, config",
    [
        (1, 2, "initializable", False, {}),
        (1, 2, "one_shot", False, {"pipeline.num_micro_batch": 2}),
        (2, 1, "initializable", True, {"io.stats": True}),
        (2, 1, "one_shot", False, {"local_sgd.k_steps": 1, "local_sgd.average_slots": True}),
        pytest.param(2, 2, "initializable", False, {}, marks=pytest.mark.exhaustive),
        pytest.param(2, 1, "initializable", False, {"pipeline.num_micro_batch": 2}, marks=pytest.mark.exhaustive),
    ],
)
def test_same_as_one_device(jobs, plain, workers, devices, kind, looks, config):
    copies = workers * devices * config.get("pipeline.num_micro_batch", 1)
    want, weights = plain(PROGRAM + "train", None, 8, kind, looks)
    assert [len(losses) for losses in want] == ([2, 3 - looks, 3 - looks] if kind == "initializable" else [3])
    for losses, got in jobs[workers, devices](PROGRAM + "train", dict(AHEAD, **config), 8 // copies, kind, looks):
        assert [len(each) for each in losses] == [len(each) for each in want]
        if "local_sgd.k_steps" not in config:  # a copy's own loss is of its own rows
            assert_same(sum(losses, []), sum(want, []))
        assert_same(got, weights)


def test_a_batch_of_one_copy_alone_is_refused(two_devices):
    kind, message = two_devices(PROGRAM + "refused", AHEAD)
    assert kind == "UnsupportedError" and "which have their batches already (io.prefetch_to_device)" in message
