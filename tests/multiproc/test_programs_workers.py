"""The programs of tests/numerics in several worker processes: what crosses between them, and who writes files."""

import os

import numpy as np
import pytest

from tests.helpers.checks import assert_same, assert_same_state, assert_same_training, differs, pairs
from tests.helpers.programs import common
from tests.helpers.remote import RemoteError

GRADIENTS = "tests.helpers.programs.gradients:"
REPLICAS = "tests.helpers.programs.replicas:"
SESSIONS = "tests.helpers.programs.sessions:"
STATE = "tests.helpers.programs.state:"


def test_clip_after_all_reduce(plain, two_workers):
    want = plain(GRADIENTS + "clipped", 1)
    for got in two_workers(GRADIENTS + "clipped", 2, after=True):
        assert_same_training(got, want)


def test_clip_before_all_reduce(plain, two_by_two):
    want = plain(GRADIENTS + "clipped", 4)
    for got in two_by_two(GRADIENTS + "clipped", 4):
        assert_same_training(got, want)


def test_sum(plain, two_workers):
    want = plain(GRADIENTS + "classifier", optimizer="sgd", gradient_scale=2.0)
    for got in two_workers(GRADIENTS + "classifier", {"communication.gradients_reduce_method": "sum"}, optimizer="sgd"):
        assert_same_training(got, want)


@pytest.mark.parametrize("splits, communicators", [(1, 1), (4, 1), (4, 3), (100, 2)])
def test_number_of_groups_does_not_matter(plain, two_workers, splits, communicators):
    config = {"communication.max_splits": splits, "communication.num_communicators": communicators}
    want = plain(GRADIENTS + "classifier")
    for got in two_workers(GRADIENTS + "classifier", config):
        assert_same_training(got, want)


def test_all_workers_go_by_the_same_measured_link(two_workers):
    first, second = two_workers(GRADIENTS + "measured_link")
    assert first == second
    groups, link = first
    assert groups and link.source == "measured" and min(link.latency_s, link.bytes_per_s) > 0
    # Where the configuration says the size there is nothing to measure.
    for _, link in two_workers(GRADIENTS + "measured_link", {"communication.fuse_size_mb": 1}):
        assert link is None


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(plain, two_by_two, as_dense):
    want = plain(GRADIENTS + "embedding")
    for got in two_by_two(GRADIENTS + "embedding", {"communication.sparse_as_dense": as_dense}):
        assert_same_training(got, want)


def test_half_precision_on_the_wire(plain, two_workers):
    want = plain(GRADIENTS + "classifier")
    results = two_workers(GRADIENTS + "classifier", {"communication.fp16": True})
    for got in results:
        assert_same_training(got, want, rtol=5e-3, atol=5e-3)
        assert differs(got, want, 1e-6)  # halves did travel
    assert_same_training(results[1], results[0], rtol=0, atol=0)


def test_half_precision_overflow_is_noticed(two_workers):
    good = two_workers(GRADIENTS + "overflow", 128)
    assert all(np.array_equal(weight, [-100.0, -100.0]) for weight in good)
    outcomes = two_workers.outcomes(GRADIENTS + "overflow", 1024)
    assert all(isinstance(outcome, RemoteError) and "fp16_scale" in outcome.message for outcome in outcomes), outcomes


def test_data_set_divided_over_devices(plain, two_by_two):
    want = plain(GRADIENTS + "from_dataset", 1)
    for got in two_by_two(GRADIENTS + "from_dataset", 2):
        assert_same(got["losses"], want["losses"])
        assert_same_state(got["state"], want["state"])


def test_batch_norm_averages_its_moving_statistics(jobs, two_workers, two_by_two):
    in_one = {replicas: jobs[1, replicas](REPLICAS + "batch_norm")[0] for replicas in (2, 4)}
    for job, replicas in ((two_workers, 2), (two_by_two, 4)):
        for got in job(REPLICAS + "batch_norm"):
            for one, other in pairs(got, in_one[replicas]):
                assert_same_state(one, other)


def test_workers_start_from_the_same_random_values(two_by_two):
    results = two_by_two(REPLICAS + "random_start")
    for start, after in results:
        for everywhere in start + after:
            assert len(everywhere) == 4
            assert all(np.array_equal(replica, everywhere[0]) for replica in everywhere)
    for one, other in pairs(*[start + after for start, after in results]):
        np.testing.assert_array_equal(one, other)


def test_workers_drop_different_units(two_by_two):
    first, _ = two_by_two(REPLICAS + "dropout")[0]
    quarters = np.split(first, 4)
    assert len({quarter.tobytes() for quarter in quarters}) == 4


