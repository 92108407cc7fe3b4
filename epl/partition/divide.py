"""Partitions a program as its Marks say, as far as what devices would have to exchange for it can be exchanged."""

import logging
from dataclasses import replace

from epl.errors import UnsupportedError
from epl.graph import tags
from epl.graph.control_flow import inside_control_flow
from epl.graph.index import node_of
from epl.partition.partition import partition
from epl.partition.table import ROWS_OF_COPY
from epl.rules import tensors

_RESOURCE = "VarHandleOp"
_LOG = logging.getLogger("epl")


def divide(program, marks, op_def):
    """The Partitioned program of one of the devices that divide a model.

    Args:
      program: an epl.program.program.Program, with nodes for the hints of users.
      marks: its Marks.
      op_def: function from operation type to OpDef, None for unknown types.

    Raises:
      PlanError: see epl.partition.partition.
      UnsupportedError: devices would have to exchange something in a branch or a loop.
    """
    done = _without_early_exchanges(program, marks, op_def)
    _check_places(done, program)
    if marks.scope is not None and not marks.variables.intersection(done.placements):
        _LOG.warning(
            "epl.split(%d) at %s holds no variable that can be divided, so each of the %d devices computes all of the "
            "model. %s",
            marks.shards,
            marks.scope,
            marks.shards,
            _advice(program, marks.variables),
        )
    return replace(done, graph=_without_marks(done.graph))


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


def _without_early_exchanges(program, marks, op_def):
    """The Partitioned program. Where rows of a batch that devices divide would have to be exchanged before what is
    split begins, the devices compute all rows instead."""
    done = partition(program, marks, op_def)
    needs = _needs_other_rows(program, marks, done) if marks.rows else None
    if needs is None:
        return done
    _LOG.info(
        "'%s' needs rows of the batch that other devices would have, so each of the %d devices computes all rows of "
        "what epl.replicate holds. Rows are divided where each is computed by itself.",
        needs,
        marks.shards,
    )
    return partition(program, replace(marks, rows=frozenset(), batches=frozenset()), op_def)


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


def _without_marks(graph):
    edit = graph.editor()
    for name in graph.find(lambda op: op == ROWS_OF_COPY):
        edit.node(name).op = "Identity"
    return edit.finish()


def _check_places(done, program):
    """What is exchanged in a branch or a loop could be waited for in vain.

    What these take is exchanged before, whether or not they are gone through. So is what is left out where gradients
    are not finite: that is not known yet.
    """
    gates = {write for found_inf in program.scaled for write in found_inf.gates}
    inside = inside_control_flow(program.graph)
    for each in done.collectives:
        if node_of(each.tensor) in inside and each.wanted_by not in gates:
            raise UnsupportedError(
                "'%s' takes '%s', which the devices would have to exchange in a loop or a branch, and would wait for "
                "in vain where another one is gone through. Keep whole what is divided in it: leave out epl.shard "
                "there, or give the variable that is changed there, or what the loop or the branch takes, to epl.whole."
                % (each.wanted_by, each.tensor)
            )
