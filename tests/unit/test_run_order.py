"""In which order TensorFlow's executor comes upon the consumers of a node that has many."""

import pytest

from epl.graph.index import NodeInput
from epl.plan.cost import run_order
from epl.plan.cost.run_order import RunOrders

pytestmark = pytest.mark.once


def test_edges_lie_in_tables_by_their_addresses():
    """Worked out by hand. The first eight begin at entry 0 and go on by steps of 1, 2, 3, ...; the ninth begins at 1.
    Before the seventh the table of eight entries becomes one of sixteen."""
    assert run_order._as_in_table([32 * place for place in range(9)]) == [0, 1, 8, 4, 6, 2, 3, 7, 5]


@pytest.mark.parametrize("count", [9, 12, 13, 25, 26, 300])
def test_tables_have_room_for_all(count):
    addresses = run_order._Addresses(1)
    assert sorted(run_order._as_in_table([addresses.of(i) for i in range(count)])) == list(range(count))


def orders_of(consumers, tensors=1, draws=8):
    """The orders of the consumers of one node."""
    names = ["a"] + ["c%d" % i for i in range(consumers)]
    inputs = {name: [NodeInput("a", i) for i in range(tensors)] for name in names[1:]}
    orders = RunOrders(dict(inputs, a=[]), names, frozenset(), frozenset(), lambda name: name != "a")
    found = [orders.order(draw) for draw in range(draws)]
    assert all(sorted(order) == sorted(names) for order in found)
    return found


def test_few_edges_are_in_order_and_many_by_chance():
    """Twice as many edges where each consumer takes two tensors."""
    assert len({tuple(order) for order in orders_of(8)}) == 1
    assert len({tuple(order) for order in orders_of(5, tensors=2)}) > 1
    found = orders_of(9)
    assert len({tuple(order) for order in found}) > 1
    assert found[0] == ["a"] + ["c%d" % i for i in range(9)] and found == orders_of(9)
