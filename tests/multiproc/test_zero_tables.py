"""One variable of nearly all parameters: its rows, and the optimizer's state of them, are divided (zero.level)."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.helpers.checks import assert_same_state, assert_same_training, pairs
from tests.helpers.marks import needs_bfloat16
from tests.helpers.programs.tables import OPTIMIZERS, ROWS, WIDTH

TABLES = "tests.helpers.programs.tables:"
CASES = [
    (False, "momentum", True),
    (False, "adam", False),
    (True, "adagrad", False),
    (True, "lazy", True),
]
STAGES_APART = {"zero.level": "v1", "cluster.device_place_prefer_intra_node": False}
NORMS = [(False, "lamb", True), (True, "lars", True), (True, "lamb", False), (False, "lars", False)]
MEANS = [(False, "adafactor", True), (True, "adafactor", False)]
ALL = [(sparse, name, resource) for sparse in (False, True) for name in OPTIMIZERS for resource in (False, True)]


def check(plain, job, config, cases=CASES, groups=0):
    want = plain(TABLES + "train", None, cases)
    for got in job(TABLES + "train", config, cases, groups):
        for case in cases:
            assert_same_training(got[case], want[case])


def test_two_workers(plain, two_workers):
    check(plain, two_workers, {"zero.level": "v1"})


@pytest.mark.parametrize("level, micro_batches", [("v2", 1), ("v3", 2)])
def test_parameters_of_two_workers(plain, two_workers, level, micro_batches):
    config = {"zero.level": level, "pipeline.num_micro_batch": micro_batches}
    check(plain, two_workers, config, CASES[::-1] + [(False, "sgd", True), (True, "sgd", False)])


@pytest.mark.parametrize("level", ["v0", "v1", "v2", "v3"])
def test_weight_decay_before_updates(plain, two_workers, level):
    cases = [(False, "decayed", True), (True, "decayed", True), (True, "decayed", False)]
    check(plain, two_workers, {"zero.level": level, "communication.check_replicas_every": 1}, cases)


def test_two_pipelines_of_two_workers(plain, jobs):
    check(plain, jobs[4, 1], {"zero.level": "v1"}, CASES[::2], groups=2)


@pytest.mark.once
def test_parameters_of_two_pipelines_of_two_workers(plain, jobs):
    check(plain, jobs[4, 1], {"zero.level": "v3"}, CASES[1:3], groups=2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("level, micro_batches", [("v0", 1), ("v1", 2), ("v2", 2), ("v3", 1)])
@pytest.mark.parametrize("layout, groups", [((4, 1), 2), ((2, 2), 1)])
def test_all_cases_in_two_stages(plain, jobs, layout, groups, level, micro_batches):
    cases = [case for case in ALL if case[1] != "sgd"]
    config = {"zero.level": level, "pipeline.num_micro_batch": micro_batches}
    config["cluster.device_place_prefer_intra_node"] = layout == (4, 1)
    check(plain, jobs[layout], config, cases, groups)


@pytest.mark.parametrize(
    "config", [{"zero.level": "v1"}, {"zero.level": "v3", "optimizer.num_apply_group": 2}], ids=["v1", "v3"]
)
def test_norms_over_rows_of_two_workers(plain, two_workers, config):
    check(plain, two_workers, config, NORMS + MEANS)


@pytest.mark.once
def test_norms_over_rows_of_two_devices_in_each_worker(plain, two_by_two):
    check(plain, two_by_two, {"zero.level": "v1"}, NORMS[:2] + MEANS[:1])


@pytest.mark.parametrize("level", ["v1", "v3"])
def test_rows_clipped_by_the_norm_of_all_gradients(plain, two_workers, level):
    """Of a dense gradient owners of rows add up theirs; a sparse one they have whole for it."""
    cases = [(False, "clipped", True), (False, "clipped_own", False), (True, "clipped", True)]
    check(plain, two_workers, {"zero.level": level, "communication.clip_after_allreduce": True}, cases)


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", ["v1", "v3"])
@pytest.mark.parametrize("layout, groups, degree", [((4, 1), 2, 0), ((4, 1), 0, 2), ((2, 2), 0, 2), ((2, 2), 0, 0)])
def test_clipped_rows_of_other_layouts(plain, jobs, layout, groups, degree, level):
    """Stages have whole gradients."""
    config = {"zero.level": level, "zero.degree": degree, "communication.clip_after_allreduce": True}
    check(plain, jobs[layout], config, [(False, "clipped", True), (False, "clipped_own", False)], groups)


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", ["v0", "v2"])
@pytest.mark.parametrize("layout, groups, degree", [((4, 1), 2, 0), ((4, 1), 0, 2), ((2, 2), 0, 2), ((1, 2), 0, 0)])
def test_norms_over_rows_of_other_layouts(plain, jobs, layout, groups, degree, level):
    check(plain, jobs[layout], {"zero.level": level, "zero.degree": degree}, NORMS + MEANS, groups)


@needs_bfloat16
@pytest.mark.parametrize("level", ["v1", "v3"])
def test_gradients_in_16_bits(two_workers, level):
    """As without zero.level, whose numbers are rounded in the same places."""
    want = two_workers(TABLES + "train", {"amp.level": "O2"}, CASES[:2])[0]
    for got in two_workers(TABLES + "train", {"amp.level": "O2", "zero.level": level}, CASES[:2]):
        for case in CASES[:2]:
            assert_same_training(got[case], want[case])


@pytest.mark.parametrize(
    "case, config",
    [
        ((False, "adam", True), {"zero.level": "v1", "amp.level": "O1"}),
        ((False, "momentum", False), {"zero.level": "v3", "amp.level": "O2"}),
        ((False, "lamb", True), {"zero.level": "v3", "amp.level": "O1"}),
        ((True, "lazy", True), {"zero.level": "v0", "amp.level": "O1"}),
        ((True, "adagrad", False), {"zero.level": "v2", "amp.level": "O2", "pipeline.num_micro_batch": 2}),
    ],
    ids=lambda each: "%(zero.level)s-%(amp.level)s" % each if isinstance(each, dict) else each[1],
)
def test_a_step_with_one_bad_row_is_left_out(two_workers, case, config):
    """Its owner alone sees it; as without zero.level."""
    plainly = {key: value for key, value in config.items() if key != "zero.level"}
    want = two_workers(TABLES + "with_bad_steps", plainly, case, (1, 3))[0]
    for got in two_workers(TABLES + "with_bad_steps", config, case, (1, 3)):
        for state, wanted in pairs(got, want):
            assert_same_state(state, wanted)
        same = [np.array_equal(one["all/table"], other["all/table"]) for one, other in zip(got, got[1:])]
        assert same == [False, True, False, True, False]


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", ["v1", "v3"])
def test_float16_in_two_pipelines_of_two_workers(jobs, level):
    """As without zero.level."""
    half = {"amp.level": "O2", "amp.dtype": "float16", "amp.init_loss_scale": 4.0}
    cases = CASES + NORMS[:1]
    want = jobs[4, 1](TABLES + "train", half, cases, 2)[0]
    for got in jobs[4, 1](TABLES + "train", dict(half, **{"zero.level": level}), cases, 2):
        for case in cases:
            assert_same_training(got[case], want[case])


def test_two_devices(plain, jobs):
    check(plain, jobs[1, 2], {"zero.level": "v1"}, CASES[::2])


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", [(2, 1), (1, 2), (2, 2), (4, 1)])
@pytest.mark.parametrize(
    "config",
    [
        {"zero.level": "v0"},
        {"zero.level": "v1", "pipeline.num_micro_batch": 2},
        {"zero.level": "v1", "optimizer.num_apply_group": 2},
        {"zero.level": "v1", "communication.sparse_as_dense": True},
        {"zero.level": "v0", "communication.check_replicas_every": 1},
        {"zero.level": "v2", "gradient_checkpoint.type": "auto"},
        {"zero.level": "v3", "pipeline.num_micro_batch": 2, "zero.segment_mb": 1e-3},
        {"zero.level": "v3", "zero.degree": 2},
    ],
    ids=lambda config: "-".join([config["zero.level"]] + sorted(config)),
)
def test_all_cases(plain, jobs, layout, config):
    if config.get("zero.degree") == 2 and layout in ((2, 1), (1, 2)):
        pytest.skip("all copies are no more")
    cases = [case for case in ALL if case[1] != "sgd" or config["zero.level"] in ("v2", "v3")]
    check(plain, jobs[layout], config, cases)


@pytest.mark.once
def test_checkpoints_load_everywhere(plain, two_workers, jobs, tmp_path):
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    want = plain(TABLES + "goes_on", {}, 0, 4)
    parts = [
        two_workers(TABLES + "goes_on", {"zero.level": "v2"}, 0, 1, None, first)[0],
        plain(TABLES + "goes_on", {}, 1, 2, first, second),
        jobs[2, 2](TABLES + "goes_on", STAGES_APART, 2, 3, second, third, 1)[1],
        jobs[4, 1](TABLES + "goes_on", {"zero.level": "v3"}, 3, 4, third, None, 2)[1],
    ]
    assert_same_training({key: sum((part[key] for part in parts), []) for key in want}, want)
    shapes = tf.train.load_checkpoint(first).get_variable_to_shape_map()
    assert shapes == tf.train.load_checkpoint(second).get_variable_to_shape_map()
    assert shapes["all/all/table/Adam"] == [ROWS, WIDTH]


@pytest.mark.once
def test_checkpoints_of_means_load_everywhere(plain, two_workers, jobs, tmp_path):
    """Adafactor: each owner has the means of columns, and a checkpoint has them once."""
    first, second = (str(tmp_path / name) for name in ("first", "second"))
    want = plain(TABLES + "goes_on", {}, 0, 3, optimizer="adafactor")
    parts = [
        two_workers(TABLES + "goes_on", {"zero.level": "v2"}, 0, 1, None, first, optimizer="adafactor")[0],
        plain(TABLES + "goes_on", {}, 1, 2, first, second, optimizer="adafactor"),
        jobs[2, 2](TABLES + "goes_on", {"zero.level": "v1"}, 2, 3, second, optimizer="adafactor")[1],
    ]
    assert_same_training({key: sum((part[key] for part in parts), []) for key in want}, want)
    shapes = tf.train.load_checkpoint(second).get_variable_to_shape_map()
    assert [shapes["all/all/table/Adafactor" + each] for each in ("", "_1")] == [[ROWS], [WIDTH]]
    assert shapes == tf.train.load_checkpoint(first).get_variable_to_shape_map()
