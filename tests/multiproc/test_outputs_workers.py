"""Metrics, summaries and merged fetches of several worker processes."""

import pytest

from epl import tf_compat
from tests.helpers import outputs_checks as checks
from tests.helpers.checks import assert_same

OUTPUTS = "tests.helpers.programs.outputs:"


def test_metrics(plain, two_by_two):
    want = plain(OUTPUTS + "metrics")
    for got in two_by_two(OUTPUTS + "metrics"):
        checks.assert_same_metrics(got, want)


def test_summaries_are_written_by_the_chief(plain, two_workers, tmp_path):
    want = plain(OUTPUTS + "summaries", str(tmp_path / "plain"))
    chief, other = two_workers(OUTPUTS + "summaries", str(tmp_path / "epl"))
    checks.assert_same_summaries(chief, want)
    assert other["files"] == other["own"] == other["names"] == []
    assert [sorted(line) for line in other["shown"]] == [sorted(line) for line in want["shown"]]


@pytest.mark.skipif(tf_compat.line() == "tf2", reason="TF 2.15 has no tf.contrib")
def test_summaries_that_the_graph_writes(plain, two_by_two, tmp_path):
    losses, files = plain(OUTPUTS + "written_by_the_graph", str(tmp_path / "plain"))
    ((points, _),) = files
    assert len(points) == len(losses)
    (chief_losses, chief_files), (_, other_files) = two_by_two(OUTPUTS + "written_by_the_graph", str(tmp_path / "epl"))
    ((got, _),) = chief_files
    assert [point[:2] for point in got] == [point[:2] for point in points]
    assert_same(chief_losses, losses)
    assert_same([point[2] for point in got], [point[2] for point in points])
    assert other_files == []


def test_merged_fetches(two_by_two):
    checks.assert_merged_as_named(two_by_two(OUTPUTS + "merged"), devices=2)
