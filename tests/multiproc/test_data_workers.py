"""Files and records divided over worker processes: together they read what one device reads, each record once."""

import pytest

from tests.helpers.checks import assert_same, pairs
from tests.multiproc.test_weights_workers import WEIGHTS, check
from tests.numerics.test_split_models import FIXED_PROGRAMS
from tests.numerics.test_split_models import check as check_split

DATA = "tests.helpers.programs.data:"
SLICING = {"io.slicing": True}
UNBALANCED = {"io.slicing": True, "io.unbalanced_io_slicing": True}
DROPPING = {"io.slicing": True, "io.drop_last_files": True}
RECORDS = {"io.shard_dataset": True}
ALL = list(range(12))


@pytest.fixture(name="folder")
def folder_with_files(plain, tmp_path):
    plain(DATA + "write", str(tmp_path))
    return str(tmp_path)


def test_files_are_divided(plain, two_workers, folder):
    makes = "tfrecord tfrecord_parallel text_lines fixed_length csv listed interleaved captured inside".split()
    # A one-shot iterator's function cannot capture what a data set's function has captured.
    cases = [(make, iterator) for make in makes for iterator in ("initializable", "one_shot")]
    cases = [case for case in cases if case != ("captured", "one_shot")] + [("tfrecord", "handle")]
    want = [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]
    assert [sorted(read) for read in plain(DATA + "read_many", folder, cases)] == [ALL] * len(cases)
    labelled = [("with_labels", "initializable")]
    for worker, reads in enumerate(two_workers(DATA + "read_many", folder, cases + labelled, SLICING)):
        assert sorted(reads.pop()) == [[0, 6], [3, 9]][worker]  # labels go with their files
        assert {case: sorted(read) for case, read in pairs(cases, reads)} == {case: want[worker] for case in cases}


def test_queues_of_files_are_divided(two_workers, folder):
    one, other = two_workers(DATA + "queues", folder, ["reader", "whole files", "slices"], SLICING)
    assert [sorted(read) for read in one] == [[0, 1, 2, 6, 7, 8], [0, 6], [0, 6]]
    assert [sorted(read) for read in other] == [[3, 4, 5, 9, 10, 11], [3, 9], [3, 9]]


def test_what_does_not_divide(two_workers, folder):
    both = dict(SLICING, **RECORDS)
    cases = [
        ("tfrecord", UNBALANCED, 3, [[0, 1, 2, 6, 7, 8], [3, 4, 5]]),
        ("tfrecord", DROPPING, 3, [[0, 1, 2], [3, 4, 5]]),
        ("names_in_a_file", UNBALANCED, 4, [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]),
        ("tfrecord", both, 4, [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]),
        ("slices", both, 4, [[0, 2], [1, 3]]),
        ("tfrecord", SLICING, 3, "has 3 files, which do not divide evenly over 2 workers (3 = 2 * 1 + 1). Set io.unba"),
        ("tfrecord", SLICING, 1, "has 1 file for 2 workers, so worker 1 would have no data"),
        ("tfrecord", UNBALANCED, 1, "has 1 file for 2 workers, so worker 1 would have no data"),
        ("tfrecord", DROPPING, 1, "has 1 file for 2 workers, so worker 1 would have no data"),
        ("names_in_a_file", SLICING, 4, "Set io.unbalanced_io_slicing=True"),
        ("one_element", RECORDS, 4, "has one element (from_tensors), which cannot be divided over 2 workers"),
        ("few_rows", RECORDS, 4, "has 1 record for 2 workers, so worker 1 would have no data"),
        ("taken_lines", UNBALANCED, 4, "each worker reads other files, so that together they would read something el"),
        ("zipped", SLICING, 4, "(ZipDataset) makes of the records of"),
        ("numbered_files", SLICING, 3, "which do not divide evenly over 2 workers"),
    ]
    answers = two_workers(DATA + "refusals", folder, [case[:3] for case in cases])
    for number, (make, config, files, want) in enumerate(cases):
        for worker in range(2):
            kind, got = answers[worker][number]
            if isinstance(want, str):
                assert kind != "read" and want in got, (make, config, got)
            else:
                assert (kind, got) == ("read", want[worker]), (make, config)


def test_records_are_divided(plain, two_workers, folder):
    makes = "numbers slices generated tfrecord zipped csv".split()
    cases = [(make, iterator) for make in makes for iterator in ("initializable", "one_shot")]
    cases = [case for case in cases if case != ("generated", "one_shot")]
    want = {case: ALL if case[0] in ("tfrecord", "zipped", "csv") else ALL[:4] for case in cases}
    for case, read in pairs(cases, plain(DATA + "read_many", folder, cases)):
        assert sorted(read) == want[case], case
    for worker, reads in enumerate(two_workers(DATA + "read_many", folder, cases, RECORDS)):
        for case, read in pairs(cases, reads):
            assert sorted(read) == want[case][worker::2], case


POSITIONS = {
    "taken": [0, 1, 2, 3, 4, 5, 6, 7],
    "skipped": [8, 9, 10, 11],
    "header": [0, 1, 2, 3],
    "headers": [1, 2, 4, 5, 7, 8, 10, 11],
    "windows": [i * 10000 + (i + 1) * 100 + i + 2 for i in range(6)],
    "neighbours": [i * 100 + i + 1 for i in range(7)],
    "repeated": [0, 1, 2, 3, 0, 1],
    "by_hand": [1, 3, 5, 7, 9, 11],
    "listed": ALL,
    "taken_lines": ALL[:7],
    "numbered_files": ALL,
}


