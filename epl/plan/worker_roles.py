"""Which workers of a job run equal graphs, told from the plan of one of them."""

from dataclasses import replace

from epl.plan.zero.zero import stays_in_workers


def role_of(plan, worker):
    """What tells a worker's graph from those of others: workers of one role need the same memory in a training step.

    Args:
      plan: an epl.plan.plan.Plan of any worker of the job.
      worker: its index.

    Returns:
      Its places in a pipeline, among those that divide optimizers' state, and among those that divide tensors.
    """
    mesh = replace(plan.mesh, worker_index=worker)
    owner = part = 0
    if plan.zero is not None:
        owner = 0 if stays_in_workers(plan.zero, mesh) else mesh.copies.index
    if mesh.split:
        part = mesh.tensor_group.index
    return worker % mesh.pipeline_workers, owner, part


def workers_by_role(plan):
    """The workers of each role, a list of lists of their indices; the first worker of each tells their order."""
    found = {}
    for worker in range(plan.mesh.num_workers):
        found.setdefault(role_of(plan, worker), []).append(worker)
    return list(found.values())