def test_merged_fetches(two_by_two):
    rows = np.arange(2 * common.BATCH, dtype=np.float32).reshape([common.BATCH, 2])
    quarters = [quarter.mean() for quarter in np.split(rows, 4)]
    for index, got in enumerate(two_by_two(REPLICAS + "collections")):
        mine = quarters[2 * index : 2 * index + 2]
        assert got["unmerged"] == mine[0]
        np.testing.assert_array_equal(got["GLOBAL_CONCAT_OBJECTS"], rows)
        np.testing.assert_array_equal(got["LOCAL_CONCAT_OBJECTS"], np.split(rows, 2)[index])
        assert got["GLOBAL_MEAN_OBJECTS"] == np.mean(quarters) and got["LOCAL_MEAN_OBJECTS"] == np.mean(mine)
        assert got["GLOBAL_SUM_OBJECTS"] == np.sum(quarters) and got["LOCAL_SUM_OBJECTS"] == np.sum(mine)


def test_monitored_session_and_who_writes(plain, two_workers, tmp_path):
    folders = [str(tmp_path / name) for name in ("plain", "epl")]
    want = plain(SESSIONS + "hooks", folders[0])
    chief, other = two_workers(SESSIONS + "hooks", folders[1])
    for got in (chief, other):
        for key in ("losses", "recorded", "logged"):
            assert_same(got[key], want["losses"])
        assert got["calls"] == want["calls"]
    assert other["files"] == []
    without_events = [[name for name in result["files"] if "tfevents" not in name] for result in (chief, want)]
    assert without_events[0] == without_events[1]
    saved = [plain(SESSIONS + "read_checkpoint", folder + "/worker_0") for folder in folders]
    assert_same_state(saved[1][0], saved[0][0])
    points, has_graph = plain(SESSIONS + "read_summaries", folders[1] + "/worker_0")
    assert points and has_graph


@pytest.mark.parametrize("program", ["queues", "generator"])
def test_every_row_is_consumed_once(two_workers, program):
    for got in two_workers(SESSIONS + program):
        rows = got[0] if program == "queues" else got
        assert len(rows) == 5
        np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(40))


def test_each_worker_counts_its_own_epochs(two_workers):
    for rows, _ in two_workers(SESSIONS + "queues", epochs=3):
        assert len(rows) == 15
        np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.repeat(np.arange(40), 3))


def test_failing_run_fails_alike(two_workers):
    for errors, step in two_workers(SESSIONS + "failing_run"):
        assert errors[1:] == ["TypeError", "ValueError", "ValueError"] and step == 1


@pytest.mark.parametrize("first, second", [("plain", (2, 1)), ((2, 1), "plain"), ((2, 2), (2, 1))], ids=str)
def test_checkpoint_carries_on(jobs, plain, tmp_path, first, second):
    uninterrupted, final = plain(STATE + "train", 0, 8)
    early = jobs[first](STATE + "train", 0, 4, save=str(tmp_path))
    path = os.path.join(str(tmp_path), "worker_0", "model-4")
    late = jobs[second](STATE + "train", 4, 8, restore=path)
    for losses, _ in early:
        assert_same(losses, uninterrupted[:4])
    for losses, state in late:
        assert_same(losses, uninterrupted[4:])
        assert_same_state(state, final)
    assert not os.path.isdir(str(tmp_path / "worker_1")) or os.listdir(str(tmp_path / "worker_1")) == []


def test_monitored_session_resumes(plain, two_workers, tmp_path):
    want = plain(STATE + "monitored", str(tmp_path / "whole"), 8)
    early = two_workers(STATE + "monitored", str(tmp_path / "parts"), 5)
    late = two_workers(STATE + "monitored", str(tmp_path / "parts"), 8)
    for one, other in pairs(early, late):
        assert sorted(one) == [0, 1, 2, 3, 4] and sorted(other) == [5, 6, 7]
        one.update(other)
        assert_same([one[step] for step in range(8)], [want[step] for step in range(8)])


def test_fresh_start_after_uneven_failures(plain, two_workers):
    """A worker that tried again alone, and one that did not, meet again when both call epl.init."""
    first, other = two_workers(SESSIONS + "uneven_failures")
    assert len(first) == 3 and len(other) == 1, (first, other)
    assert first[1:] == ["CommunicationError"] * 2
    want = plain(GRADIENTS + "classifier")
    for got in two_workers(GRADIENTS + "classifier"):
        assert_same_training(got, want)


@pytest.mark.parametrize("worker", [0, 1])
def test_a_layer_that_one_worker_has_more_is_named_before_anything_waits_for_it(two_workers, worker):
    said = "worker %d's graph has variable 'extra/kernel' (float32 of shape (3, 4)), which worker %d's has not"
    for outcome in two_workers.outcomes(SESSIONS + "extra_layer", worker):
        assert isinstance(outcome, RemoteError) and said % (worker, 1 - worker) in outcome.message, outcome
