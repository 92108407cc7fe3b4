"""The table of faults: what is drawn from it, and what counts as wrong."""

import collections

import pytest

from tests.faults import table
from tests.faults.table import ALL, Injection, Outcome, judge

pytestmark = pytest.mark.once

GOOD = Outcome(137, 3.0, 1, "", [], [4], [4], True)
KILLED = Injection("kill", "middle", "2x1", 1)


def test_every_fault_moment_and_layout_is_in_it():
    assert {each.fault for each in ALL} == set(table.FAULTS)
    assert {each.moment for each in ALL} == set(table.MOMENTS)
    assert {each.layout for each in ALL} == set(table.LAYOUTS)
    assert len(set(ALL)) == len(ALL)
    assert [Injection.parse(str(each)) for each in ALL] == ALL
    with pytest.raises(ValueError, match="'kill:never:2x1:0' is no injection"):
        Injection.parse("kill:never:2x1:0")


def test_what_is_drawn():
    assert table.drawn(30, 5) == table.drawn(30, 5) != table.drawn(30, 6)
    assert {each.fault for each in table.drawn(len(table.FAULTS), 1)} == set(table.FAULTS)
    assert sorted(table.drawn(len(ALL), 3)) == sorted(ALL)
    assert len(table.drawn(1000, 1)) == 1000


@pytest.mark.parametrize(
    "changes, kind",
    [
        ({}, None),
        ({"status": None}, "hang"),
        ({"status": 1}, "wrong status"),
        ({"seconds": 100.0}, "late"),
        ({"blamed": 0}, "wrong culprit"),
        ({"blamed": None}, "wrong culprit"),
        ({"alive": [7]}, "left behind"),
        ({"readable": []}, "lost checkpoint"),
        ({"acted": False}, "not injected"),
    ],
)
def test_what_is_wrong(changes, kind):
    found = [each for each, _ in judge(KILLED, GOOD._replace(**changes))]
    assert found == ([] if kind is None else [kind])
    assert set(found) <= set(table.KINDS)


def test_a_checkpoint_has_to_be_there_after_the_first_save():
    none = GOOD._replace(checkpoints=[], readable=[])
    assert judge(KILLED._replace(moment="first"), none) == []
    assert [kind for kind, _ in judge(KILLED._replace(moment="save"), none)] == ["lost checkpoint"]


def test_the_seconds_fit():
    """A stopped worker is noticed by a time-out, so its limit is above that; and limits end before whole runs do."""
    limits = collections.defaultdict(set)
    for each in ALL:
        limits[each.fault].add(each.expected.within_s)
    assert min(limits["stop"]) > table.TIMEOUT_S + 5 and max(max(each) for each in limits.values()) < 2 * table.WHOLE_S
