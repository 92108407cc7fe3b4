"""float16 with a loss scale on several workers: all leave out the same steps, for whoever has the infinite number."""

import numpy as np
import pytest

from tests.helpers.checks import assert_same_state, pairs
from tests.helpers.loss_scales import BAD, OPTIONS, SCALED, by_the_book, check
from tests.helpers.marks import needs_bfloat16
from tests.helpers.programs.loss_scale import FLOAT16

STEPS = range(24)
ESTIMATORS = "tests.helpers.programs.estimators:"
KERAS = "tests.helpers.programs.keras_models:"


def _further(*case):
    return pytest.param(*case, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize(
    "kind, options",
    [
        ("adam", {"pipeline.num_micro_batch": 2}),
        ("two", {"communication.fp16": True}),
        ("clipped", {"communication.sparse_as_dense": True}),
        ("adam", {"amp.level": "O2", "pipeline.num_micro_batch": 2}),
        ("clipped", {"amp.level": "O2", "optimizer.num_apply_group": 2}),
        _further("adam", {"zero.level": "v1", "optimizer.num_apply_group": 2}),
        _further("two", {"zero.level": "v3", "optimizer.num_apply_group": 2, "pipeline.num_micro_batch": 2}),
        _further("two", {"amp.level": "O2", "communication.sparse_as_dense": True}),
    ],
)
def test_two_workers(two_workers, kind, options):
    config = dict(OPTIONS, **dict(options, **{"communication.check_replicas_every": 1}))
    for found in two_workers(SCALED + "train", (0, 24), BAD, kind, config=config):
        check(found, STEPS, BAD)
        assert found["scales"] == by_the_book(STEPS, BAD)


@pytest.mark.parametrize("layout, level", [((1, 2), ""), ((2, 1), "v1")])
def test_each_of_two_optimizers_leaves_out_its_own_steps(jobs, layout, level):
    """One skips a step that the other makes; both are what they are beside one that never skips."""
    steps, bad = range(8), ((1, 2, 5), (2, 3, 6))
    config = dict(OPTIONS, **{"zero.level": level})
    train = lambda which: jobs[layout](SCALED + "two_scales", len(steps), which, config=config)  # noqa: E731
    for together, *alone in zip(train(bad), train((bad[0], ())), train(((), bad[1]))):
        for place, wrong in enumerate(bad):
            got, want = together[place], alone[place][place]
            assert got["scales"] == want["scales"] == by_the_book(steps, wrong)
            for state, wanted in pairs(got["states"], want["states"]):
                assert_same_state(state, wanted)
            for number, (before, after) in enumerate(zip(got["states"], got["states"][1:])):
                same = {name: np.array_equal(before[name], after[name]) for name in before}
                assert len(same) > 4 and set(same.values()) == {number in wrong}, (number, same)


def assert_left_out_as_on_one_device(jobs, job, kind, resource, options, replicas=1, **layout):
    """Stages in several workers leave out what one device leaves out, and train as it does."""
    config = dict(OPTIONS, **options)
    count = config.get("pipeline.num_micro_batch", 1)
    alone = dict(config, **{"pipeline.num_micro_batch": count * replicas})
    (want,) = jobs[1, 2](SCALED + "train", (0, 12), BAD, kind, resource, config=alone, devices=1)
    assert want["scales"] == by_the_book(range(12), BAD)
    config["communication.check_replicas_every"] = 1
    results = jobs[job](SCALED + "train", (0, 12), BAD, kind, resource, config=config, stages=2, **layout)
    assert len(results) == job[0]
    for found in results:
        check(found, range(12), BAD)
        assert found["scales"] == want["scales"]
        for state, wanted in pairs(found["states"], want["states"]):
            assert_same_state(state, wanted, atol=1e-5)


@pytest.mark.parametrize(
    "kind, resource, options",
    [
        ("one", False, {"pipeline.num_micro_batch": 2}),  # the first stage alone has the infinite gradient
        ("last", True, {"amp.level": "O2", "optimizer.num_apply_group": 2}),  # the last one
        _further("adam", True, {"pipeline.num_micro_batch": 4, "pipeline.strategy": "ZeroBubble"}),
        _further("adam", False, {"pipeline.num_micro_batch": 4, "amp.level": "O2"}),
        _further("clipped", True, {"pipeline.num_micro_batch": 2, "pipeline.strategy": "PreferForward"}),
        _further("two", True, {"pipeline.num_micro_batch": 2}),
        _further("two", False, {"gradient_checkpoint.type": "auto", "amp.loss_scale": "dynamic"}),
    ],
)
def test_stages_in_two_workers(jobs, kind, resource, options):
    assert_left_out_as_on_one_device(jobs, (2, 1), kind, resource, options, groups=1)


@pytest.mark.parametrize("kind, resource", [("one", False), ("last", True)])
def test_stages_in_a_worker(jobs, kind, resource):
    assert_left_out_as_on_one_device(jobs, (1, 2), kind, resource, {"pipeline.num_micro_batch": 2}, groups=1)


@pytest.mark.parametrize(
    "job, kind, resource, options, groups",
    [
        ((4, 1), "adam", True, {"pipeline.num_micro_batch": 2}, 2),
        ((4, 1), "one", True, {"zero.level": "v1", "pipeline.num_micro_batch": 2}, 2),
        _further((4, 1), "last", False, {"zero.level": "v3", "amp.level": "O2"}, 2),
        _further((4, 1), "two", False, {"zero.level": "v2"}, 2),
        _further((2, 2), "one", False, {"cluster.device_place_prefer_intra_node": False}, 1),
        _further((2, 2), "last", True, {"cluster.device_place_prefer_intra_node": False, "zero.level": "v1"}, 1),
    ],
)
def test_two_replicas_of_stages_in_two_workers(jobs, job, kind, resource, options, groups):
    assert_left_out_as_on_one_device(jobs, job, kind, resource, options, 2, groups=groups)


def test_stages_in_two_workers_go_on_with_the_scale_of_a_checkpoint(jobs, two_workers, tmp_path):
    """Whatever layout it comes from."""
    common = dict(OPTIONS, **{"pipeline.num_micro_batch": 2})
    (want,) = jobs[1, 2](SCALED + "train", (0, 10), BAD, config=common, devices=1)
    two_workers(SCALED + "train", (0, 5), BAD, save=str(tmp_path / "stages"), config=common, stages=2, groups=1)
    path = str(tmp_path / "stages" / "worker_0" / "model")
    jobs[1, 2](SCALED + "train", (5, 7), BAD, restore=path, save=str(tmp_path / "one"), config=common, devices=1)
    path = str(tmp_path / "one" / "worker_0" / "model")
    for found in two_workers(SCALED + "train", (7, 10), BAD, restore=path, config=common, stages=2, groups=1):
        check(found, range(7, 10), BAD, first_step=want["steps"][7])
        assert found["scales"] == want["scales"][7:]
        for state, wanted in pairs(found["states"], want["states"][7:]):
            assert_same_state(state, wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=needs_bfloat16)])
