"""Stages that EPL chooses: the scopes that a user would write, for models that have none (auto.auto_parallel)."""

from dataclasses import replace

from epl.errors import PlanError
from epl.graph import tags
from epl.graph.build import set_attr
from epl.plan.cost.cost import forward_costs
from epl.plan.facts.analysis import analyse, is_large_constant
from epl.plan.pipeline.auto_stages import automatic_taskgraphs, choose_stages


def add_stages(program, target):
    """Gives a program the stages that EPL chooses for it, where the configuration asks for that.

    There are `pipeline.num_stages`; without a number, as many as a worker has devices.

    Raises:
      PlanError: the model has scopes, or cannot be cut; says why.
    """
    stages = automatic_taskgraphs(target.config, target.cluster) if program.apply_calls else []
    if not stages:
        return program
    if program.taskgraphs:
        scopes = ", ".join("'%s' at %s" % (t.name or t.kind, t.where) for t in program.taskgraphs)
        raise PlanError(
            "auto.auto_parallel=True lets EPL choose the stages of a model without scopes, but this one has %d (%s). "
            "Remove the scopes and the default strategy, or set auto.auto_parallel to False."
            % (len(program.taskgraphs), scopes)
        )
    analysis = analyse(program)
    costs = forward_costs(program.graph, analysis.cloned, program.spec_of, target.cluster.machine)
    chosen = choose_stages(program.graph, costs, len(stages), analysis.in_control_flow)
    edit = program.graph.editor()
    for name, node in program.graph.nodes.items():
        # What tf.gradients made for an operation goes where that is.
        stage = chosen.stage_of.get(name, chosen.stage_of.get(program.forward_op(name)))
        if stage is not None and not is_large_constant(node):
            set_attr(edit.node(name), tags.TASKGRAPH, stage)
    return replace(program, graph=edit.finish(), taskgraphs=stages, automatic=chosen)
