"""Groups of two of a worker's copies of the model, each of which has all of the state once (zero.degree)."""

import pytest

from tests.helpers import tricks_checks
from tests.helpers.checks import assert_same_state, assert_same_training, pairs
from tests.helpers.loss_scales import BAD, OPTIONS, SCALED, check
from tests.numerics.test_pipelines import ATOL, PIPELINES

GRADIENTS = "tests.helpers.programs.gradients:"
TABLES = "tests.helpers.programs.tables:"
ZERO = "tests.helpers.programs.zero:"
ROWS = [(False, "adam", True), (True, "lazy", False), (False, "lamb", False), (False, "adafactor", True)]
ON_HOST = {"offload.level": "v1"}


def in_groups(level, **options):
    return dict(options, **{"zero.level": level, "zero.degree": 2})


@pytest.mark.parametrize(
    "level, options",
    [
        ("v0", {}),
        ("v1", {"pipeline.num_micro_batch": 2}),
        ("v2", ON_HOST),
        ("v3", {"pipeline.num_micro_batch": 2, "zero.segment_mb": 1e-4}),
    ],
    ids=["v0", "v1", "v2_on_host", "v3"],
)
def test_training(plain, four_devices, level, options):
    want = plain(GRADIENTS + "classifier", None, "adam")
    assert_same_training(four_devices(GRADIENTS + "classifier", in_groups(level, **options), "adam"), want)


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", ["v1", "v2"])
def test_devices_that_share_a_batch(plain, four_devices, level):
    """`epl.replicate(2)`: the two devices of a group compute one batch."""
    want = plain(GRADIENTS + "classifier", None, "adam")
    assert_same_training(four_devices(GRADIENTS + "classifier", in_groups(level), "adam", 1.0, True, 2), want)


@pytest.mark.once
@pytest.mark.parametrize("level", ["v3", pytest.param("v0", marks=pytest.mark.exhaustive)])
def test_rows_of_a_large_variable(plain, four_devices, level):
    """Dense and sparse gradients, norms over all rows, and means of columns."""
    want, got = plain(TABLES + "train", None, ROWS), four_devices(TABLES + "train", in_groups(level), ROWS)
    for case in ROWS:
        assert_same_training(got[case], want[case])


@pytest.mark.once
@pytest.mark.parametrize("level", ["v1", pytest.param("v2", marks=pytest.mark.exhaustive)])
def test_groups_of_updates_of_clipped_gradients(plain, four_devices, level):
    """Copies of the model are compared in each step."""
    cases = [(False, "clipped", True), (True, "clipped", True)]
    options = {"communication.clip_after_allreduce": True, "communication.check_replicas_every": 1}
    config = in_groups(level, **dict(options, **{"optimizer.num_apply_group": 2}))
    want, got = plain(TABLES + "train", None, cases), four_devices(TABLES + "train", config, cases)
    for case in cases:
        assert_same_training(got[case], want[case])


@pytest.mark.once
@pytest.mark.parametrize("level", ["v1", pytest.param("v3", marks=pytest.mark.exhaustive)])
def test_steps_are_left_out_by_all_groups(four_devices, level):
    want = four_devices(SCALED + "train", (0, 24), BAD, "one", False, config=OPTIONS)
    found = four_devices(SCALED + "train", (0, 24), BAD, "one", False, config=in_groups(level, **OPTIONS))
    check(found, range(24), BAD)
    for state, wanted in pairs(found["states"], want["states"]):
        assert_same_state(state, wanted)


@pytest.mark.parametrize("level", ["v2", "v1"])
def test_checkpoints(plain, four_devices, tmp_path, level):
    """They are those of one device, and are restored from these into all groups."""
    path = str(tmp_path / "model")
    want = plain(ZERO + "goes_on", {}, 0, 4)
    four_devices(ZERO + "goes_on", in_groups(level), 0, 2, None, path)
    later = {key: values[2:] for key, values in want.items()}
    for got in plain(ZERO + "goes_on", {}, 2, 4, path), four_devices(ZERO + "goes_on", in_groups(level), 2, 4, path):
        assert_same_training(got, later)


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", ["v0", "v3"])
def test_what_programs_do_with_parameters_besides(plain, jobs, level):
    names = ["decoupled_decay", "smoothed_variables", "l2_and_loss_collection", "look_ahead"]
    tricks_checks.check(plain, jobs[1, 4], names, in_groups(level))


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", ["v1", "v3"])
def test_kinds_of_variables(plain, four_devices, level):
    want = plain(ZERO + "kinds_of_variables", {})
    assert_same_training(four_devices(ZERO + "kinds_of_variables", in_groups(level)), want)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "level, strategy, options",
    [
        ("v0", "PreferForward", {}),
        ("v1", "ZeroBubble", {"optimizer__num_apply_group": 3}),
        ("v2", "PreferForward", {"offload__level": "v0"}),
        ("v3", "PreferBackward", {"gradient_checkpoint__type": "auto", "zero__segment_mb": 1e-4}),
    ],
)
@pytest.mark.parametrize("model", ["tied_mlp", "batch_norm_cnn"])
def test_two_stages_of_four_copies(by_hand, jobs, model, level, strategy, options):
    config = dict(options, zero__level=level, zero__degree=2)
    (got,) = jobs[1, 8](PIPELINES + "train", 8, model, 2, 2, 4, strategy, **config)
    assert_same_training(got, by_hand(model, 2, 4), atol=ATOL)
