"""How a program that is still being built will lie on the devices."""

from epl.capture.record import make_program, record_of
from epl.compiler import mesh_of_program
from epl.env import Env


def divided_over_workers(tf_graph):
    """Whether no worker has all variables of a graph's training: stages lie in several workers, or state is divided."""
    env = Env.get()
    if env.config.zero.level and env.cluster.worker_num > 1:
        return True
    may_be = len(record_of(tf_graph).taskgraphs) > 1 or env.config.auto.auto_parallel
    if env.cluster.worker_num == 1 or not may_be:
        return False
    return len(mesh_of_program(make_program(tf_graph), env.config, env.cluster).pipeline.workers) > 1
