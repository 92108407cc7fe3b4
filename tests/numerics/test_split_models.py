"""Models whose variables are divided over devices compute what one device computes."""

import collections
import os

import numpy as np
import pytest

from tests.helpers.checks import assert_same, pairs
from tests.helpers.marks import needs_bfloat16
from tests.helpers.remote import RemoteError

COLLECTIVES = ("EplAllReduce", "EplAllGather", "EplReduceScatter", "EplAllToAll", "EplBroadcast")
SPLIT = "tests.helpers.programs.split:"
BRANCHES = "tests.helpers.programs.split_control_flow:branches_and_loops"
LARGE = "tests.helpers.programs.split_large:large"
BLOCK = "tests.helpers.programs.split_blocks:block"
EXCHANGES = "tests.helpers.programs.exchanges:exchanged"
TABLES = "tests.helpers.programs.split_tables:lookups"
MIXED_PROGRAM = "tests.helpers.programs.split_mixed:mixed"


EXCHANGED = {"pipeline__num_micro_batch": 2}
# Made dense, repeated rows of a gradient are one, so that its norm would be another one.
COPIES = [("adam", {}), ("momentum", {"resource": True, "as_dense": True, "clip": 100.0, "sizes": (8, 4, 12)})]


def check(history, reference, atol=1e-6):
    for step, (got, want) in enumerate(pairs(history, reference)):
        for index, (own, whole) in enumerate(pairs(got, want)):
            assert own.shape == whole.shape
            assert_same(own, whole, rtol=1e-5, atol=atol, what="value %d of step %d" % (index, step))


@pytest.mark.parametrize(
    "optimizer, resource", [("sgd", True), ("momentum", False), ("adam", True), ("adagrad", False)]
)
def test_trains_as_one_device(plain, two_devices, tmp_path, optimizer, resource):
    folders = [str(tmp_path / name) for name in ("plain", "split")]
    list(map(os.mkdir, folders))
    reference = plain(SPLIT + "train", 1, optimizer, folders[0], resource=resource)
    check(two_devices(SPLIT + "train", 2, optimizer, folders[1], resource=resource), reference)


def check_large(plain, got, tmp_path, folder, resource):
    """What two shards make of a large table, and the checkpoint in `folder` that they write."""
    whole = str(tmp_path / "whole")
    os.makedirs(whole, exist_ok=True)
    reference, _ = plain(LARGE, 1, whole, resource=resource)
    for found, (gathered, _) in got:
        check(found, reference)
        assert not [name for name in gathered if "table" in name or "Adagrad" in name]
    own = [slices for _, (_, slices) in got]
    assert own[0] == {"401 50 0,201:-", "401 50 201,200:-"}  # the first worker writes all
    assert all(each == {"401 50 201,200:-"} for each in own[1:])  # others read their part
    after, _ = plain(LARGE, 1, whole, os.path.join(folder, "model"), resource=resource)
    check(after[:1], reference[1:2])


@pytest.mark.parametrize("resource", [True, False])
def test_parts_of_large_variables_are_saved_and_read_by_themselves(plain, two_devices, tmp_path, resource):
    folder = str(tmp_path / "split")
    os.mkdir(folder)
    check_large(plain, [two_devices(LARGE, 2, folder, resource=resource)], tmp_path, folder, resource)


HINTED = [("momentum", True), ("adagrad", False)]


@pytest.mark.parametrize("optimizer, resource", HINTED)
def test_hints(plain, two_devices, optimizer, resource):
    reference = plain(SPLIT + "hinted", 1, optimizer, resource)
    check(two_devices(SPLIT + "hinted", 2, optimizer, resource), reference)


# A block's gradients are sums of what softmax and normalisations leave of larger terms; the terms' rounding stays.
BLOCK_ATOL = 4e-6
BLOCK_CASES = [("momentum", {"resource": True}), ("adagrad", {"recompute": True})]


@pytest.mark.parametrize("optimizer, options", BLOCK_CASES)
def test_rows_of_what_lies_between_products(plain, two_devices, optimizer, options):
    _, reference = plain(BLOCK, 1, optimizer, **options)
    (count, _), history = two_devices(BLOCK, 2, optimizer, **options)
    assert count == 3  # two forward, one backward: nothing wants the gradient of what is fed
    check(history, reference, BLOCK_ATOL)


