"""Adds the variables in which each worker keeps what it does not send of gradients (dgc.sparsity,
communication.wire_dtype)."""

from dataclasses import replace

from epl.graph import types
from epl.passes.nodes import add_variable
from epl.program.placement import OWN
from epl.program.program import Added


def add_residuals(program, residuals):
    """The Program with variables for each gradient of an epl.plan.sync.residuals.Residuals."""
    edit, variables = program.graph.editor(), dict(program.variables)
    for each in residuals.coded:
        own, share = Added(each.variable, data=OWN, is_saved=False), (each.share(residuals.workers),)
        for name, shape in ((each.residual, each.shape), (each.residual_of_sum, share)):
            where = dict(near=program.graph.nodes[each.variable], on_host=True, alike=each.shard_rank is None)
            variables[name] = add_variable(edit, name, 0.0, types.FLOAT32, own, shape=shape, **where)
    for each in residuals.compressed:
        shape = program.variables[each.slot].shape
        own = Added(each.slot, data=OWN, is_saved=residuals.are_saved)
        for name in (each.velocity, each.residual):
            variables[name] = add_variable(edit, name, 0.0, types.FLOAT32, own, shape=shape)
        if each.steps not in variables:
            variables[each.steps] = add_variable(edit, each.steps, 0, types.INT64, Added(each.slot))
    kept = dict(compressed=residuals.compressed, coded=residuals.coded)
    return replace(program, graph=edit.finish(), variables=variables, **kept)
