"""Models whose variables are divided over workers compute what one device computes."""

import itertools
import os

import pytest

from tests.helpers.checks import assert_same, pairs
from tests.helpers.remote import RemoteError
from tests.numerics.test_split_models import (
    ALL_LOOKUPS,
    BLOCK,
    BLOCK_ATOL,
    BLOCK_CASES,
    BRANCHES,
    CHECKED,
    CLIPPED,
    COLUMN_CASES,
    COLUMNS,
    CONTROL_FLOW,
    COPIES,
    DIVIDED,
    EMBEDDINGS,
    ENTRIES,
    EXCHANGED,
    EXCHANGES,
    EXPERTS,
    FEATURES,
    FED_SPARSE,
    FETCHED,
    FETCHED_OF,
    FIXED,
    FIXED_COPIES,
    FIXED_PROGRAMS,
    GROUPED,
    HINTED,
    LARGE,
    LOOKUPS,
    MICRO_EXPERTS,
    MICRO_LOOKUPS,
    MIXED,
    MIXED_PROGRAM,
    SPLIT,
    STAGES,
    TABLES,
    check,
    check_calls,
    check_columns,
    check_exchanges,
    check_fetched,
    check_large,
    check_lookups,
    check_mixed,
    check_variables,
    monitored_twice,
)

NORMS = "tests.helpers.programs.split_norms:layers"


# What goes together with state that copies of a divided model divide.
ALSO = [
    {"pipeline__num_micro_batch": 2},
    {"recompute": True, "optimizer__num_apply_group": 2},
    {"communication__check_replicas_every": 1, "as_dense": True},
]


def check_contents(plain, folders):
    """Two checkpoints hold the same."""
    got, want = [plain(SPLIT + "contents", os.path.join(folder, "model")) for folder in folders]
    assert sorted(got) == sorted(want)
    for name, value in want.items():
        assert_same(got[name], value, what=name)


@pytest.mark.parametrize("optimizer, resource", [("momentum", True), ("adam", False), ("lamb", False), ("lars", True)])
def test_trains_as_one_device(plain, two_workers, tmp_path, optimizer, resource):
    folders = [str(tmp_path / name) for name in ("plain", "split")]
    list(map(os.mkdir, folders))
    reference = plain(SPLIT + "train", 1, optimizer, folders[0], resource=resource)
    for history in two_workers(SPLIT + "train", 2, optimizer, folders[1], resource=resource):
        check(history, reference)
    paths = [os.path.join(folder, "model") for folder in folders]
    check_contents(plain, folders)
    restored = plain(SPLIT + "restore", 1, optimizer, paths[0], resource=resource)
    for own in two_workers(SPLIT + "restore", 2, optimizer, paths[0], resource=resource):
        check(own, restored)


@pytest.mark.parametrize("optimizer, options", BLOCK_CASES)
def test_rows_of_what_lies_between_products(plain, two_workers, optimizer, options):
    _, reference = plain(BLOCK, 1, optimizer, **options)
    for (count, _), history in two_workers(BLOCK, 2, optimizer, **options):
        assert count == 3
        check(history, reference, BLOCK_ATOL)


@pytest.mark.parametrize("optimizer", ["lamb", "lars"])
def test_norms_that_are_reduced_before_what_gradients_need(plain, two_workers, optimizer):
    reference = plain(NORMS, 1, optimizer)
    for history in two_workers(NORMS, 2, optimizer):
        check(history, reference)


def test_parts_of_large_variables_are_saved_and_read_by_themselves(plain, two_workers, tmp_path):
    """The checkpoint of workers goes on in one device, and one device's in workers."""
    folder, whole = str(tmp_path / "split"), os.path.join(str(tmp_path), "whole", "model")
    os.mkdir(folder)
    got = two_workers(LARGE, 2, folder)
    check_large(plain, got, tmp_path, folder, False)
    reference = plain(SPLIT + "contents", whole)
    for found, _ in two_workers(LARGE, 2, folder, whole):
        assert_same(found[0][0], reference["model/table"], what="the table of one device")


