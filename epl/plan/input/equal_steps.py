"""Which data begins again where it ends before that of other workers does (io.equal_steps="repeat")."""

from dataclasses import dataclass

from epl.config import composes
from epl.errors import UnsupportedError
from epl.graph import tags
from epl.graph.bodies import Bodies
from epl.graph.types import DTYPE_BYTES, INT32
from epl.plan.facts import data_ops
from epl.plan.facts.names import PREFIX
from epl.program.collective import ALL_REDUCE, DATA, collective
from epl.rules import effects

_KEY = 'io.equal_steps="repeat"'


@dataclass(frozen=True)
class Repeated:
    """An iterator that training reads.

    Attributes:
      iterator: its node.
      get_next: the node that gives its elements.
      name: of the collective in which workers agree on whether any has data left that it has not seen.
    """

    iterator: str
    get_next: str
    name: str


def find_repeated(model, analysis, mesh, io):
    """A tuple of Repeated; empty where workers need not agree.

    Args:
      model: the Program, with one copy of the model.
      analysis: its Analysis.
      mesh: the Mesh.
      io: the configuration's `io` part.

    Raises:
      UnsupportedError: training reads what cannot begin again, or not for each worker by itself.
    """
    if io.equal_steps != "repeat" or mesh.copies.num_workers == 1 or not model.apply_calls:
        return ()
    graph, bodies = model.graph, Bodies(model.graph)
    updates = [name for name in analysis.writes if tags.phase(graph.nodes[name]) == tags.APPLY]
    found = {}
    for name in graph.in_order(graph.ancestors(updates)):
        node = graph.nodes[name]
        if node.op in data_ops.GET_NEXT and name not in analysis.in_control_flow:
            iterator = _iterator(bodies, node)
            if iterator in found:
                raise UnsupportedError(
                    "%s: training takes data by both '%s' and '%s' from the iterator '%s', so that one could end in "
                    "the middle of a step. Call get_next() once." % (_KEY, found[iterator], name, iterator)
                )
            found[iterator] = name
        elif node.op in effects.SOURCES or bodies.index.calls(node, _gives_data, "gives data"):
            raise UnsupportedError(
                "%s: training reads '%s' (%s), which cannot begin again. The key is for data sets (tf.data) whose "
                "get_next() stands outside of functions, branches and loops; those of generators are among them. Use "
                'such a data set, or set io.equal_steps to "" or "drop".' % (_KEY, name, node.op)
            )
    by_hand = [call for call in model.apply_calls if call.between is not None]
    if not found and by_hand:
        raise composes.refused(composes.BY_HAND, composes.EQUAL_STEPS, variable=by_hand[0].gradients[0][1])
    if not found:
        raise UnsupportedError(
            "%s: training reads no data set (tf.data), and what is fed cannot begin again. Use a data set, or set "
            'io.equal_steps to "" or "drop".' % _KEY
        )
    names = {iterator: "%s_more_data/%s" % (PREFIX, name) for iterator, name in found.items()}
    return tuple(Repeated(each, found[each], name) for each, name in names.items())


def _gives_data(node):
    return node.op in effects.SOURCES


def _iterator(bodies, node):
    iterator = data_ops.iterator_of(bodies.main, node.input[0])
    if iterator is None:
        raise UnsupportedError(
            "%s: '%s' takes data from an iterator that is fed as a string handle, so it is not known which data set "
            "begins again. Build one graph for each data set, or use one iterator that is initialised with either "
            "(tf.data.Iterator.from_structure)." % (_KEY, node.name)
        )
    return iterator


def data_collectives(plan):
    """A Collective of each Repeated of a Plan: whether any worker has data left that it has not seen."""
    return [
        collective(
            each.name,
            ALL_REDUCE,
            DATA,
            (each.get_next,),
            plan.group_of(each.get_next),
            0,
            DTYPE_BYTES[INT32],
            INT32,
            tags.FORWARD,
        )
        for each in plan.repeated
    ]
