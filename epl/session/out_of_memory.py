"""Says of TensorFlow's error for a device that is out of memory what the step was expected to need, and what helps."""

import numpy as np
import tensorflow.compat.v1 as tf

from epl import compiler
from epl.capture.record import make_program
from epl.config import Config
from epl.errors import EplError
from epl.plan.device_memory import table
from epl.session.foretold import DEFAULT_BATCH, foretell_program

_SIGN = "OOM when allocating"
_MIB = 2.0**20


def explained(error, graph, config, cluster, fed):
    """The error to raise for one that a run of a graph has raised.

    Args:
      error: a tf.errors.OpError.
      graph: the program's tf.Graph.
      config, cluster: of the process.
      fed: values that were fed to copies of the model; the longest tells the rows of a micro-batch.

    Returns:
      A ResourceExhaustedError that says more where memory was what there was not enough of; else the same error.
    """
    if not isinstance(error, tf.errors.ResourceExhaustedError) or _SIGN not in str(error.message):
        return error
    program = make_program(graph)
    if not program.apply_calls:
        return error
    rows = [np.shape(value)[0] for value in fed if np.ndim(value)]
    try:
        text = _advice(program, config, cluster, max(rows) if rows else DEFAULT_BATCH)
    except EplError as problem:
        text = "What the step needs cannot be foretold: %s" % problem
    return tf.errors.ResourceExhaustedError(error.node_def, error.op, "%s\n\n%s" % (error.message, text))


def _advice(program, config, cluster, batch):
    compiled = compiler.compile(program, config, cluster)
    devices, unknown = foretell_program(compiled, batch)
    peak = _peak(compiled, devices)
    lines = ["EPL expects of a training step with %d rows in a micro-batch:" % batch, table(devices, unknown)]
    found = []
    for keys, of in _changes(config, cluster, batch):
        try:
            compiled = compiler.compile(program, Config(dict(config.to_dict(), **keys), {}), cluster)
            other = _peak(compiled, foretell_program(compiled, of)[0])
        except EplError:
            continue  # what the model cannot have is no advice
        if other < peak:
            text = ", ".join("%s=%r" % item for item in keys.items())
            found.append((other, "  %s: %.1f MiB instead of %.1f MiB" % (text, other / _MIB, peak / _MIB)))
    if found:
        lines.append("These would need less at the peak of the fullest device:")
        lines.extend(text for _, text in sorted(found))
    else:
        lines.append("No key of EPL would lower the peak; use smaller batches, or more devices for the model.")
    return "\n".join(lines)


def _changes(config, cluster, batch):
    """(dict of keys to values, rows of a micro-batch with them) of what is worth a try."""
    on_gpu = cluster.device_type == "GPU"  # a CPU's memory is the host's
    if not config.gradient_checkpoint.type:
        yield {"gradient_checkpoint.type": "auto"}, batch
    if not config.gradient_checkpoint.offload and on_gpu:
        yield {"gradient_checkpoint.offload": True}, batch
    if not config.amp.level:  # devices, and versions of TensorFlow, have kernels of one type or of both
        yield {"amp.level": "O1"}, batch
        yield {"amp.level": "O1", "amp.dtype": "float16"}, batch
    if config.optimizer.num_apply_group == 1:
        yield {"optimizer.num_apply_group": 8}, batch
    for level in ("v1", "v3") if cluster.total_gpu_num > 1 else ():
        if config.zero.level < level:
            yield {"zero.level": level}, batch
    if not config.offload.level and on_gpu:
        yield {"offload.level": "v1"}, batch
    if batch % 2 == 0:  # the same rows in twice as many parts
        yield {"pipeline.num_micro_batch": 2 * config.pipeline.num_micro_batch}, batch // 2


def _peak(program, devices):
    """Bytes of the fullest of the devices that compute."""
    mesh = program.plan.mesh
    names = [mesh.device(index).partition("/device:")[2] for index in range(mesh.devices_per_worker)]
    return max(devices[name].peak_bytes for name in names if name in devices)
