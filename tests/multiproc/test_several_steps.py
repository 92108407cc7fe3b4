"""execution.steps_per_run: several training steps in one call, against a call for each step on one device."""

import pytest

from tests.helpers.checks import assert_same, assert_same_state, pairs
from tests.helpers.programs import common
from tests.helpers.programs.several_steps import STEPS

PROGRAMS = "tests.helpers.programs.several_steps:"
FOUR = {"execution.steps_per_run": 4}
# A call begins when there is data left, and ends where there is none.
AFTER = [4, 8, 10, 14, 18, 20]


def check(got, want):
    """Calls of several steps against calls of one each."""
    assert len(want) == 2 * STEPS
    assert [step for step, _, _ in got] == AFTER
    for step, loss, state in got:
        assert_same(loss, want[step - 1][1])
        assert_same_state(state, want[step - 1][2])


@pytest.mark.parametrize(
    "layout, parts, options",
    [
        ((1, 2), 2, {}),
        ((2, 1), 2, {}),
        ((2, 1), 4, {"pipeline.num_micro_batch": 2, "communication.check_replicas_every": 3}),
    ],
)
def test_several_steps_of_a_call_are_those_of_several_calls(plain, jobs, layout, parts, options):
    want = plain(PROGRAMS + "train")
    for got in jobs[layout](PROGRAMS + "train", dict(FOUR, **options), common.BATCH // parts):
        check(got, want)


def test_several_steps_on_one_core(plain, two_workers):
    """There the thread of the call runs the operations itself."""
    want = plain(PROGRAMS + "train")
    for got in two_workers(PROGRAMS + "train_on_one_core", FOUR, common.BATCH // 2):
        check(got, want)


@pytest.mark.parametrize("sizes, last_step, want", [([12, 9], 100, [4, 8, 9]), ([12, 9], 6, [4, 8])])
def test_monitored_sessions_end_with_the_data_of_any_worker_or_at_a_step(two_workers, sizes, last_step, want):
    assert two_workers(PROGRAMS + "monitored", FOUR, sizes, last_step) == [want, want]


def test_fed_batches_are_refused(two_workers):
    for kind, message in two_workers(PROGRAMS + "fed", FOUR):
        assert kind == "UnsupportedError"
        assert "4 training steps of one call" in message and "is fed an array" in message


def test_losses_of_every_third_step(two_workers):
    """execution.fetch_every: training is the same; a loss between is that of an earlier step."""
    train = "tests.helpers.programs.dgc:train"
    kept = two_workers(train, {"execution.fetch_every": 3}, 8)
    for (got, _), (want, _) in pairs(kept, two_workers(train, {}, 8)):
        assert_same(got["losses"], [want["losses"][number] for number in (0, 0, 0, 3, 3, 3, 6, 6)])
        for one, other in pairs(got["states"], want["states"]):
            assert_same_state(one, other)


def test_xla_with_two_workers(plain, two_workers):
    """Clusters hold nothing that waits for the other worker, so that neither waits for itself."""
    program, config = "tests.helpers.programs.local_sgd:", {"execution.xla": True}
    (want,), _ = plain(program + "simulate", 1, "momentum", [], steps=6)
    for got, _ in two_workers(program + "train", config, "momentum", steps=6):
        for one, other in pairs(got["states"], want["states"]):
            assert_same_state(one, other)