@pytest.mark.parametrize("optimizer, resource", HINTED)
def test_hints(plain, two_workers, optimizer, resource):
    reference = plain(SPLIT + "hinted", 1, optimizer, resource)
    for history in two_workers(SPLIT + "hinted", 2, optimizer, resource):
        check(history, reference)


@pytest.mark.parametrize("optimizer, version, resource", CONTROL_FLOW[:2])
def test_branches_and_loops(plain, two_workers, optimizer, version, resource):
    reference = plain(BRANCHES, 1, optimizer, version, resource)
    for history in two_workers(BRANCHES, 2, optimizer, version, resource):
        check(history, reference)


@pytest.mark.parametrize("optimizer, options", FEATURES[:2])
def test_rows_of_what_is_replicated(plain, two_workers, optimizer, options):
    reference = plain(SPLIT + "features", 1, optimizer, **options)
    for history in two_workers(SPLIT + "features", 2, optimizer, **options):
        check(history, reference)


@pytest.mark.parametrize("optimizer, options", EXPERTS)
def test_experts(plain, two_workers, optimizer, options):
    reference = plain(SPLIT + "experts", 1, optimizer, **options)
    for history in two_workers(SPLIT + "experts", 2, optimizer, **options):
        check(history, reference)


def test_experts_on_two_by_two_devices_in_micro_batches(plain, two_by_two):
    reference = plain(SPLIT + "experts", 1, "adam", fed=8)
    for history in two_by_two(SPLIT + "experts", 4, "adam", **MICRO_EXPERTS):
        check_variables(history, reference)


@pytest.mark.parametrize("optimizer, options", EMBEDDINGS)
def test_embeddings(plain, two_workers, optimizer, options):
    reference = plain(SPLIT + "embeddings", 1, optimizer, **options)
    for history in two_workers(SPLIT + "embeddings", 2, optimizer, **options):
        check(history, reference)


@pytest.mark.parametrize("optimizer, options", LOOKUPS)
def test_rows_travel(plain, two_workers, optimizer, options):
    reference = plain(TABLES, 1, optimizer, **options)
    for got in two_workers(TABLES, 2, optimizer, **options):
        check_lookups(got, reference, options)


@pytest.mark.parametrize("optimizer, options", ENTRIES)
def test_rows_travel_for_entries(plain, two_workers, optimizer, options):
    reference = plain(TABLES, 1, optimizer, **options)
    for got in two_workers(TABLES, 2, optimizer, **options):
        check_lookups(got, reference, options)


@pytest.mark.parametrize("optimizer, options", COLUMN_CASES)
def test_rows_travel_for_feature_columns(plain, two_workers, optimizer, options):
    reference = plain(COLUMNS, 1, optimizer, **options)
    for got in two_workers(COLUMNS, 2, optimizer, **options):
        check_columns(got, reference)


def test_what_lies_by_row_is_fetched_in_order(plain, two_workers):
    kind, op_types = FETCHED_OF[1]
    reference = plain(FETCHED, 1, kind, op_types)
    for got in two_workers(FETCHED, 2, kind, op_types):
        check_fetched(got, reference, op_types)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", [(2, 1), (2, 2), (4, 1)])
@pytest.mark.parametrize("cases", ALL_LOOKUPS, ids=["rows", "entries"])
def test_rows_travel_over_more_devices(plain, jobs, layout, cases):
    for optimizer, options in cases:
        reference = plain(TABLES, 1, optimizer, **options)
        for got in jobs[layout](TABLES, layout[0] * layout[1], optimizer, **options):
            check_lookups(got, reference, options)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", [(2, 1), (2, 2), (4, 1)])
def test_rows_travel_for_copies_and_micro_batches(plain, jobs, layout):
    for optimizer, options in MICRO_LOOKUPS:
        reference, _ = plain(TABLES, 1, optimizer, **options)
        for more in ({}, {"pipeline__num_micro_batch": 2}):
            for history, _ in jobs[layout](TABLES, 2, optimizer, **dict(options, **more)):
                check(history, reference)