def test_products_of_transposed_operands(plain, two_devices):
    _, reference = plain(BLOCK, 1, "sgd")
    for onednn in (True, False):
        (_, transpositions), history = two_devices(BLOCK, 2, "sgd", onednn=onednn)
        assert bool(transpositions) == (not onednn)
        check(history, reference, BLOCK_ATOL)


# Control flow of both kinds, in which all that the devices have parts of is whole.
CONTROL_FLOW = [("sgd", "v1", False), ("adam", "v1", True), ("momentum", "v2", True)]


@pytest.mark.parametrize("optimizer, version, resource", CONTROL_FLOW)
def test_branches_and_loops(plain, two_devices, optimizer, version, resource):
    reference = plain(BRANCHES, 1, optimizer, version, resource)
    check(two_devices(BRANCHES, 2, optimizer, version, resource), reference)


# Rows that the graph knows, and that it does not; that divide, and that do not.
FEATURES = [
    ("sgd", {"rows": 7, "sizes": (7, 7, 7)}),
    ("adam", {"sizes": (8, 5, 3), "resource": True}),
    ("adagrad", {"rows": 8}),
]


@pytest.mark.parametrize("optimizer, options", FEATURES)
def test_rows_of_what_is_replicated(plain, two_devices, optimizer, options):
    reference = plain(SPLIT + "features", 1, optimizer, **options)
    check(two_devices(SPLIT + "features", 2, optimizer, **options), reference)


# Groups of tokens that the graph knows, and that it does not.
EXPERTS = [("momentum", {"groups": 4, "resource": True}), ("adagrad", {})]


@pytest.mark.parametrize("optimizer, options", EXPERTS)
def test_experts(plain, two_devices, optimizer, options):
    reference = plain(SPLIT + "experts", 1, optimizer, **options)
    check(two_devices(SPLIT + "experts", 2, optimizer, **options), reference)


MICRO_EXPERTS = {"fed": 8, "pipeline__num_micro_batch": 2}


def check_variables(history, reference):
    """The same without the loss and the output, which a micro-batch gives for itself."""
    check([values[2:] for values in history[1:]], [values[2:] for values in reference[1:]])


def test_experts_on_four_devices_in_micro_batches(plain, four_devices):
    reference = plain(SPLIT + "experts", 1, "adam", fed=8)
    check_variables(four_devices(SPLIT + "experts", 4, "adam", **MICRO_EXPERTS), reference)


EMBEDDINGS = [("adagrad", {"rows": 7}), ("adam", {"resource": True})]


@pytest.mark.parametrize("optimizer, options", EMBEDDINGS)
def test_embeddings(plain, two_devices, optimizer, options):
    reference = plain(SPLIT + "embeddings", 1, optimizer, **options)
    check(two_devices(SPLIT + "embeddings", 2, optimizer, **options), reference)


