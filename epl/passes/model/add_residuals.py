"""Adds the variables in which each worker keeps what it does not send of gradients (dgc.sparsity,
communication.wire_dtype)."""

from dataclasses import replace

from epl.graph import types
from epl.passes.nodes import add_variable
from epl.plan.sync.dgc import compressible
from epl.plan.sync.wire import FLOAT32, coded_gradients
from epl.program.placement import OWN
from epl.program.program import Added


def add_residuals(program, target):
    """The Program with variables for each gradient that is not sent as it is; one worker sends none.

    Raises:
      UnsupportedError: see epl.plan.sync.dgc.compressible, epl.plan.sync.wire.coded_gradients.
    """
    if target.cluster.worker_num == 1 or not program.apply_calls:
        return program
    if target.config.dgc.sparsity:
        return _for_compressed(program, target.config.dgc)
    if target.config.communication.wire_dtype != FLOAT32:
        return _for_coded(program, target)
    return program


def _for_coded(program, target):
    coded = coded_gradients(program, target.config.communication)
    edit, variables = program.graph.editor(), dict(program.variables)
    for each in coded:
        own, share = Added(each.variable, data=OWN, is_saved=False), (each.share(target.cluster.worker_num),)
        for name, shape in ((each.left, each.shape), (each.left_of_sum, share)):
            variables[name] = add_variable(edit, name, 0.0, types.FLOAT32, own, shape=shape)
    return replace(program, graph=edit.finish(), variables=variables, coded=coded)


def _for_compressed(program, options):
    compressed = compressible(program, options)
    edit, variables = program.graph.editor(), dict(program.variables)
    for each in compressed:
        shape = program.variables[each.slot].shape
        own = Added(each.slot, data=OWN, is_saved=options.save_residuals)
        for name in (each.velocity, each.residual):
            variables[name] = add_variable(edit, name, 0.0, types.FLOAT32, own, shape=shape)
        if each.steps not in variables:
            variables[each.steps] = add_variable(edit, each.steps, 0, types.INT64, Added(each.slot))
    return replace(program, graph=edit.finish(), variables=variables, compressed=compressed)
