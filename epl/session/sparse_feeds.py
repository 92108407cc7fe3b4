"""Fed sparse tensors: three arrays, divided together by the rows of the batch that entries are in.

of a part: indices   those in its rows, counted from its first one
           values    those in its rows
           shape     with the number of its rows
"""

from dataclasses import dataclass

import numpy as np

from epl.errors import UnsupportedError
from epl.graph import tags
from epl.graph.index import node_of


@dataclass(frozen=True)
class SparseFeed:
    """One of the three.

    Attributes:
      name: of the tensor.
      indices, shape: of the tensors that are fed the indices and the shape; "" for a shape that is not fed.
    """

    name: str
    indices: str
    shape: str

    def is_whole(self, feeds):
        """Whether the indices and the shape are among the feeds, so that it is known which entries are whose."""
        return self.indices in feeds and self.shape in feeds

    def rows(self, feeds, count):
        """How many rows the batch has that is to be divided by `count`.

        Raises:
          UnsupportedError: the indices or the shape are not among the feeds.
        """
        if not self.is_whole(feeds):
            raise UnsupportedError(
                "'%s' is fed entries of a sparse tensor, which belong to %d parts of the batch (copies of the model in "
                "this worker, micro-batches counted), but %s, so that nobody knows which are whose. Feed a whole "
                "tensor, made by tf.sparse_placeholder with an open number of rows (a shape of [None, ...], or none)."
                % (
                    self.name,
                    count,
                    "its shape is not fed" if self.indices in feeds else "its indices are not fed",
                )
            )
        return int(feeds[self.shape][0])

    def part(self, feeds, begin, end):
        """The part of the fed value for the rows from `begin` to `end`, that one not included."""
        value = np.asarray(feeds[self.name])
        if self.name == self.shape:
            return np.concatenate([[end - begin], value[1:]]).astype(value.dtype)
        rows = np.asarray(feeds[self.indices])[:, 0]
        own = value[(rows >= begin) & (rows < end)]
        if self.name == self.indices:
            own[:, 0] -= begin
        return own


def sparse_feeds(graph, names):
    """dict of a fed tensor to its SparseFeed.

    Args:
      graph: the Graph that the program has built.
      names: of fed tensors.
    """
    found = {}
    for name in names:
        known = tags.sparse_of(graph.nodes[node_of(name)])
        if known is not None:
            found[name] = SparseFeed(name, *(each and each + ":0" for each in known))
    return found