# Rows that the graph knows, and that it does not, of batches that devices divide evenly and not; one lookup and two.
LOOKUPS = [
    ("adagrad", {"resource": True, "sizes": (8, 7, 5)}),
    ("adam", {"kind": "twice", "clip": 0.1}),
    ("lazy", {"rows": 32, "sizes": (32, 32), "inside": True, "resource": True}),
    ("momentum", {"kind": "sum", "dtype": "int32"}),
]
MORE_LOOKUPS = [
    ("sgd", {"resource": True}),
    ("sgd", {"kind": "twice", "rows": 32, "sizes": (32, 32)}),
    ("adam", {"resource": True, "inside": True, "kind": "keras"}),
    ("adagrad", {"kind": "sum", "clip": 0.1}),
    ("lazy", {"sizes": (7, 8, 9)}),
    ("momentum", {"resource": True, "rows": 33, "sizes": (33, 33)}),
]
MICRO_LOOKUPS = [("adagrad", {"clip": 0.1, "resource": True}), ("adam", {"kind": "sum"}), ("sgd", {"kind": "twice"})]
# Ids that are flattened, and batches with any number of them in each row; devices that have no rows are among them.
ENTRIES = [
    ("adagrad", {"kind": "flattened", "sizes": (8, 7, 1)}),
    ("sgd", {"kind": "sparse mean", "sizes": (8, 1, 5), "resource": True}),
    ("adagrad", {"kind": "weighted sum", "sizes": (8, 7)}),
    ("adagrad", {"kind": "safe mean", "sizes": (8, 7, 1)}),
    ("sgd", {"kind": "safe_weighted sqrtn", "resource": True, "sizes": (8, 5)}),
]
MORE_ENTRIES = [
    ("sgd", {"kind": "flattened", "resource": True}),
    ("adam", {"kind": "sparse sum", "clip": 0.1, "sizes": (8, 7, 5)}),
    ("sgd", {"kind": "sparse sum", "sizes": (7, 8)}),
    ("sgd", {"kind": "weighted mean", "resource": True, "sizes": (8, 7, 1)}),
    ("adam", {"kind": "safe sum", "clip": 0.1, "resource": True, "sizes": (8, 7, 5)}),
    ("adagrad", {"kind": "safe_weighted sum"}),
    ("sgd", {"kind": "safe_weighted mean", "resource": True, "inside": True}),
    ("sgd", {"kind": "safe sqrtn", "sizes": (7, 8)}),
]
ALL_LOOKUPS = [LOOKUPS + MORE_LOOKUPS, ENTRIES + MORE_ENTRIES]
# Sparse tensors that are fed, and divided over copies of the model, over micro-batches, or both.
FED_SPARSE = [
    (1, "adagrad", {"kind": "safe mean", "sizes": (8, 7)}),
    (2, "sgd", {"kind": "safe_weighted sqrtn", "pipeline__num_micro_batch": 2, "sizes": (8, 4)}),
]
COLUMNS = "tests.helpers.programs.split_columns:columns"
COLUMN_CASES = [("adagrad", {"layer": "input_layer"}), ("sgd", {"layer": "DenseFeatures", "sizes": (7, 8)})]
FETCHED = "tests.helpers.programs.split_tables:fetched"
FETCHED_OF = [("flattened", ["GatherV2"]), ("weighted mean", ["GatherV2", "Mul", "Unique"])]
_THERE, _BACK = ("all_to_all", "forward"), ("all_to_all", "backward")


def check_lookups(got, want, options):
    """Rows travel once in each direction, and ids once: nothing is gathered."""
    (history, exchanged), (reference, _) = got, want
    check(history, reference)
    lookups = 2 if options.get("kind") == "twice" else 1
    assert sorted(exchanged) == [_BACK] * lookups + [_THERE] * 2 * lookups, options


@pytest.mark.parametrize("optimizer, options", LOOKUPS)
def test_rows_travel(plain, two_devices, optimizer, options):
    reference = plain(TABLES, 1, optimizer, **options)
    check_lookups(two_devices(TABLES, 2, optimizer, **options), reference, options)


@pytest.mark.exhaustive
@pytest.mark.parametrize("cases", ALL_LOOKUPS, ids=["rows", "entries"])
def test_rows_travel_over_more_devices(plain, two_devices, four_devices, cases):
    for optimizer, options in cases:
        reference = plain(TABLES, 1, optimizer, **options)
        check_lookups(two_devices(TABLES, 2, optimizer, **options), reference, options)
        check_lookups(four_devices(TABLES, 4, optimizer, **options), reference, options)


@pytest.mark.exhaustive
def test_rows_travel_for_micro_batches(plain, two_devices, four_devices):
    for optimizer, options in MICRO_LOOKUPS:
        reference = plain(TABLES, 1, optimizer, **options)
        got = two_devices(TABLES, 2, optimizer, pipeline__num_micro_batch=2, **options)
        check_lookups(got, reference, options)
        check(four_devices(TABLES, 2, optimizer, pipeline__num_micro_batch=2, **options)[0], reference[0])
        check(four_devices(TABLES, 2, optimizer, **options)[0], reference[0])


@pytest.mark.each_line
@pytest.mark.parametrize("optimizer, options", ENTRIES)
def test_rows_travel_for_entries(plain, two_devices, optimizer, options):
    reference = plain(TABLES, 1, optimizer, **options)
    check_lookups(two_devices(TABLES, 2, optimizer, **options), reference, options)


