"""Weights by speeds that are measured at the first run (cluster.device_weights="auto"): worker 0 decides for all."""

import json
import logging

from epl.capture.record import make_program
from epl.compiler import mesh_of_program
from epl.graph import collector
from epl.plan.input.batch_rows import common_rows
from epl.plan.layout.features import check_features
from epl.plan.layout.layout import BY_SPEED
from epl.plan.layout.speeds import paces, told, weights_by_speed

_LOG = logging.getLogger("epl")


def weigh_devices(tf_graph, config, cluster, job, measure):
    """Sets the numbers of `cluster.device_weights` where they are to be measured.

    All workers come to it, for the same graph. The numbers count as set from then on, so that nothing is measured again
    when the graph grows.

    Args:
      tf_graph: the user's tf.Graph.
      config, cluster, job: of the process; the epl.Config is changed.
      measure: function from the Mesh to the speeds of this worker's devices, a list, in a unit that all workers have.

    Raises:
      PlanError, UnsupportedError: devices of this program cannot have parts of different size; nothing was measured.
      CommunicationError, WorkerError: another worker failed, or did not come in time.
    """
    if config.cluster.device_weights != BY_SPEED:
        return
    with collector.paused():
        program = make_program(tf_graph)
        if not program.apply_calls:
            return
        mesh = mesh_of_program(program, config, cluster)
        check_features(program, config, mesh, program.role)
    limit_s = config.communication.start_timeout_s
    with job.telling_others():
        job.meet(b"", limit_s)  # so that all of them compute at the same time, as they do in a step
        speeds = [json.loads(each.decode()) for each in job.meet(json.dumps(measure(mesh)).encode(), limit_s)]
    rows = _rows(program.graph, config, mesh)
    decided = job.decided("how the devices divide a batch", lambda: json.dumps(_decided(mesh, speeds, rows)).encode())
    config.cluster.device_weights = tuple(json.loads(decided.decode()))


def _decided(mesh, speeds, rows):
    """Worker 0's choice: the weights."""
    found = paces(mesh, speeds)
    weights = weights_by_speed([place.speed for place in found], rows)
    _LOG.info("%s", told(found, weights, rows, mesh.devices_per_worker))
    return weights


def _rows(graph, config, mesh):
    """Rows of a micro-batch of a model replica; None where neither data sets nor the configuration say."""
    copies = mesh.num_pipelines * len(mesh.instances) // mesh.num_shards * config.pipeline.num_micro_batch
    fed = config.auto.batch // copies if config.auto.batch and config.auto.batch % copies == 0 else None
    return common_rows(graph) or fed
