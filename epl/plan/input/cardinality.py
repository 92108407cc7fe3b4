"""How many elements data sets have, as far as the graph tells it."""

from epl.plan.facts import data_ops
from epl.plan.input.dividing import RESULT, constant_of
from epl.rules import datasets

ENDLESS = float("inf")


class Cardinality(object):
    """The numbers of elements in a body.

    Args:
      body: the Body.
      places: Places whose elements are divided.
      number: of the shares; counted is the last, which is the smallest.
    """

    def __init__(self, body, places=(), number=1):
        self._body = body
        self._number = number
        self._divided = {taker for place in places for taker in place.takers}

    def of(self, text, taker=None):
        """The number of elements of an input, ENDLESS, or None where it is not known.

        Args:
          text: the input.
          taker: (name, input position) of what takes it; None: its number before it is divided.
        """
        node = self._body.producer(text)
        count = None if node is None else self._count(node)
        if taker in self._divided and count not in (None, ENDLESS):
            return count // self._number
        return count

    def of_node(self, name):
        """The same of a data set, before it is divided."""
        return self._count(self._body.nodes[name])

    def of_end(self, end):
        """The same of what an end takes, (name, input position)."""
        name, position = end
        text = self._body.results[position] if name == RESULT else self._body.nodes[name].input[position]
        return self.of(text, end)

    def _count(self, node):
        if node.op in _COUNTS:
            return _COUNTS[node.op](self, node)
        if node.op in datasets.REPEATS:
            return self._repeat(node)
        if datasets.kind_of(node.op) in (datasets.SAME, datasets.EACH) or node.op.startswith("ShuffleDataset"):
            return self._input(node)
        return None

    def _input(self, node, position=0):
        return self.of(node.input[position], (node.name, position))

    def _constant(self, node, position):
        return constant_of(self._body, node.input[position])

    def _slices(self, node):
        constant = data_ops.behind_identities(self._body, node.input[0])
        if constant is None or constant.op != "Const":
            return None
        return constant.attr["value"].tensor.tensor_shape.dim[0].size

    def _range(self, node):
        start, stop, step = (self._constant(node, position) for position in range(3))
        return max(0, -((start - stop) // step)) if None not in (start, stop, step) and step else None

    def _take(self, node):
        found, count = self._input(node), self._constant(node, 1)
        return None if None in (found, count) else found if count < 0 else min(found, count)

    def _skip(self, node):
        found, count = self._input(node), self._constant(node, 1)
        return None if None in (found, count) else 0 if count < 0 else max(0, found - count)

    def _shard(self, node):
        found, number, index = self._input(node), self._constant(node, 1), self._constant(node, 2)
        if None in (found, number, index) or number < 1:
            return None
        return found if found == ENDLESS else (found - index + number - 1) // number

    def _repeat(self, node):
        found, count = self._input(node), self._constant(node, datasets.REPEATS[node.op])
        if None in (found, count):
            return None
        return found * (ENDLESS if count < 0 else count) if found and count else 0

    def _batch(self, node):
        found, size = self._input(node), self._constant(node, 1)
        if found in (None, ENDLESS) or not size:
            return found if size else None
        return -(-found // size)  # whether a short one counts is left open

    def _all(self, node):
        return [self._input(node, position) for position in range(datasets.num_data_sets(node))]

    def _concatenate(self, node):
        found = self._all(node)
        return None if None in found else sum(found)

    def _zip(self, node):
        found = self._all(node)
        return 0 if 0 in found else None if None in found else min(found)


_COUNTS = {
    "TensorDataset": lambda self, node: 1,
    "TensorSliceDataset": Cardinality._slices,
    "RangeDataset": Cardinality._range,
    "TakeDataset": Cardinality._take,
    "SkipDataset": Cardinality._skip,
    "ShardDataset": Cardinality._shard,
    "BatchDataset": Cardinality._batch,
    "BatchDatasetV2": Cardinality._batch,
    "ConcatenateDataset": Cardinality._concatenate,
    "ZipDataset": Cardinality._zip,
}
