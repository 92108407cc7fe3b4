"""Adds the variables in which each worker keeps back what it does not send of gradients (dgc.sparsity)."""

from dataclasses import replace

from epl.passes.nodes import add_variable
from epl.plan.dgc import compressible
from epl.program.program import Added

_FLOAT32, _INT64 = 1, 9


def add_residuals(program, target):
    """The Program with variables for each gradient that is compressed; nothing to do for one worker, which sends none.

    Raises:
      UnsupportedError: see epl.plan.dgc.compressible.
    """
    options = target.config.dgc
    if not options.sparsity or target.cluster.worker_num == 1 or not program.apply_calls:
        return program
    compressed = compressible(program, options)
    edit, variables = program.graph.editor(), dict(program.variables)
    for each in compressed:
        shape = program.variables[each.slot].shape
        own = Added(each.slot, is_own=True)
        for name in (each.velocity, each.residual):
            variables[name] = add_variable(edit, name, 0.0, _FLOAT32, own, shape=shape)
        if each.steps not in variables:
            variables[each.steps] = add_variable(edit, each.steps, 0, _INT64, Added(each.slot))
    return replace(program, graph=edit.finish(), variables=variables, compressed=compressed)
