"""Stages that EPL chooses: the scopes that a user would write, for models that have none (auto.auto_parallel)."""

from dataclasses import replace

from epl import tf_compat
from epl.capture.record import make_model, record_of
from epl.capture.specs import spec_reader
from epl.env import Env
from epl.errors import PlanError
from epl.graph import tags
from epl.graph.build import set_attr
from epl.graph.model import TaskGraph
from epl.plan.analysis import analyse, is_large_constant
from epl.plan.auto_stages import choose_stages
from epl.plan.cost import estimate
from epl.plan.plan import layout_of
from epl.plan.stages import used_taskgraphs


def with_automatic_stages(model, tf_graph, config, cluster):
    """Gives a Model the stages that EPL chooses for it, where the configuration asks for that.

    Args:
      model: an epl.graph.model.Model.
      tf_graph: the tf.Graph that it was made of.
      config: has `auto.auto_parallel` and `pipeline.num_stages`; without the latter there are as many stages as a
        worker has devices.
      cluster: the Cluster.

    Returns:
      (Model, AutoStages with the reasons); (the same Model, None) where there is nothing to choose.

    Raises:
      PlanError: the model has scopes, or cannot be cut; says why.
    """
    num_stages = config.pipeline.num_stages or cluster.gpu_num_per_worker
    if not config.auto.auto_parallel or not model.apply_calls or num_stages == 1:
        return model, None
    if model.taskgraphs:
        raise PlanError(
            "auto.auto_parallel=True lets EPL choose the stages of a model without scopes, but this one has %d (%s). "
            "Remove the scopes and the default strategy, or set auto.auto_parallel to False."
            % (len(model.taskgraphs), ", ".join("'%s' at %s" % (t.name or t.kind, t.place) for t in model.taskgraphs))
        )
    analysis = analyse(model)
    costs = estimate(model.graph, analysis.cloned, spec_reader(tf_graph))
    chosen = choose_stages(model.graph, costs, num_stages, analysis.in_control_flow)
    edit = model.graph.editor()
    for operation in tf_graph.get_operations():
        name = operation.name
        # What tf.gradients made for an operation goes where that is.
        stage = chosen.stage_of.get(name, chosen.stage_of.get(tf_compat.original_op_name(operation)))
        if stage is not None and name in edit and not is_large_constant(edit.peek(name)):
            set_attr(edit.node(name), tags.TASKGRAPH, stage)
    stages = [TaskGraph(i, "replicate", 1, "stage_%d" % i, "auto.auto_parallel") for i in range(num_stages)]
    return replace(model, graph=edit.finish(), taskgraphs=stages), chosen


def divided_over_workers(tf_graph):
    """Whether the stages of a graph's model lie in several workers, so that no worker has all its variables."""
    env = Env.get()
    may_be = len(record_of(tf_graph).taskgraphs) > 1 or env.config.auto.auto_parallel
    if env.cluster.worker_num == 1 or not may_be:
        return False
    model, _ = with_automatic_stages(make_model(tf_graph), tf_graph, env.config, env.cluster)
    return len(layout_of(used_taskgraphs(model), env.config, env.cluster).crew) > 1
