"""Of which data sets a checkpoint keeps how far training has read them (checkpoint.data_position)."""

import collections
import hashlib
import logging
from dataclasses import dataclass
from typing import Tuple

from epl.errors import UnsupportedError
from epl.graph import tags
from epl.graph.bodies import Bodies
from epl.plan.facts import data_ops
from epl.plan.facts.names import PREFIX
from epl.plan.input.streams import DataStream, find_streams
from epl.rules import effects

_LOG = logging.getLogger("epl")

_KEY = "checkpoint.data_position"
GLOBAL = "global"


@dataclass(frozen=True)
class Position:
    """An iterator that training reads.

    Attributes:
      iterator: its node.
      form: digest of what its data sets are made of, apart from values: the position is one in data of that form.
      counted: whether each get_next() reads one element of it in each run that reaches it.
      streams: what it goes through, where that has one order for all workers ("global").
    """

    iterator: str
    form: str
    counted: bool
    streams: Tuple[DataStream, ...] = ()

    @property
    def state(self):
        """The node that gives its position, as TensorFlow writes it: text."""
        return "%s_position/state/%s" % (PREFIX, self.iterator)

    @property
    def given(self):
        """The placeholder of such a text."""
        return "%s_position/given/%s" % (PREFIX, self.iterator)

    @property
    def take_up(self):
        """The node whose run puts the iterator where the placeholder says."""
        return "%s_position/take_up/%s" % (PREFIX, self.iterator)

    @property
    def skip(self):
        """The node whose run reads one element, for nobody."""
        return "%s_position/skip/%s" % (PREFIX, self.iterator)


def find_positions(model, analysis, role, config):
    """A tuple of Position. What training takes besides, and what therefore begins anew, is named in the log.

    Args:
      model: the Program, with one copy of the model.
      analysis: its Analysis.
      role: of the graph, None for one that trains.
      config: an epl.Config.
    """
    if not config.checkpoint.data_position or not model.apply_calls or role is not None:
        return ()
    graph, bodies = model.graph, Bodies(model.graph)
    updates = [name for name in analysis.writes if tags.phase(graph.nodes[name]) == tags.APPLY]
    iterators, others, drawn, not_counted = [], [], [], set()
    for name in graph.in_order(graph.ancestors(updates)):
        node = graph.nodes[name]
        if node.op in data_ops.GET_NEXT:
            iterator = data_ops.iterator_of(bodies.main, node.input[0])
            found = _fed_by_handle(graph, bodies) if iterator is None else [iterator]
            iterators.extend(found)
            if iterator is None or name in analysis.in_control_flow:
                not_counted.update(found)
        elif node.op in effects.SOURCES:
            others.append(name)
        elif effects.kind_of(node.op) == effects.SEEDED:  # from a state of its own, which nothing can read
            drawn.append(name)
    if not iterators:
        _LOG.warning("%s has no effect: training reads no data set (tf.data) outside of functions", _KEY)
    if others:
        _LOG.warning("%s: no position is kept of %s: it begins anew when training goes on", _KEY, _some(others))
    if drawn:
        _LOG.warning("%s: random numbers of %s begin anew when training goes on", _KEY, _some(drawn))
    forms, is_global = _forms(bodies), config.checkpoint.data_position == GLOBAL
    return tuple(
        Position(
            name,
            forms[name],
            name not in not_counted,
            _streams(bodies, graph, name, name not in not_counted) if is_global else (),
        )
        for name in collections.OrderedDict.fromkeys(iterators)
    )


def _streams(bodies, graph, iterator, counted):
    if not counted:
        raise UnsupportedError(
            "%s=\"global\": '%s' is read in a loop, a branch or by a handle, so that nobody can tell how often. Call "
            'get_next() outside of these, or set %s to "per_worker", which goes on with the same number of workers.'
            % (_KEY, iterator, _KEY)
        )
    return find_streams(bodies, graph, iterator)


def _fed_by_handle(graph, bodies):
    """The iterators of which a program may feed the handle."""
    handles = graph.in_order(graph.find("IteratorToStringHandle".__eq__))
    found = [data_ops.iterator_of(bodies.main, graph.nodes[name].input[0]) for name in handles]
    return [name for name in found if name is not None]


def _some(names):
    shown = ["'%s'" % name for name in names[:3]]
    return ", ".join(shown) + (" and %d more" % (len(names) - 3) if len(names) > 3 else "")


def _forms(bodies):
    """The digest of each iterator: of the operation types, in functions too, of all data sets that it may have."""
    types = collections.defaultdict(list)
    for node in bodies.main.nodes.values():
        if node.op == "MakeIterator":
            iterator = data_ops.iterator_of(bodies.main, node.input[1])
            types[iterator].extend(_types(bodies, bodies.main, node.input[0]))
        elif node.op == "OneShotIterator":
            factory = bodies.functions[node.attr["dataset_factory"].func.name]
            types[node.name].extend(_types(bodies, factory, factory.results[0]))
        elif node.op in data_ops.ITERATOR_HANDLES:
            types[node.name].append(node.op)
    return {name: hashlib.sha256(" ".join(sorted(found)).encode()).hexdigest()[:16] for name, found in types.items()}


def _types(bodies, body, text):
    every = dict(bodies.functions, **{bodies.main.name: bodies.main})
    return [every[name].nodes[node].op for name, node in data_ops.behind(bodies, body, text)]
