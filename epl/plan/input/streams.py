"""The one order of elements in which workers take their turns, and how far they are in it together.

    range -> shuffle -> repeat -> [here: element n] -> every second one -> map -> batch -> iterator

With checkpoint.data_position="global" shares are taken behind all but what makes one of each element, in order, or
batches of a known number of them. Then how often an iterator was read tells how much was taken, by all workers; and any
number of workers goes on behind it.
"""

import hashlib
from dataclasses import dataclass

from epl.errors import UnsupportedError
from epl.graph.types import STRING
from epl.plan.facts import data_ops
from epl.plan.facts.names import PREFIX
from epl.plan.input.data_shares import RecordShare
from epl.plan.input.dividing import constant_of, ends_of, find_places
from epl.plan.input.read_alike import read_alike
from epl.rules import datasets, effects

# Numbers that take more are data.
_LIMIT_BYTES = 64
_KEY = 'checkpoint.data_position="global"'
_OR = 'Set checkpoint.data_position to "per_worker", which goes on with the same number of workers.'


@dataclass(frozen=True)
class DataStream:
    """What one initializer of an iterator lets it go through.

    Attributes:
      maker: that node.
      node: the data set that gives the order.
      order: digest of what that follows from: types of data sets, and numbers such as seeds and sizes of batches.
    """

    maker: str
    node: str
    order: str

    @property
    def skip(self):
        """The data set without the elements that were taken before."""
        return "%s_position/rest/%s" % (PREFIX, self.node)

    @property
    def taken(self):
        """The node that says how many these are; fed where training goes on, else 0."""
        return "%s_position/taken/%s" % (PREFIX, self.node)


def find_streams(bodies, graph, iterator):
    """A tuple of the Streams of an iterator.

    Args:
      bodies: the Bodies of the user's graph.
      graph: that graph.
      iterator: name of its node.

    Raises:
      UnsupportedError: nobody could tell how far workers are in it.
    """
    makers = [
        node.name
        for node in bodies.main.nodes.values()
        if node.op == "MakeIterator" and data_ops.iterator_of(bodies.main, node.input[1]) == iterator
    ]
    if not makers:
        raise UnsupportedError(
            "%s: '%s' is no iterator with an initializer, so that it cannot begin anywhere else than at its beginning. "
            "Use make_initializable_iterator(). %s" % (_KEY, iterator, _OR)
        )
    return tuple(_stream(bodies, graph, maker) for maker in makers)


def _stream(bodies, graph, maker):
    fed = [name for name in graph.ancestors([maker]) if effects.kind_of(graph.nodes[name].op) == effects.FED]
    if fed:
        raise UnsupportedError(
            "%s: the data set of '%s' is made of what is fed ('%s'), which nobody feeds when training goes on. Name it "
            "in the program. %s" % (_KEY, maker, fed[0], _OR)
        )
    ends = [end for end in ends_of(bodies)[""] if end[0] == maker]
    (place,) = find_places(bodies, bodies.main, ends, in_order=True).found
    share = RecordShare("", place.node, place.takers, place.node, place.after)
    seeded = read_alike(bodies, [share]).seeded
    if seeded:
        raise UnsupportedError(
            "%s: '%s', whose order comes before the workers' shares, has no seed, so that it would be another one when "
            "training goes on. Give it a seed. %s" % (_KEY, seeded[0][1], _OR)
        )
    stream = DataStream(maker, place.node, _order_of(bodies, place.node))
    elements_of(bodies, stream)
    return stream


def _order_of(bodies, name):
    """Names of files and the like do not count, as they may have moved; nor do records that the graph itself holds."""
    every = dict(bodies.functions, **{"": bodies.main})
    known = []
    for body, each in data_ops.behind(bodies, bodies.main, name):
        node = every[body].nodes[each]
        value = node.attr["value"].tensor if node.op == "Const" else None
        is_number = value is not None and value.dtype != STRING and value.ByteSize() <= _LIMIT_BYTES
        known.append("%s %s" % (node.op, value.SerializeToString().hex() if is_number else ""))
    return hashlib.sha256("\n".join(sorted(known)).encode()).hexdigest()[:16]


def elements_of(bodies, stream):
    """How many elements of a DataStream go into one that its iterator gives.

    Args:
      bodies: Bodies of the graph, before or after it was rewritten.
      stream: the DataStream.

    Raises:
      UnsupportedError: a batch has a size that the graph does not tell.
    """
    main, count = bodies.main, 1
    node = main.producer(main.nodes[stream.maker].input[0])
    while node.name not in (stream.node, stream.skip):
        if datasets.kind_of(node.op) == datasets.BATCH:
            size = constant_of(main, node.input[_size_input(node)])
            if size is None:
                raise UnsupportedError(
                    "%s: the graph does not tell how many elements the batches of '%s' (%s) have. Give a number. %s"
                    % (_KEY, node.name, node.op, _OR)
                )
            count *= size
        node = main.producer(node.input[0])
    return count


def _size_input(node):
    position = data_ops.BATCHES.get(node.op, 1)  # padded ones, and dense to sparse, have it there too
    return 1 + len(node.attr["Targuments"].list.type) if position is None else position
