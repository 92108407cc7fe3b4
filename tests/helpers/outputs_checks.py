"""Comparisons of what runs have shown and written."""

import numpy as np

from tests.helpers.checks import assert_same, pairs


def assert_same_metrics(got, want):
    history, totals = got
    wanted, wanted_totals = want
    for number, ((updated, values), (other_updated, other_values)) in enumerate(pairs(history, wanted)):
        for name in other_values:
            assert_same(updated[name], other_updated[name], what="update of %s after step %d" % (name, number))
            assert_same(values[name], other_values[name], what="%s after step %d" % (name, number))
    assert set(totals) == set(wanted_totals)
    for name in wanted_totals:
        if not name.endswith("_tensor"):  # a mean of the batches' means: one batch on one device, several here
            assert_same(totals[name], wanted_totals[name], what=name)
    different = {str(values["mean"]) for _, values in wanted}
    assert len(different) == len(wanted)


def assert_same_summaries(got, want):
    """One event file each, of the same points in the same order, and the same lines logged."""
    assert len(got["shown"]) == len(want["shown"]) == 4
    for one, other in pairs(got["shown"], want["shown"]):
        assert set(one) == set(other)
        for name in other:
            assert_same(one[name], other[name], what=name)
    assert got["names"] == want["names"]
    assert any(name.startswith("timeline-") for name in got["names"])
    for key in ("files", "own"):
        ((points, graphs),) = got[key]
        ((wanted, wanted_graphs),) = want[key]
        assert [point[:2] for point in points] == [point[:2] for point in wanted]
        assert graphs == wanted_graphs
        for (step, tag, value), (_, _, other) in pairs(points, wanted):
            if isinstance(other, (np.ndarray, np.float32)):
                assert_same(value, other, what="%s at step %d" % (tag, step))
            else:
                assert value == other


_ROWS = np.arange(16, dtype=np.float32).reshape([8, 2])
_TEXTS = [("text %d" % number).encode() for number in range(8)]
_SIGNS = np.array([1, -1, 2, 3, -4, -5, 6, 7], np.float32)


def assert_merged_as_named(results, devices):
    """The values of outputs:merged in each worker, with that many devices a worker."""
    everywhere = len(results) * devices
    rows, texts, signs = (np.split(np.array(each), everywhere) for each in (_ROWS, _TEXTS, _SIGNS))
    for result in results:
        first = result["index"] * devices
        for where, chosen in (("GLOBAL", range(everywhere)), ("LOCAL", range(first, first + devices))):
            value = {name: result["values"]["%s %s" % (where, name)] for name in _NAMES}
            sums = [rows[i].sum() for i in chosen]
            np.testing.assert_array_equal(value["scalar concat"], sums)
            np.testing.assert_array_equal(value["string concat"], np.concatenate([texts[i] for i in chosen]))
            np.testing.assert_array_equal(value["scalar string concat"], [texts[i][0] for i in chosen])
            kept = np.concatenate([signs[i][signs[i] > 0] for i in chosen])
            np.testing.assert_array_equal(value["uneven concat"], kept)
            np.testing.assert_array_equal(value["bool concat"], np.concatenate([rows[i] > 2 for i in chosen]))
            assert value["int64 sum"] == int(sum(sums)) and value["int64 sum"].dtype == np.int64
            np.testing.assert_array_equal(value["matrix sum"], [sum(rows[i].sum(0) for i in chosen)])
            mean = np.mean([rows[i].mean() for i in chosen])
            assert value["double mean"] == mean and value["double mean"].dtype == np.float64
            assert value["half mean"] == np.float16(mean) and value["half mean"].dtype == np.float16
        found = result["collections"]
        for name, operation in result["names"].items():
            where, kind = name.split()[0], name.split()[-1]
            assert operation in found["%s_%s_objects" % (where.lower(), kind)]
        assert sum(len(names) for names in found.values()) == len(result["names"])


_NAMES = [
    "scalar concat",
    "string concat",
    "scalar string concat",
    "uneven concat",
    "bool concat",
    "int64 sum",
    "matrix sum",
    "double mean",
    "half mean",
]
