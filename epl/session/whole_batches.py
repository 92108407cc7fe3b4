"""A second rewriting of a program, for batches that cannot be divided evenly over all copies of its model."""

from epl.config import Config
from epl.program.program import ALONE, EACH_WORKER
from epl.session.rewritten import Rewritten


def for_whole_batches(graph, rewritten, config, cluster, job):
    """The program with one copy of the model in this worker, or its pipeline, that takes a batch in one piece.

    What is fed and cannot be divided evenly over all copies is computed by it, as one device would. Where copies divide
    updates among them (`zero.level`) the others are there too, and make theirs.

    Args:
      graph: the user's tf.Graph.
      rewritten: the Rewritten with all copies.
      config, cluster: of the process.
      job: the Job.

    Returns:
      A Rewritten.
    """
    mesh, zero = rewritten.plan.mesh, rewritten.plan.zero
    config = Config(dict(config.to_dict(), **{"pipeline.num_micro_batch": 1}), {})
    link, role = job.link, None
    measured = None if link is None else lambda: link
    if zero is None and mesh.num_shards > 1 and not mesh.split:  # on the first of the devices that have shared a batch
        role = ALONE if mesh.num_workers == 1 else EACH_WORKER
    elif zero is None:
        devices = 1 + max(device for instance in mesh.instances[: mesh.shard_ranks] for device in instance.devices)
        cluster = cluster.with_devices(devices)
    made = Rewritten(graph, config, cluster, job.seed, measured, role, whole=zero is not None)
    # Whoever has a variable, or part of it, has it for both.
    assert made.owned == rewritten.owned and made.state_owners == rewritten.state_owners
    return made
