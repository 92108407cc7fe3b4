"""How much each worker counts whose losses are means over the rows that it is fed."""

import numpy as np
import pytest

from epl.session.feeding import Feeding
from epl.session.sparse_feeds import SparseFeed

INDICES, SHAPE = np.array([[0, 0], [2, 1]]), np.array([5, 3])


def sparse(shape="s/shape"):
    return {
        name: SparseFeed(name, "s/indices", shape) for name in ("s/indices", "s/shape") if name == "s/indices" or shape
    }


@pytest.mark.parametrize(
    "feeds, rows",
    [
        ({"x": np.ones([5, 2])}, 5),
        ({"x": np.ones([5, 2]), "y": [1, 2, 3, 4, 5]}, 5),
        ({"x": np.ones([5, 2]), "rate": 0.5}, 5),
        ({"x": np.ones([5, 2]), "s/indices": INDICES, "s/shape": SHAPE}, 5),
        ({"x": np.ones([5, 2]), "s/indices": INDICES}, -1),
        ({"x": np.ones([5, 2]), "y": [1, 2, 3]}, -1),
        ({"rate": 0.5}, -1),
        ({}, -1),
    ],
)
def test_the_rows_of_a_batch(feeds, rows):
    feeding = Feeding(
        tuple(feeds), batches=tuple(feeds), shares=("share",), sparse=sparse("s/shape" if "s/shape" in feeds else "")
    )
    assert feeding.counted(feeds) == rows
    assert Feeding(tuple(feeds), batches=tuple(feeds)).counted(feeds) == -1  # nothing counts by them


@pytest.mark.parametrize(
    "rows, shares",
    [((5, 3), (1.25, 0.75)), ((4, 4), None), ((5, -1), None), ((-1, -1), None), ((6, 2, 1), (2, 2 / 3, 1 / 3))],
)
def test_shares_are_by_rows_where_these_differ_and_all_are_known(rows, shares):
    feeding = Feeding(shares=("share", "epl_instance_1/share"))
    for worker in range(len(rows)):
        fed = feeding.shared(rows, worker)
        assert list(fed) == (["share:0", "epl_instance_1/share:0"] if shares else [])
        assert all(value.dtype == np.float32 for value in fed.values())
        np.testing.assert_allclose(list(fed.values()), [shares[worker]] * 2 if shares else [])
