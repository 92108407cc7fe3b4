"""Faults that are planted in compiled graphs are found by comparing with one device, and the operation is named."""

import pytest

pytestmark = pytest.mark.either_line

PROGRAM = "tests.mutants.compared:found_by_kind"


@pytest.mark.parametrize(
    "strategy, kinds",
    [
        ("data parallelism", ["missing all-reduce", "doubled all-reduce", "wrong scale", "one copy only"]),
        ("micro-batches", ["doubled micro-batch", "swapped gradients", "update twice", "wrong weight"]),
    ],
)
def test_planted_faults_are_found_and_named(two_devices, strategy, kinds):
    found = two_devices(PROGRAM, strategy, len(kinds), kinds)
    assert sorted(kind for kind, *_ in found) == sorted(kinds)
    assert [each for each in found if each[2] != "different" or not each[3]] == []
