r"""Divides the variables of `epl.split` scopes, and what is computed of them, over devices: the program of one of them.
So are the rows of what `epl.replicate` holds beside it, or by itself where its batch has a fixed size.

    x -> MatMul(w [n, 1000]) -> loss      becomes      x -> MatMul(w [n, 500]) -> rows' sums -> all-reduce -> loss

What the devices exchange are nodes of their own (epl.partition.partitioned); epl.passes.sync.join_shards joins them
once there are copies.
"""

import logging
from dataclasses import replace

from epl import tf_compat
from epl.config import composes
from epl.errors import PlanError, UnsupportedError
from epl.graph import tags
from epl.graph.control_flow import inside_control_flow
from epl.graph.functions import Functions
from epl.graph.index import node_of
from epl.partition.entries import COMBINES
from epl.partition.hints import hints_of
from epl.partition.marks import Marks
from epl.partition.partition import partition
from epl.partition.table import ROWS_OF_COPY
from epl.passes.nodes import dtype_of, with_originals
from epl.plan.facts.names import recomputed_name
from epl.plan.facts.user_collectives import user_collectives
from epl.plan.layout.layout import ROWS, is_split
from epl.plan.layout.stages import used_taskgraphs
from epl.program.placement import WHOLE
from epl.rules import effects, tensors

# What a lookup in the scope of its table may go through; and one of a sparse batch, as feature columns make it.
_HANDS_ON = frozenset(["Identity"])
_RESOURCE = "VarHandleOp"
_ROW_BY_ROW = COMBINES | tensors.ROW_BY_ROW

_LOG = logging.getLogger("epl")


def partition_shards(program, target):
    """The program of one of the devices that divide a model; the same program where there is nothing to divide.

    Raises:
      UnsupportedError: the model uses what does not go together with `epl.split` in this version.
      PlanError: a variable of an `epl.split` scope has no shape that is known; or see epl.partition.partition.
    """
    taskgraphs = used_taskgraphs(program)
    if program.role is not None or not is_split(taskgraphs):
        return program
    split = next(t for t in taskgraphs if is_split([t]))
    _check_settings(program, target.config, split)
    shards = split.device_count
    again = {recomputed_name(n): n for n in program.graph.nodes if recomputed_name(n) in program.graph.nodes}
    program = with_originals(program, again)
    hints = hints_of(program.graph, lambda tensor: dtype_of(program.graph, tensor))
    program = with_originals(replace(program, graph=hints.graph), hints.nodes)
    marks = replace(_marks(program, shards, taskgraphs, hints), machine=target.cluster.machine)
    marked = marks.variables
    _check_shapes(program, marked, split.where)
    done = _partition(program, marks)
    _check_places(done, program)
    divided = marked.intersection(done.placements)
    if not divided and split.kind == "split":
        _LOG.warning(
            "epl.split(%d) at %s holds no variable that can be divided, so each of the %d devices computes all of the "
            "model. %s",
            shards,
            split.where,
            shards,
            _advice(program, marked),
        )
    return replace(program, graph=_without_marks(done.graph), partitioned=done)


def _advice(program, marked):
    """What to do so that something is divided: where a scope holds reference variables, what hides them may be it."""
    references = sorted(name for name in marked if program.graph.nodes[name].op != _RESOURCE)
    if not references:
        return "Build the variables of large layers inside of the scope."
    return (
        "'%s' is a reference variable, of which branches and copies hide what takes it, as in tf.feature_column's "
        "input_layer: build it with use_resource=True, or call tf.enable_resource_variables() before the model."
        % references[0]
    )


def _partition(program, marks):
    """The Partitioned program. Where rows of a batch that devices divide would have to be exchanged before what is
    split begins, the devices compute all rows instead."""
    done = partition(program, marks, tf_compat.op_def)
    needs = _needs_other_rows(program, marks, done) if marks.rows else None
    if needs is None:
        return done
    _LOG.info(
        "'%s' needs rows of the batch that other devices would have, so each of the %d devices computes all rows of "
        "what epl.replicate holds. Rows are divided where each is computed by itself.",
        needs,
        marks.shards,
    )
    return partition(program, replace(marks, rows=frozenset(), batches=frozenset()), tf_compat.op_def)


def _needs_other_rows(program, marks, done):
    """The first node that needs rows of other devices before anything that is split, in a step that trains, or for a
    loop or a branch; None if there is none."""
    trained = done.graph.ancestors([name for name, node in done.graph.nodes.items() if tags.phase(node) == tags.APPLY])
    split = _with_moves_before(program.graph, program.graph.descendants(marks.variables, data_only=True))
    inside = inside_control_flow(program.graph)
    for each in done.collectives:
        if each.wanted_by in inside and each.wanted_by not in split:
            return each.wanted_by
        if each.kind in ("all_gather", "all_to_all") and each.node in trained:
            if each.wanted_by in marks.rows and each.wanted_by not in split:
                return each.wanted_by
    return None


def _with_moves_before(graph, names):
    """Some nodes, and those before them that only move what these take."""
    found, stack = set(names), list(names)
    while stack:
        for tensor in graph.inputs[stack.pop()]:
            if tensor.index >= 0 and tensor.node not in found and graph.nodes[tensor.node].op in tensors.MOVES:
                found.add(tensor.node)
                stack.append(tensor.node)
    return found


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
    tensors.update((node, hints.tensors[tensor]) for node, tensor in hints.nodes.items())
    return Marks(shards, variables, tensors, hints.tensors, hints.variables, *_rows(program, taskgraphs))


def _without_marks(graph):
    edit = graph.editor()
    for name in graph.find(lambda op: op == ROWS_OF_COPY):
        edit.node(name).op = "Identity"
    return edit.finish()


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


def _check_settings(program, config, split):
    """Raises UnsupportedError for what is not known to compute the same with tensors that a TaskGraph divides."""
    what = "epl.split" if split.kind == "split" else "epl.replicate(%d) of a batch of fixed size" % split.device_count
    one, collectives = composes.SPLIT if split.kind == "split" else composes.ROWS, user_collectives(program.graph)
    features = composes.in_force(config.to_dict()) | {one}
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


def _check_places(done, program):
    """What is exchanged in a branch or a loop could be waited for in vain.

    What these take is exchanged before, whether or not they are gone through. So is what is left out where gradients
    are not finite: that is not known yet.
    """
    gates = {write for verdict in program.scaled for write in verdict.gates}
    inside = inside_control_flow(program.graph)
    for each in done.collectives:
        if node_of(each.tensor) in inside and each.wanted_by not in gates:
            raise UnsupportedError(
                "'%s' takes '%s', which the devices would have to exchange in a loop or a branch, and would wait for "
                "in vain where another one is gone through. Keep whole what is divided in it: leave out epl.shard "
                "there, or give the variable that is changed there, or what the loop or the branch takes, to epl.whole."
                % (each.wanted_by, each.tensor)
            )