@pytest.mark.exhaustive
@pytest.mark.parametrize("divided_by", [1, 2, 4])
def test_fed_sparse_tensors(plain, jobs, divided_by):
    for _, optimizer, options in FED_SPARSE:
        options = dict(options, sizes=(8, 16))
        reference, _ = plain(TABLES, 1, optimizer, **options)
        for history, _ in jobs[2, 2](TABLES, divided_by, optimizer, **options):
            check(history, reference)


def test_an_id_outside_of_the_table_is_named(two_workers):
    message = refused(two_workers, TABLES, 2, "sgd", False, None, (8,), "rows", False, None, "int64", 1001)
    assert "indices[3,2] = 1001 is not in [0, 1001)" in message


@pytest.mark.parametrize("optimizer, kind, resource", FIXED[:2])
def test_batches_of_a_fixed_size(plain, two_workers, optimizer, kind, resource):
    reference = plain(FIXED_PROGRAMS + "fixed_batch", 1, optimizer, kind, resource)
    for history in two_workers(FIXED_PROGRAMS + "fixed_batch", 2, optimizer, kind, resource):
        check(history, reference)


def test_several_steps_in_a_call(plain, two_workers):
    want = plain(SPLIT + "several_steps", 2, 2, 2)
    for got in two_workers(SPLIT + "several_steps", 2, 2, 2, **GROUPED):
        check_calls(got, want, 2)


@pytest.mark.parametrize("optimizer, options", MIXED[:2])
def test_float16(plain, two_workers, optimizer, options):
    want = plain(MIXED_PROGRAM, 2, optimizer, "float16", **options)
    for got in two_workers(MIXED_PROGRAM, 2, optimizer, "float16", **options):
        check_mixed(got, want, options["bad"])


@pytest.mark.once
def test_float16_in_several_copies(plain, two_by_two):
    optimizer, options = MIXED[2]
    want = plain(MIXED_PROGRAM, 2, optimizer, "float16", **options)
    for keys in ({}, {"amp__level": "O2", "zero__level": "v1"}, {"zero__level": "v3"}):
        for got in two_by_two(MIXED_PROGRAM, 2, optimizer, "float16", **dict(options, **keys)):
            check_mixed(got, want, options["bad"])


@pytest.mark.once
def test_monitored_sessions(plain, two_workers, tmp_path):
    want = monitored_twice(plain, str(tmp_path / "plain"))
    for of_workers, whole in pairs(monitored_twice(two_workers, str(tmp_path / "split")), want):
        for own in of_workers:
            assert_same(own, whole)


@pytest.mark.once
@pytest.mark.parametrize("layout", [(1, 4), (2, 2)])
def test_a_classifier_over_all_devices_and_rows_beside_it(plain, jobs, tmp_path, layout):
    """Four devices have their rows of the features and a part of the classes each."""
    folders = [str(tmp_path / name) for name in ("plain", "split")]
    list(map(os.mkdir, folders))
    want = plain(SPLIT + "train", 1, "adam", folders[0], True)
    for got in jobs[layout](SPLIT + "train", 4, "adam", folders[1], True):
        check(got, want)
    check_contents(plain, folders)


@pytest.mark.parametrize("layout", [(2, 2), (4, 1)])
def test_copies_of_a_divided_model(plain, jobs, layout):
    for optimizer, options in COPIES:
        reference = plain(SPLIT + "several_copies", 1, optimizer, **options)
        for history in jobs[layout](SPLIT + "several_copies", 2, optimizer, **options, **GROUPED):
            check(history, reference)


