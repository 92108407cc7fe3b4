"""tf.estimator on several devices and workers, against plain TensorFlow on the same global batches."""

import pytest

from tests.helpers.checks import assert_same, assert_same_state, pairs

ESTIMATORS = "tests.helpers.programs.estimators:"


@pytest.fixture(scope="module")
def plain_life(jobs, tmp_path_factory):
    """What plain TensorFlow makes of the program `life`."""
    folder = str(tmp_path_factory.mktemp("plain"))
    return jobs["plain"](ESTIMATORS + "life", folder)[0]


def test_what_others_see(two_workers, tmp_path):
    results = two_workers(ESTIMATORS + "as_others_see_it", str(tmp_path))
    for index, (got, role) in enumerate(zip(results, ("chief", "worker"))):
        assert got["task"] == {"type": role, "index": index} and got["type"] == role and got["cluster"] == {}
        assert got["child"] == ["2", str(index)]
        if "master" in got:  # contrib.learn is a part of 1.15
            assert got["chief"] == (index == 0) and got["master"] == ""
            assert results[0]["saved"] == str(tmp_path / "model.ckpt-3")


def without_events(names):
    return [name for name in names if "tfevents" not in name]


def assert_same_life(got, want):
    assert_same(got["losses"], want["losses"])
    assert got["starts"] == want["starts"] == [0, 3]
    for one, other in pairs(got["metrics"], want["metrics"]):
        assert set(one) == set(other)
        for name in other:
            assert_same(one[name], other[name], what=name)


@pytest.mark.parametrize("layout, level", [((1, 2), ""), ((2, 1), ""), ((2, 1), "v1"), ((2, 2), "")], ids=str)
def test_train_evaluate_predict(jobs, plain_life, tmp_path, layout, level):
    results = jobs[layout](ESTIMATORS + "life", str(tmp_path), {"zero.level": level})
    for index, got in enumerate(results):
        assert_same_life(got, plain_life)
        assert got["chief"] == (index == 0) and got["place"] == (layout[0], index, "")
        assert_same_state(got["state"], plain_life["state"])
        assert_same(got["predictions"], plain_life["predictions"])
        # What other workers hold comes in a data file of its own.
        got_files, files = (sorted({name.partition(".data")[0] for name in r["files"]}) for r in (got, plain_life))
        assert without_events(got_files) == without_events(files)
        assert level or without_events(got["files"]) == without_events(plain_life["files"])


def test_stages_in_two_workers(plain, two_workers, tmp_path):
    losses, *states = plain(ESTIMATORS + "stages", str(tmp_path / "plain"))
    assert len(losses) == 9
    for got_losses, *got_states in two_workers(ESTIMATORS + "stages", str(tmp_path / "stages")):
        assert_same(got_losses, losses)
        for got, want in pairs(got_states, states):
            assert_same_state(got, want)


def test_evaluation_prediction_and_exports_after_a_pipeline_over_workers(plain, two_workers, tmp_path):
    want = plain(ESTIMATORS + "after_a_pipeline", str(tmp_path / "plain"))
    results = two_workers(ESTIMATORS + "after_a_pipeline", str(tmp_path / "stages"))
    for metrics, predicted, _, exported in results:
        assert set(metrics) == set(want[0])
        for name in want[0]:
            assert_same(metrics[name], want[0][name], what=name)
        assert_same(predicted, want[1])
        assert exported == results[0][3]
    assert_same(results[0][2], want[2])
    for made in plain(ESTIMATORS + "of_exports", str(tmp_path / "stages"), results[0][3]):
        assert_same(made, want[2])


@pytest.mark.each_line
def test_folder_that_only_the_chief_has(two_workers, plain_life, tmp_path):
    chief, other = two_workers(ESTIMATORS + "life", str(tmp_path), shared=False)
    for got in (chief, other):
        assert_same_life(got, plain_life)
    assert_same_state(chief["state"], plain_life["state"])
    assert without_events(chief["files"]) == without_events(plain_life["files"]) and other["files"] == []


def test_evaluation_on_the_chief(two_workers, plain_life, tmp_path):
    config = {"estimator.evaluate_on": "chief"}
    for got in two_workers(ESTIMATORS + "life", str(tmp_path), config, shared=False, all_rows=True):
        assert_same_life(got, plain_life)


def test_the_chief_evaluates_alone(two_workers, tmp_path):
    found, nothing = two_workers(ESTIMATORS + "chief_evaluates", str(tmp_path))
    assert [metrics["global_step"] for metrics in found] == [2, 4] and nothing == []
    assert found[1]["loss"] < found[0]["loss"]


def test_what_the_chief_does_alone_the_others_may_not(two_workers, tmp_path):
    with pytest.raises(Exception, match="worker 1 has called it too. Set it to .chief"):
        two_workers(ESTIMATORS + "chief_evaluates", str(tmp_path), True)


@pytest.mark.parametrize("shared", [True, False])
def test_train_and_evaluate(plain, two_by_two, tmp_path, shared):
    want = plain(ESTIMATORS + "together", str(tmp_path / "plain"))
    assert want["evaluated"] == [2, 4, 6] and want["exports"] == 1
    chief, other = two_by_two(ESTIMATORS + "together", str(tmp_path / "epl"), shared=shared)
    for got in (chief, other):
        assert_same(got["losses"], want["losses"])
        for name in want["metrics"]:
            assert_same(got["metrics"][name], want["metrics"][name], what=name)
        assert got["evaluated"] == want["evaluated"]
    assert chief["calls"] == want["calls"] and chief["exports"] == 1 and chief["kept"] == want["kept"]
    assert [call for call in want["calls"] if "chief" not in call] == other["calls"] and other["exports"] == 0
    assert other["kept"] == (want["kept"] if shared else [])


def test_checkpoints_every_so_many_seconds(two_workers, tmp_path):
    """Only one worker is slow, but all save, and evaluate, at the same steps."""
    chief, other = two_workers(ESTIMATORS + "together", str(tmp_path), shared=False, every_secs=0.5)
    assert chief["evaluated"] == other["evaluated"]
    assert 1 < len(chief["evaluated"]) and chief["evaluated"][-1] == 6
    assert chief["kept"][-1] == "model.ckpt-6" and other["kept"] == []


@pytest.mark.parametrize("worker", [0, 1])
def test_one_worker_that_stops_stops_all(two_workers, tmp_path, worker):
    for steps, first, second in two_workers(ESTIMATORS + "stopped", str(tmp_path), worker):
        assert steps == [3, 7] and first == 3 and second == 4


@pytest.mark.parametrize("layout", [(1, 2), (2, 2)], ids=str)
def test_warm_start_init_from_checkpoint_and_export(jobs, plain, tmp_path, layout):
    want = plain(ESTIMATORS + "warm_started", str(tmp_path / "plain"))
    chief, *others = jobs[layout](ESTIMATORS + "warm_started", str(tmp_path / "epl"))
    for got in [chief] + others:
        assert_same(got["losses"], want["losses"])
    assert_same(chief["predictions"], want["predictions"])
    logits, foreign = plain(ESTIMATORS + "serve", chief["export"])
    assert_same(logits, want["predictions"])
    assert foreign == []
    assert all(other["predictions"] is None for other in others)  # they have exported nothing


def test_data_that_ends_early_on_one_worker(two_workers, tmp_path):
    assert two_workers(ESTIMATORS + "uneven", str(tmp_path)) == [(6, 6), (6, 6)]