def test_gradients_in_16_bits_train_as_in_float32(plain, two_workers, dtype):
    want = plain(SCALED + "train", (0, 50), ())
    for got in two_workers(SCALED + "train", (0, 50), (), config={"amp.level": "O2", "amp.dtype": dtype}):
        assert list(got["losses"]) != list(want["losses"])
        np.testing.assert_allclose(got["losses"], want["losses"], rtol=0.02)
        # Checkpoints, too, hold what is trained: float32.
        assert {value.dtype for name, value in got["states"][-1].items() if "net/" in name} == {np.dtype(np.float32)}


def test_training_goes_on_with_the_scale_of_the_checkpoint(plain, two_by_two, tmp_path):
    whole, _ = two_by_two(SCALED + "train", (0, 24), BAD, config=OPTIONS)
    two_by_two(SCALED + "train", (0, 10), BAD, save=str(tmp_path), config=OPTIONS)
    path = str(tmp_path / "worker_0" / "model")
    for found in two_by_two(SCALED + "train", (10, 24), BAD, restore=path, config=OPTIONS):
        check(found, STEPS[10:], BAD, first_step=whole["steps"][10])
        assert found["scales"] == whole["scales"][10:]
        for state, want in pairs(found["states"], whole["states"][10:]):
            assert_same_state(state, want)
    # Plain TensorFlow reads it; EPL reads what plain TensorFlow has written, and begins with the first scale.
    foreign = plain(SCALED + "train", (10, 12), (), restore=path, save=str(tmp_path / "plain"))
    assert foreign["steps"] == [whole["steps"][10] + i for i in range(3)]
    assert all(np.isfinite(foreign["losses"]))
    chief, _ = two_by_two(
        SCALED + "train", (12, 15), (), restore=str(tmp_path / "plain" / "worker_0" / "model"), config=OPTIONS
    )
    assert chief["scales"] == by_the_book(range(12, 15), ())


@pytest.mark.parametrize("scale", ["dynamic", 128])
def test_an_estimator_goes_on_with_its_scale(plain, two_workers, tmp_path, scale):
    want = plain(ESTIMATORS + "life", str(tmp_path / "plain"))
    config = dict(FLOAT16, **{"amp.loss_scale": scale})
    got, _ = two_workers(ESTIMATORS + "life", str(tmp_path / "epl"), config)
    assert got["losses"] != want["losses"] and got["starts"] == [0, 3]
    np.testing.assert_allclose(got["losses"], want["losses"], rtol=0.02)
    np.testing.assert_allclose(got["predictions"], want["predictions"], rtol=0.05, atol=0.05)
    own = {name: value.item() for name, value in got["state"].items() if name not in want["state"]}
    names = ["epl_loss_scale/%s" % name for name in ("scale", "good_steps", "bad_steps")]
    # Six steps in two calls of `train`, of which the second went on from the checkpoint of the first.
    assert own == (dict(zip(names, (32768.0, 6, 0))) if scale == "dynamic" else {})


def test_keras(plain, two_workers):
    want = plain(KERAS + "fit")
    for got in two_workers(KERAS + "fit", config=FLOAT16):
        np.testing.assert_allclose(got["history"]["loss"], want["history"]["loss"], rtol=0.02)
        assert list(got["history"]["loss"]) != list(want["history"]["loss"])
        assert [w.dtype for w in got["weights"]] == [w.dtype for w in want["weights"]]