@pytest.mark.parametrize("divided_by, optimizer, options", FED_SPARSE)
def test_fed_sparse_tensors(plain, two_devices, divided_by, optimizer, options):
    check(two_devices(TABLES, divided_by, optimizer, **options)[0], plain(TABLES, 1, optimizer, **options)[0])


@pytest.mark.exhaustive
def test_fed_sparse_tensors_over_more_devices(plain, four_devices):
    for _, optimizer, options in FED_SPARSE:
        options = dict(options, sizes=(8, 16))
        reference, _ = plain(TABLES, 1, optimizer, **options)
        for divided_by in (1, 2):
            check(four_devices(TABLES, divided_by, optimizer, **options)[0], reference)


def check_columns(got, want):
    """The ids of each of three columns travel once, and their rows once in each direction."""
    (history, exchanged), (reference, _) = got, want
    check(history, reference)
    assert sorted(exchanged) == [_BACK] * 3 + [_THERE] * 6


@pytest.mark.parametrize("optimizer, options", COLUMN_CASES)
def test_rows_travel_for_feature_columns(plain, two_devices, optimizer, options):
    check_columns(two_devices(COLUMNS, 2, optimizer, **options), plain(COLUMNS, 1, optimizer, **options))


def check_fetched(got, want, op_types):
    """What devices have of the entries of their rows is fetched as one device has it; their own lists are not."""
    for op_type, own, whole in pairs(op_types, got, want):
        if op_type == "Unique":
            assert "cannot be fetched: each of the 2 devices makes it of the entries of its own rows" in own
        else:
            assert_same(own, whole, what=op_type)


@pytest.mark.parametrize("kind, op_types", FETCHED_OF)
def test_what_lies_by_row_is_fetched_in_order(plain, two_devices, kind, op_types):
    check_fetched(two_devices(FETCHED, 2, kind, op_types), plain(FETCHED, 1, kind, op_types), op_types)


def test_an_id_outside_of_the_table_is_named(two_devices):
    with pytest.raises(RemoteError, match=r"indices\[3,2\] = 1001 is not in \[0, 1001\)"):
        two_devices(TABLES, 2, "sgd", wrong=1001)


# Rows of a data set that the graph counts, one row at a time, and a placeholder of a fixed shape.
FIXED = [("momentum", "batches", True), ("adam", "rows", False), ("sgd", "fed", False)]
FIXED_PROGRAMS = "tests.helpers.programs.split_fixed:"
FIXED_COPIES = [
    ("momentum", "batches", True, {}),
    ("adam", "fed", False, {}),
    ("momentum", "fed", False, {"zero__level": "v3"}),
    ("momentum", "batches", False, {"gradient_checkpoint__type": "auto", "gradient_checkpoint__check_gradients": True}),
]


@pytest.mark.parametrize("optimizer, kind, resource", FIXED)
def test_batches_of_a_fixed_size(plain, two_devices, optimizer, kind, resource):
    reference = plain(FIXED_PROGRAMS + "fixed_batch", 1, optimizer, kind, resource)
    check(two_devices(FIXED_PROGRAMS + "fixed_batch", 2, optimizer, kind, resource), reference)


@pytest.mark.parametrize(
    "counts, case, options",
    [
        ([2, 1], FIXED[0], {"zero__level": "v2"}),
        ([1, 2], FIXED[1], {}),
        pytest.param([2, 3], FIXED[2], {}, marks=pytest.mark.exhaustive),
    ],
)
def test_batches_of_a_fixed_size_at_stages_of_different_device_counts(plain, two_devices, counts, case, options):
    reference = plain(FIXED_PROGRAMS + "fixed_batch", 1, *case)
    check(two_devices(FIXED_PROGRAMS + "fixed_batch", counts, *case, **options), reference)


# The updates of several copies in groups, copies compared after each step.
GROUPED = {"optimizer__num_apply_group": 2, "communication__check_replicas_every": 1}


def check_calls(got, want, steps):
    """What calls of several steps give, against what each step gives."""
    check(got, [want[0]] + want[steps::steps])


def test_several_steps_in_a_call(plain, two_devices):
    want = plain(SPLIT + "several_steps", 2, 2, 2)
    check_calls(two_devices(SPLIT + "several_steps", 2, 2, 2, **GROUPED), want, 2)