@pytest.mark.parametrize(
    "layout, case",
    [
        pytest.param((2, 2), 0, marks=pytest.mark.once),
        pytest.param((4, 1), 1, marks=pytest.mark.exhaustive),
        ((2, 2), 2),
        ((2, 2), 3),
        ((4, 1), 2),
        pytest.param((4, 1), 3, marks=pytest.mark.exhaustive),
    ],
)
def test_copies_of_a_divided_model_divide_state(plain, jobs, tmp_path, layout, case):
    """With micro-batches; a checkpoint goes on in plain TensorFlow, and in the layout that wrote it."""
    (optimizer, options), saved = DIVIDED[case], str(tmp_path / "model")
    options = dict(options, state=False)
    want = plain(SPLIT + "several_copies", 1, optimizer, **options)
    divided = dict(options, pipeline__num_micro_batch=2)
    for got in jobs[layout](SPLIT + "several_copies", 2, optimizer, saved=saved, **divided):
        check(got, want)
    after = plain(SPLIT + "several_copies", 1, optimizer, restored=saved, **options)
    check(after[:1], [want[-1][2:]])
    for got in jobs[layout](SPLIT + "several_copies", 2, optimizer, restored=saved, **divided):
        check(got, after)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", [(1, 4), (2, 2), (4, 1), (2, 4)])
@pytest.mark.parametrize("optimizer", ["adam", "momentum", "adagrad", "sgd", "lamb", "lars"])
def test_all_that_copies_of_a_divided_model_divide(plain, jobs, tmp_path, layout, optimizer):
    for number, (level, keys) in enumerate(itertools.product(("v0", "v1", "v2", "v3"), ALSO)):
        saved, resource = str(tmp_path / str(number)), bool(number % 2)
        # Not with dense gradients: in one device's norm, rows of a sparse one for the same row of the table count each
        # by itself, and there their sum does.
        options = {"resource": resource, "clip_after": True, "clip": 0.5 if "as_dense" not in keys else 100.0}
        want = plain(SPLIT + "several_copies", 1, optimizer, state=False, **options)
        options.update(keys, zero__level=level, state=False)
        for got in jobs[layout](SPLIT + "several_copies", 2, optimizer, saved=saved, **options):
            check(got, want)
        held = plain(SPLIT + "several_copies", 1, optimizer, state=False, resource=resource, restored=saved, sizes=())
        check(held, [want[-1][2:]])


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", [(2, 2), (4, 1)])
def test_large_parts_that_copies_of_a_divided_model_divide(plain, jobs, tmp_path, layout):
    """All copies see the same rows. The checkpoint goes on in plain TensorFlow."""
    folders = [str(tmp_path / name) for name in ("plain", "split", "after")]
    list(map(os.mkdir, folders))
    want, _ = plain(LARGE, 1, folders[0])
    for got, _ in jobs[layout](LARGE, 2, folders[1], zero__level="v1"):
        check(got, want)
    after, _ = plain(LARGE, 1, folders[2], os.path.join(folders[1], "model"))
    check(after[:1], want[1:2])


@pytest.mark.exhaustive
@pytest.mark.parametrize("optimizer, options", DIVIDED[1:])
def test_copies_of_a_divided_model_divide_state_in_each_worker(plain, jobs, optimizer, options):
    want = plain(SPLIT + "several_copies", 1, optimizer, **options)
    for got in jobs[2, 4](SPLIT + "several_copies", 2, optimizer, zero__degree=2, **options):
        check(got, want)


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", ["v0", "v1", "v2", "v3"])
@pytest.mark.parametrize("which", range(len(DIVIDED)))
def test_groups_of_copies_of_a_divided_model_divide_state(plain, jobs, which, level):
    optimizer, options = DIVIDED[which][0], dict(DIVIDED[which][1], zero__level=level)
    want = plain(SPLIT + "several_copies", 1, optimizer, **options)
    for got in jobs[1, 8](SPLIT + "several_copies", 2, optimizer, zero__degree=2, **options):
        check(got, want)


@pytest.mark.once
def test_micro_batches_and_recomputation(plain, two_workers, two_by_two):
    reference = plain(SPLIT + "several_copies", 1, "adam", state=False)
    for call in (two_workers, two_by_two):
        for history in call(SPLIT + "several_copies", 2, "adam", recompute=True, **CHECKED):
            check(history, reference)


