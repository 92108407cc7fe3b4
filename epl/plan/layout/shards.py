"""How the variables of `epl.split` scopes, and what is computed of them, are divided over devices; so are the rows of
what `epl.replicate` holds beside it, or by itself where its batch has a fixed size."""

from dataclasses import dataclass, replace
from typing import Dict

from epl.config import composes
from epl.errors import PlanError, UnsupportedError
from epl.graph import tags
from epl.graph.control_flow import inside_control_flow
from epl.graph.functions import Functions
from epl.partition.entries import COMBINES
from epl.partition.hinted import Hints, hints_of
from epl.partition.marks import Marks
from epl.plan.facts.user_collectives import user_collectives
from epl.plan.layout.layout import ROWS, is_split, num_copies, shards_of
from epl.plan.layout.stages import used_taskgraphs
from epl.program.placement import WHOLE
from epl.rules import effects, tensors

# What a lookup in the scope of its table may go through; and one of a sparse batch, as feature columns make it.
_HANDS_ON = frozenset(["Identity"])
_ROW_BY_ROW = COMBINES | tensors.ROW_BY_ROW


@dataclass(frozen=True)
class Hinted:
    """What is known before a program is partitioned.

    Attributes:
      again: node that computes something again to the one that it is a copy of.
      hints: the Hints.
    """

    again: Dict[str, str]
    hints: Hints


def plan_hints(program, target):
    """What users have said about where tensors lie, as Hinted; None where there is nothing to divide.

    Raises:
      UnsupportedError: the model uses what does not go together with `epl.split` in this version.
    """
    split = _split(program)
    if split is None:
        return None
    _check_settings(program, target, split)
    return Hinted(program.again, hints_of(program.graph))


def plan_shards(program, target):
    """The Marks of a program that has nodes for hints: what devices divide; None where there is nothing to divide.

    Raises:
      PlanError: a variable of an `epl.split` scope has no shape that is known.
    """
    split = _split(program)
    if split is None:
        return None
    used = used_taskgraphs(program)
    marks = _marks(program, shards_of(used), used, hints_of(program.graph))
    _check_shapes(program, marks.variables, split.where)
    scope = split.where if split.kind == "split" else None
    return replace(marks, machine=target.cluster.machine, scope=scope)


def _split(program):
    """The first TaskGraph whose devices divide tensors, or None."""
    return next((t for t in used_taskgraphs(program) if is_split([t])), None) if program.role is None else None


def _rows(program, taskgraphs):
    """(nodes that compute on a batch which devices divide, nodes that give it)."""
    inside = inside_control_flow(program.graph)
    indices, nodes = {t.index for t in taskgraphs if t.kind in ("replicate", ROWS)}, program.graph.nodes
    rows = {
        name
        for name, node in nodes.items()
        if tags.get_int(node, tags.TASKGRAPH, -1) in indices and tags.phase(node) == tags.FORWARD and name not in inside
    }
    for name in program.graph.find(tensors.LOOKUPS.__contains__):
        rows.update([name] if _until_rows(program.graph, name, rows, _HANDS_ON) else ())
    for name in program.graph.find(COMBINES.__contains__):
        if name not in rows and tags.phase(nodes[name]) == tags.FORWARD and name not in inside:
            rows.update(_until_rows(program.graph, name, rows, _ROW_BY_ROW))
    given = program.graph.find(lambda op: op in effects.SOURCES or op in effects.PLACEHOLDERS)
    return frozenset(rows), frozenset(name for name in given if name not in inside)


def _until_rows(graph, begin, rows, between):
    """What a node of another scope gives rows through that devices divide.

    Args:
      graph: the Graph.
      begin: the node's name.
      rows: nodes that compute on rows which devices divide.
      between: the operation types that may lie in between.

    Returns:
      The node and what lies in between, in the forward pass; nothing where something else takes the rows, or none does.
    """
    waiting, found, reached = [begin], {begin}, False
    while waiting:
        for name in graph.edges.data_consumers.get(waiting.pop(), ()):
            if name in rows:
                reached = True
            elif tags.phase(graph.nodes[name]) == tags.FORWARD and name not in found:
                if graph.nodes[name].op not in between:
                    return frozenset()
                found.add(name)
                waiting.append(name)
    return frozenset(found) if reached else frozenset()


def _marks(program, shards, taskgraphs, hints):
    """The Marks of a program with these TaskGraphs."""
    indices = {t.index for t in taskgraphs if t.kind == "split"}
    variables = _variables_in(program, indices).union(
        n for n, placement in hints.variables.items() if placement != WHOLE
    )
    variables -= {name for name, placement in hints.variables.items() if placement == WHOLE}
    tensors = {} if program.merge_points is None else dict.fromkeys(program.merge_points.whole, WHOLE)
    tensors.update((name, WHOLE) for each in program.checked for name in each.whole)
    tensors.update((node, hints.tensors[tensor]) for node, tensor in hints.nodes.items())
    return Marks(shards, variables, tensors, hints.tensors, hints.variables, *_rows(program, taskgraphs))


def _variables_in(program, indices):
    """The variables that were created in TaskGraphs, given by their numbers, but for the counts of metrics."""
    nodes, known = program.graph.nodes, program.variables.values()
    own = (v.name for v in known if tags.get_int(nodes[v.name], tags.TASKGRAPH, -1) in indices and not v.is_metric)
    return frozenset(own)


def _check_shapes(program, names, where):
    """Raises PlanError for variables of which nobody can say how large a part is."""
    for name in program.graph.in_order(names):
        shape = program.variables[name].shape
        if shape is None or -1 in shape:
            raise PlanError(
                "the shape of the variable '%s', which epl.split at %s is to divide, is not known (%s). Give it a "
                "static shape (leave out validate_shape=False), build it outside of the scope, or keep it whole on "
                "each device with epl.whole."
                % (name, where, "of any rank" if shape is None else ", ".join(str(n) if n >= 0 else "?" for n in shape))
            )


def _check_settings(program, target, split):
    """Raises UnsupportedError for what is not known to compute the same with tensors that a TaskGraph divides."""
    what = "epl.split" if split.kind == "split" else "epl.replicate(%d) of a batch of fixed size" % split.device_count
    one, collectives = composes.SPLIT if split.kind == "split" else composes.ROWS, user_collectives(program.graph)
    features = composes.in_force(target.config.to_dict()) | {one}
    features -= {composes.LOCAL_SGD} if num_copies(program, target) == 1 else set()
    with_ops = [composes.COLLECTIVES] if collectives else []
    names = {"devices": split.device_count, "node": collectives[0].name if collectives else ""}
    for other in [each.other for each in composes.REFUSALS if each.one is one and each.other in features] + with_ops:
        raise composes.refused(one, other, **names)
    _check_functions(program, what)


def _check_functions(program, what):
    """Raises for functions of the model that give something else each time: devices could get different things."""
    functions = Functions(program.graph.library)
    differing = effects.DIFFERING
    if not program.graph.find("IteratorGetNextAsOptional".__eq__):
        differing = differing - {"OptionalGetValue"}  # by it gradients of branches take what the forward pass made
    for node in functions.callers(program.graph.nodes.values()):
        if "Dataset" in node.op or node.op in effects.SHARED_RESOURCES:
            continue  # reads data, once for all devices of a worker
        if functions.calls(node, lambda body: body.op in differing, "impure"):
            raise UnsupportedError(
                "'%s' calls a function (a loop, a branch, a tf.function) that draws random numbers or reads data, "
                "which does not go together with %s in this version: the devices could get different ones. Do that "
                "outside of the function." % (node.name, what)
            )