# float16 with a loss scale, of a split classifier and of a batch that devices divide by rows.
MIXED = [("momentum", {"resource": True, "bad": [1]}), ("sgd", {"fixed": True, "bad": [2]}), ("adam", {"bad": [1, 2]})]


def check_mixed(got, want, bad=()):
    """Variables in 16 bits against plain ones; a step with an infinite gradient has changed nothing but the scale."""
    (history, scales), (reference, _) = got, want
    kept = [step for step in range(len(history)) if step - 1 not in bad]
    assert len(kept) == len(reference) > 2
    for step in bad:
        for after, before in pairs(history[step + 1], history[step]):
            np.testing.assert_array_equal(after, before)
    for step, whole in zip(kept, reference):
        for own, value in pairs(history[step], whole):
            np.testing.assert_allclose(own, value, rtol=2e-2, atol=2e-2)
    if bad:
        scale, good = 1024.0, 0
        for step, found in enumerate(scales):
            scale, good = (scale / 2, 0) if step in bad else (scale * 2, 0) if good else (scale, 1)
            assert found[:2] == (scale, good), step


@pytest.mark.parametrize("optimizer, options", MIXED)
def test_float16(plain, two_devices, optimizer, options):
    want = plain(MIXED_PROGRAM, 2, optimizer, "float16", **options)
    check_mixed(two_devices(MIXED_PROGRAM, 2, optimizer, "float16", **options), want, options["bad"])


def test_float16_in_several_copies(plain, four_devices):
    optimizer, options = MIXED[0]
    want = plain(MIXED_PROGRAM, 2, optimizer, "float16", **options)
    for keys in ({}, {"amp__level": "O2", "zero__level": "v2"}, {"zero__level": "v1"}):
        got = four_devices(MIXED_PROGRAM, 2, optimizer, "float16", **dict(options, **keys))
        check_mixed(got, want, options["bad"])


@needs_bfloat16
def test_bfloat16(plain, two_devices):
    want = plain(MIXED_PROGRAM, 2, "momentum", "bfloat16")
    for level in ("O1", "O2"):
        check_mixed(two_devices(MIXED_PROGRAM, 2, "momentum", "bfloat16", amp__level=level), want)


def test_without_a_seed_all_devices_have_the_same(two_devices):
    first, second = two_devices(SPLIT + "without_seed", 2)
    assert first.any() and np.array_equal(first, second)


def test_what_is_divided_cannot_be_fed(two_devices):
    with pytest.raises(RemoteError, match="each of 2 devices has a part of it, as epl.split divides it"):
        two_devices(SPLIT + "feeds_a_part", 2)


@pytest.mark.parametrize("optimizer, options", COPIES)
def test_copies_of_a_divided_model(plain, four_devices, optimizer, options):
    reference = plain(SPLIT + "several_copies", 1, optimizer, **options)
    check(four_devices(SPLIT + "several_copies", 2, optimizer, **options, **GROUPED), reference)


# State of a divided model's copies, then parameters, and the rest of the configuration of several_copies.
DIVIDED = [
    ("adam", {"zero__level": "v0"}),
    ("momentum", {"resource": True, "clip": 100.0, "clip_after": False, "zero__level": "v1"}),
    ("adam", {"resource": True, "zero__level": "v2"}),
    ("momentum", {"zero__level": "v3", "zero__segment_mb": 1e-4, "recompute": True}),
]


@pytest.mark.parametrize("optimizer, options", DIVIDED)
def test_copies_of_a_divided_model_divide_state(plain, four_devices, tmp_path, optimizer, options):
    saved = str(tmp_path / "model")
    want = plain(SPLIT + "several_copies", 1, optimizer, **options)
    check(four_devices(SPLIT + "several_copies", 2, optimizer, saved=saved, **options, **GROUPED), want)
    after = plain(SPLIT + "several_copies", 1, optimizer, restored=saved, **options)
    check(after[:1], [want[-1][2:]])
    check(four_devices(SPLIT + "several_copies", 2, optimizer, restored=saved, **options), after)


CLIPPED = {"communication__clip_after_allreduce": True}

# What one device does with whole batches, but for moving averages, which each micro-batch changes.
MICRO_BATCHES = {"state": False, "pipeline__num_micro_batch": 2}
CHECKED = dict(MICRO_BATCHES, gradient_checkpoint__check_gradients=True)


