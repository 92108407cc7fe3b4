"""tf.keras in graph mode on several devices and workers, against plain TensorFlow on the same global batches."""

import os

import pytest

from epl import tf_compat
from tests.helpers.checks import assert_same, assert_same_fit, pairs

KERAS = "tests.helpers.programs.keras_models:"
LAYOUTS = [(1, 2), (2, 1), (2, 2)]


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "train"])
def test_fit_evaluate_predict(jobs, plain, tmp_path, optimizer):
    want = plain(KERAS + "fit", optimizer, folder=str(tmp_path / "plain"))
    assert len(set(want["history"]["loss"])) == 3
    for layout in LAYOUTS:
        folder = str(tmp_path / ("%d_%d" % layout))
        for got in jobs[layout](KERAS + "fit", optimizer, folder=folder):
            assert_same_fit(got, want)
            assert got["rate"] == want["rate"]
        files = [sum("tfevents" in name and "profile" not in name for name in each["files"]) for each in (got, want)]
        assert files[0] == files[1] == 1 and "best.h5" in got["files"]
        with open(os.path.join(folder, "log.csv")) as log:
            assert len(log.readlines()) == 4  # the heading, and one line for each of 3 epochs


@pytest.mark.parametrize(
    "optimizer, level, layout",
    [
        ("adam", "v1", (2, 1)),
        ("sgd", "v3", (2, 1)),
        pytest.param("adam", "v3", (2, 2), marks=pytest.mark.exhaustive),
        pytest.param("train", "v2", (2, 1), marks=pytest.mark.exhaustive),
    ],
)
def test_with_divided_state(jobs, plain, optimizer, level, layout):
    """Between training steps Keras evaluates and predicts, for which parameters are gathered too."""
    want = plain(KERAS + "fit", optimizer)
    for got in jobs[layout](KERAS + "fit", optimizer, {"zero.level": level}):
        assert_same_fit(got, want)


@pytest.mark.parametrize("optimizer, micro_batches", [("adam", 1), ("train", 1), ("train", 2)])
def test_stages_in_two_workers(two_workers, plain, tmp_path, optimizer, micro_batches):
    want = plain(KERAS + "fit", optimizer, folder=str(tmp_path / "plain"))
    config = {"pipeline.num_micro_batch": micro_batches}
    for got in two_workers(KERAS + "fit", optimizer, config, folder=str(tmp_path / "stages"), stages=True):
        assert_same_fit(got, want)
        assert got["rate"] == want["rate"]


@pytest.mark.parametrize("optimizer", ["adam", "sgd", pytest.param("train", marks=pytest.mark.exhaustive)])
def test_divided_layers_in_two_workers(two_workers, plain, tmp_path, optimizer):
    want = plain(KERAS + "fit", optimizer, folder=str(tmp_path / "plain"))
    for got in two_workers(KERAS + "fit", optimizer, folder=str(tmp_path / "split"), split=2):
        assert_same_fit(got, want)
        assert got["rate"] == want["rate"]


def test_divided_layers_in_each_worker(two_by_two, plain):
    want = plain(KERAS + "fit", "adam")
    for got in two_by_two(KERAS + "fit", "adam", split=2):
        assert_same_fit(got, want)


@pytest.mark.once
def test_workers_that_divide_layers_shuffle_alike_and_load_what_they_save(two_workers, plain, tmp_path):
    want = plain(KERAS + "shuffled", str(tmp_path / "plain.h5"))
    for got in two_workers(KERAS + "shuffled", str(tmp_path / "split.h5")):
        for own, whole in pairs(got, want):
            assert_same(own, whole)


def test_the_chief_alone_saves_all_stages(two_workers, plain, tmp_path):
    path = str(tmp_path / "weights.h5")
    one, other = two_workers(KERAS + "saved_by_the_chief", path)
    saved = plain(KERAS + "weights_of", path)
    assert len(saved) == len(one) == 4
    for index, weight in enumerate(saved):
        assert_same(one[index], weight, 0, 0, "weight %d" % index)
        assert_same(other[index], weight, 0, 0, "weight %d" % index)


def test_metrics_count_all_micro_batches(two_workers, plain):
    want = plain(KERAS + "fit")
    for got in two_workers(KERAS + "fit", config={"pipeline.num_micro_batch": 2}):
        assert_same_fit(got, want)


def test_clipnorm_clips_the_gradient_of_the_whole_batch(plain, two_by_two):
    want = plain(KERAS + "fit", "clipped")
    for got in two_by_two(KERAS + "fit", "clipped", {"communication.clip_after_allreduce": True}):
        assert_same_fit(got, want)


@pytest.mark.each_line
def test_data_sets_and_weights_that_only_the_chief_finds(jobs, plain, tmp_path):
    want = plain(KERAS + "from_dataset", str(tmp_path / "plain"))
    for layout in LAYOUTS:
        folder = str(tmp_path / ("%d_%d" % layout))
        for got in jobs[layout](KERAS + "from_dataset", folder):
            assert_same_fit(got, want)
        assert os.listdir(folder) == ["worker_0"]
        for predictions in plain(KERAS + "load", os.path.join(folder, "worker_0")):
            assert_same(predictions, want["predictions"])


@pytest.mark.parametrize("layout", [(1, 2), (2, 2)], ids=str)
def test_model_to_estimator(jobs, plain, tmp_path, layout):
    want = plain(KERAS + "as_estimator", str(tmp_path / "plain"))
    results = jobs[layout](KERAS + "as_estimator", str(tmp_path / "epl"))
    for got in results:
        assert_same(got["numbers"], want["numbers"], what="numbers")
    assert_same(results[0]["predictions"], want["predictions"], what="predictions")


@pytest.mark.skipif(tf_compat.line() == "tf1", reason="TensorFlow 1.15 has one graph mode")
def test_eager_execution_off_and_nothing_else(plain, two_by_two):
    want = plain(KERAS + "with_resource_variables", "fit", "adam")
    for got in two_by_two(KERAS + "with_resource_variables", "fit", "adam"):
        assert_same_fit(got, want)


def test_graphs_that_grow_between_calls(plain, two_by_two):
    want = plain(KERAS + "grown")
    for got in two_by_two(KERAS + "grown"):
        assert_same_fit(got, want)


def test_weights_are_read_before_training_with_micro_batches(plain, two_workers):
    want = plain(KERAS + "weights_first", 1)
    for got in two_workers(KERAS + "weights_first", 4):
        assert_same_fit(got, want)
