"""How a program that is still being built will lie on the devices."""

import os

from epl.capture.record import make_program, record_of
from epl.compiler import mesh_of_program
from epl.env import Env
from epl.plan.layout.layout import is_split
from epl.plan.zero.zero import in_groups
from epl.session.chosen import choose_plan
from epl.session.hooks import PREVIEW, job


def divided_over_workers(tf_graph):
    """Whether no worker has all that is to be restored of a graph's training: stages or parts of tensors lie in several
    workers, state is divided, or each has residuals of its own."""
    env = Env.get()
    if not os.environ.get(PREVIEW):
        choose_plan(tf_graph, env.config, env.cluster, job())
    if env.config.dgc.save_residuals and env.cluster.worker_num > 1:
        return True
    if env.config.zero.level and not env.config.local_sgd.k_steps and env.cluster.worker_num > 1:
        if not env.config.zero.degree:
            return True
        mesh = mesh_of_program(make_program(tf_graph), env.config, env.cluster)
        if in_groups(mesh, env.config).state_groups[0].num_workers > 1:
            return True
    taskgraphs = record_of(tf_graph).taskgraphs
    may_be = len(taskgraphs) > 1 or is_split(taskgraphs) or env.config.auto.auto_parallel
    if env.cluster.worker_num == 1 or not may_be:
        return False
    mesh = mesh_of_program(make_program(tf_graph), env.config, env.cluster)
    return mesh.pipeline.num_workers > 1 or mesh.split and mesh.tensor_group.num_workers > 1