@pytest.mark.parametrize("layout", [(2, 2), (4, 1)])
@pytest.mark.parametrize("optimizer, kinds, resource, options", STAGES)
def test_stages(plain, jobs, tmp_path, layout, optimizer, kinds, resource, options):
    """A part goes through stages in one worker, or in several."""
    folders = [str(tmp_path / name) for name in ("plain", "split")]
    list(map(os.mkdir, folders))
    reference = plain(SPLIT + "stages", 1, optimizer, kinds, resource, folders[0])
    options = dict(CLIPPED, **options)
    for history in jobs[layout](SPLIT + "stages", 2, optimizer, kinds, resource, folders[1], **options):
        check(history, reference)
    check_contents(plain, folders)


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", ["v1", "v2", "v3"])
@pytest.mark.parametrize("optimizer, kinds, resource, options", STAGES[:3])
def test_copies_of_stages_divide_parameters(plain, jobs, optimizer, kinds, resource, options, level):
    """Two copies, fed with the same rows, of two stages of two devices each."""
    reference = plain(SPLIT + "stages", 1, optimizer, kinds, resource, times=2)
    options = dict(CLIPPED, zero__level=level, **dict(options, pipeline__num_micro_batch=2))
    for history in jobs[2, 4](SPLIT + "stages", 2, optimizer, kinds, resource, **options):
        check(history, reference)


@pytest.mark.once
def test_what_is_exchanged(two_workers):
    for estimated, ran in two_workers(EXCHANGES, 2, 8, **EXCHANGED):
        check_exchanges(estimated, ran, 2)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.exhaustive),
        pytest.param({"zero__level": "v1"}, marks=pytest.mark.exhaustive),
        pytest.param({"zero__level": "v3"}, marks=pytest.mark.once),
    ],
)
def test_what_copies_of_a_divided_model_exchange(two_by_two, options):
    for estimated, ran in two_by_two(EXCHANGES, 2, 16, **options):
        assert {row["axis"] for row in estimated} == {"shard", "data"}
        assert all(row["sent_by"] for row in estimated if row["axis"] == "data")


def refused(call, *args):
    with pytest.raises(RemoteError) as caught:
        call(*args)
    return caught.value.message


def test_workers_with_different_data_are_refused(two_workers):
    message = refused(two_workers, SPLIT + "different_data", 2)
    assert "the workers that divide this model (epl.split, or epl.replicate of a batch" in message


@pytest.mark.parametrize(
    "hints, said",
    [
        (
            (0, 1),
            'worker 0 has the hint "divided along dimension 0", and worker 1 has the hint "divided along dimension 1"',
        ),
        ((None, -1), 'worker 0 has no hint, and worker 1 has the hint "whole"'),
    ],
)
def test_workers_with_different_hints_are_refused(two_workers, hints, said):
    message = refused(two_workers, SPLIT + "different_hints", 2, hints)
    assert "the hints for 'kernel' differ: " + said in message


def test_all_workers_initialise_or_none(two_workers):
    message = refused(two_workers, SPLIT + "one_initialises", 2)
    assert "worker 0 has given the variable" in message and "and worker 1 has not" in message


@pytest.mark.once
def test_keras_saves_one_file(two_workers, tmp_path):
    message = refused(two_workers, SPLIT + "keras_model", 2, str(tmp_path / "weights"))
    assert "cannot be saved where epl.split divides a model of Keras over several workers" in message


def test_estimators(plain, two_devices, two_workers, tmp_path):
    want = plain(SPLIT + "estimator", 2, str(tmp_path / "plain"))
    jobs = [two_devices(SPLIT + "estimator", 2, str(tmp_path / "one"))]
    for found in jobs + two_workers(SPLIT + "estimator", 2, str(tmp_path / "two")):
        for own, whole in pairs(found, want):
            assert_same(own, whole)


@pytest.mark.parametrize("layout, devices", [((2, 2), 2), ((4, 1), 2), ((2, 2), 4)])
@pytest.mark.parametrize("optimizer, kind, resource, options", FIXED_COPIES)
def test_copies_with_batches_of_a_fixed_size(plain, jobs, layout, devices, optimizer, kind, resource, options):
    reference = plain(FIXED_PROGRAMS + "fixed_copies", 1, optimizer, kind, resource)
    for history in jobs[layout](FIXED_PROGRAMS + "fixed_copies", devices, optimizer, kind, resource, **options):
        check(history, reference)