def test_micro_batches_and_recomputation(plain, two_devices):
    reference = plain(SPLIT + "several_copies", 1, "adam", state=False)
    check(two_devices(SPLIT + "several_copies", 2, "adam", recompute=True, **CHECKED), reference)


# One model of stages with devices of their own, of which some divide tensors.
STAGES = [
    ("adam", ("replicate", "split"), True, {"pipeline__num_micro_batch": 2}),
    ("momentum", ("split", "split"), False, {"pipeline__num_micro_batch": 4, "pipeline__strategy": "PreferForward"}),
    ("adagrad", ("split", "replicate"), False, {"pipeline__num_micro_batch": 2, "pipeline__strategy": "ZeroBubble"}),
    ("sgd", ("replicate", "split"), False, {"gradient_checkpoint__type": "auto", **GROUPED}),
]


@pytest.mark.parametrize("optimizer, kinds, resource, options", STAGES)
def test_stages(plain, four_devices, optimizer, kinds, resource, options):
    reference = plain(SPLIT + "stages", 1, optimizer, kinds, resource)
    check(four_devices(SPLIT + "stages", 2, optimizer, kinds, resource, **dict(CLIPPED, **options)), reference)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "case, dtype", [(0, "float16"), (2, "float16"), pytest.param(1, "bfloat16", marks=needs_bfloat16)]
)
def test_stages_in_16_bits(plain, four_devices, case, dtype):
    optimizer, kinds, resource, options = STAGES[case]
    options = dict(CLIPPED, amp__level="O1", amp__dtype=dtype, **options)
    reference = plain(SPLIT + "stages", 1, optimizer, kinds, resource)
    for got, want in pairs(four_devices(SPLIT + "stages", 2, optimizer, kinds, resource, **options), reference):
        for own, whole in pairs(got, want):
            np.testing.assert_allclose(own, whole, rtol=4e-2, atol=4e-2)


def test_a_batch_that_does_not_divide_is_computed_by_one_copy(plain, four_devices):
    sizes = (8, 7, 8)
    reference = plain(SPLIT + "several_copies", 1, "adam", sizes=sizes)
    check(four_devices(SPLIT + "several_copies", 2, "adam", sizes=sizes), reference)


def monitored_twice(call, folder):
    """Losses of two monitored sessions, of which the second goes on where the first has saved."""
    return call(SPLIT + "monitored", 2, folder, 4), call(SPLIT + "monitored", 2, folder, 2)


def test_monitored_sessions_and_batch_normalisation(plain, two_devices, tmp_path):
    want = monitored_twice(plain, str(tmp_path / "plain"))
    for own, whole in pairs(monitored_twice(two_devices, str(tmp_path / "split")), want):
        assert_same(own, whole)


def test_largest_logits_and_metrics(plain, two_devices):
    for own, whole in pairs(two_devices(SPLIT + "top", 2), plain(SPLIT + "top", 2)):
        assert_same(own, whole)


def check_exchanges(estimated, ran, num_workers):
    """What the plan estimates of a step is what runs in it: each by its name, or type by type with its bytes."""
    names = {name for name, _, _ in ran}
    inside = [row for row in estimated if not row["sent_by"]]
    assert not [row for row in inside if row["name"] not in names]
    assert bool(inside) == (num_workers == 1)
    sent = collections.Counter()
    for row in estimated:
        if row["sent_by"]:
            sent[row["sent_by"], row["num_bytes"]] += row["times"]
    # What all-reduces give is as large as what they take.
    known = collections.Counter((op, size) for _, op, size in ran if op == "EplAllReduce")
    assert known == {key: times for key, times in sent.items() if key[0] == "EplAllReduce"}
    types = collections.Counter(op for _, op, _ in ran if op in COLLECTIVES)
    by_type = collections.Counter()
    for (op, _), times in sent.items():
        by_type[op] += times
    assert types == by_type


@pytest.mark.once
def test_what_is_exchanged(two_devices):
    estimated, ran = two_devices(EXCHANGES, 2, 8, **EXCHANGED)
    assert {row["times"] for row in estimated if row["phase"] != "apply"} == {2}  # once for each micro-batch
    check_exchanges(estimated, ran, 1)
