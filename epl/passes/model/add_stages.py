"""Stages that EPL chooses: the scopes that a user would write, for models that have none (auto.auto_parallel)."""

from dataclasses import replace

from epl.graph import tags
from epl.graph.node_defs import set_attr


def add_stages(program, staging):
    """Gives a program the stages of an epl.plan.pipeline.auto_stages.Staging."""
    edit = program.graph.editor()
    for name, index in staging.taskgraph_of.items():
        set_attr(edit.node(name), tags.TASKGRAPH, index)
    return replace(program, graph=edit.finish(), taskgraphs=list(staging.taskgraphs), automatic=staging.chosen)