@pytest.mark.each_line
def test_what_goes_by_positions_is_read_as_one_device_reads_it(plain, two_workers, folder):
    cases = [(make, iterator) for make in POSITIONS for iterator in ("initializable", "one_shot")]
    for (make, _), read in pairs(cases, plain(DATA + "read_many", folder, cases)):
        assert sorted(read) == sorted(POSITIONS[make])
    both = two_workers(DATA + "read_many", folder, cases, RECORDS)
    for (make, iterator), one, other in zip(cases, *both):
        assert sorted(one + other) == sorted(POSITIONS[make]), (make, iterator)
        assert abs(len(one) - len(other)) <= 1
    assert len(cases) == len(both[0]) == len(both[1])


@pytest.mark.each_line
def test_what_goes_by_positions_of_files(two_workers, folder):
    cases = {"taken_files": ALL[3:9], "headers": POSITIONS["headers"], "numbered_files": ALL}
    read = two_workers(DATA + "read_many", folder, [(make, "initializable") for make in cases], SLICING)
    for (make, want), one, other in zip(cases.items(), *read):
        assert sorted(one + other) == want and len(one) == len(other), make


@pytest.mark.each_line
def test_shuffles_before_shares_are_the_same_on_all_workers(two_workers):
    """Other ones each time that the iterator is initialised, as on one device."""
    together = [set(one + other) for one, other in zip(*two_workers(DATA + "epochs", "shuffled_and_taken", RECORDS))]
    assert [len(each) for each in together] == [10] * 3 and len(set(map(frozenset, together))) == 3


@pytest.mark.each_line
def test_graphs_that_neither_train_nor_evaluate_read_everything(plain, two_workers):
    want = plain(DATA + "beside_training")
    assert want == ([[6], [2, 4, 6]], 3.5)
    for decoded, mean in two_workers(DATA + "beside_training", RECORDS):
        assert decoded == want[0] and mean == pytest.approx(want[1])


def test_one_worker_reads_everything(jobs, folder):
    assert jobs[1, 2](DATA + "read_many", folder, [("tfrecord", "initializable")], SLICING) == [[ALL]]


@pytest.mark.parametrize("layout", [(2, 1), (2, 2)], ids=str)
def test_training_on_divided_files(plain, jobs, folder, layout):
    want = plain(DATA + "train", folder)
    for got in jobs[layout](DATA + "train", folder, SLICING):
        assert_same(got["losses"], want["losses"])
        assert_same(got["weight"], want["weight"])


def test_workers_that_divide_batches_read_their_own_rows(plain, two_workers):
    """Until data ends, with a short batch of two rows."""
    steps, weight = plain(DATA + "unequal", {}, 10, 4)
    assert steps == [[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]]
    found = two_workers(DATA + "unequal", {}, 10, 4, devices=2)
    assert [read for read, _ in found] == [[[[1, 3], [5, 7], [9]]], [[[2, 4], [6, 8], [10]]]]
    assert [own for _, own in found] == pytest.approx([weight] * 2)


@pytest.mark.once
def test_workers_that_divide_tensors_see_all_rows_in_order(plain, two_workers):
    """Until data ends, with a short batch of which one has two rows and the other one."""
    want = plain(DATA + "unequal", {}, 11, 4)
    assert want[0] == [[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11]]]
    for read, weight in two_workers(DATA + "unequal", {}, 11, 4, devices=2, split=True):
        assert read == want[0] and weight == pytest.approx(want[1])


@pytest.mark.parametrize(
    "layout, weights", [((2, 1), [1, 1]), ((2, 1), [1, 2]), pytest.param((2, 2), [1] * 4, marks=pytest.mark.exhaustive)]
)
def test_training_on_rows_that_workers_read_for_one_copy(plain, jobs, layout, weights):
    """Each its own; or, where they have unequally many, all of them. Each micro-batch has the rows that one device's
    has."""
    want = plain(WEIGHTS + "trained", 1, [len(weights)], weights, 2, "data")
    check(
        want, jobs[layout](WEIGHTS + "trained", layout[1], [len(weights)], weights, 2, "data", io__shard_dataset=True)
    )


@pytest.mark.parametrize(
    "layout, devices, program, kind",
    [
        ((2, 1), 2, "fixed_batch", "batches"),
        pytest.param((2, 2), 4, "fixed_batch", "batches", marks=pytest.mark.exhaustive),
        pytest.param((4, 1), 2, "fixed_copies", "divided", marks=pytest.mark.exhaustive),
    ],
)
def test_training_on_rows_that_workers_hand_each_other(plain, jobs, layout, devices, program, kind):
    """Rows of one copy of the model come in the order of one device: fetched logits and dropout are the same."""
    program = FIXED_PROGRAMS + program
    want = plain(program, 1, "momentum", kind, True)
    for got in jobs[layout](program, devices, "momentum", kind, True, io__shard_dataset=True):
        check_split(got, want)


def test_a_worker_without_data_says_so(two_workers):
    one, other = two_workers.outcomes(DATA + "some_worker_without")
    assert other.kind == "NoDataError" and "worker 1 has no data: its input ended before the first" in other.message
    assert one.kind == "WorkerError" and "worker 1" in one.message and "NoDataError" in one.message
