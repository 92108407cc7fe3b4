"""Says of TensorFlow's error for a device that is out of memory what the step was expected to need, and what helps."""

import logging
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf

from epl import compiler
from epl.capture.record import make_program
from epl.config import Config
from epl.errors import EplError
from epl.graph.index import node_of
from epl.plan.cost.device_memory import table
from epl.plan.input.batch_rows import batch_rows, data_set_rows
from epl.plan.text import bytes_text
from epl.session.estimated_program import DEFAULT_BATCH, estimate_program

_SIGN = "OOM when allocating"
# Of processor time: the program waits for its error meanwhile, and so do the other workers, well within their
# time-outs. What was begun before is gone through to its end.
_SECONDS = 30.0
_LOG = logging.getLogger("epl")
_LEAST = 0.995  # of the peak: what saves less is no advice


class _Quiet(logging.Filter):
    """Keeps to itself what planning says in this thread: of plans that are only looked at."""

    def __init__(self):
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record):
        return record.thread != self._thread


def explained(error, graph, program, config, cluster, fed):
    """The error to raise for one that a run of a graph has raised.

    Args:
      error: a tf.errors.OpError.
      graph: the user's tf.Graph.
      program: what epl.compiler.compile made of it for this worker.
      config, cluster: of the process.
      fed: dict of the compiled Program's tensors to values that the run was fed with.

    Returns:
      A ResourceExhaustedError that says more where memory was what there was not enough of; else the same error.
    """
    if not isinstance(error, tf.errors.ResourceExhaustedError) or _SIGN not in str(error.message):
        return error
    if not program.apply_calls:
        return error
    _LOG.warning("A device is out of memory. Going through what would need less; that may take %g s.", _SECONDS)
    quiet = _Quiet()
    _LOG.addFilter(quiet)
    try:
        text = _advice(make_program(graph), program, config, cluster, *_rows(program.graph, fed))
    except EplError as problem:
        text = "What the step needs cannot be estimated: %s" % problem
    finally:
        _LOG.removeFilter(quiet)
    return tf.errors.ResourceExhaustedError(error.node_def, error.op, "%s\n\n%s" % (error.message, text))


def _rows(graph, fed):
    """(rows of a micro-batch, where that number is from)."""
    rows = batch_rows(graph, {node_of(name): [np.shape(value)] for name, value in fed.items()})
    if rows is not None:
        return rows, "as were fed"
    rows = max([np.shape(value)[0] for value in fed.values() if np.ndim(value)] or [0])
    if rows:
        return rows, "the longest of what was fed"
    rows = data_set_rows(graph)
    if rows is not None:
        return rows, "as its data set makes"
    return DEFAULT_BATCH, "which is assumed where the program does not say how many it has"


def _advice(captured, program, config, cluster, batch, source):
    begun = time.thread_time()
    devices, unknown = estimate_program(program, batch, orders=1)
    peak = _peak(program, devices)
    lines = [
        "EPL expects of a training step with %d rows in a micro-batch, %s:" % (batch, source),
        table(devices, unknown),
    ]
    found, left = [], []
    for keys, of in _changes(config, cluster, batch):
        text = ", ".join("%s=%r" % item for item in keys.items())
        if time.thread_time() - begun > _SECONDS:
            left.append(text)
            continue
        try:
            changed = compiler.compile(captured, Config(dict(config.to_dict(), **keys), {}), cluster)
            others, not_counted = estimate_program(changed, of, orders=1)
        except EplError:
            continue  # what the model cannot have is no advice
        if _further(not_counted, unknown):
            continue  # nor is what only looks small, as the sizes of other tensors are not known there
        other = _peak(changed, others)
        if other < _LEAST * peak:
            found.append((other, "  %s: %s instead of %s" % (text, bytes_text(other), bytes_text(peak))))
    if found:
        lines.append("These would need less at the peak of the fullest device:")
        lines.extend(text for _, text in sorted(found))
    elif not left:
        lines.append("No key of EPL would lower the peak; use smaller batches, or more devices for the model.")
    if left:
        lines.append(
            "Not gone through, as that would take longer than %g s; python -m epl.plan --memory tells with one of them "
            "set: %s" % (_SECONDS, "; ".join(left))
        )
    return "\n".join(lines)


def _changes(config, cluster, batch):
    """(dict of keys to values, rows of a micro-batch with them) of what is worth a try, in order: what saves most as a
    rule comes first."""
    on_gpu = cluster.device_type == "GPU"  # a CPU's memory is the host's
    if not config.gradient_checkpoint.type:
        yield {"gradient_checkpoint.type": "auto"}, batch
    if batch % 2 == 0:  # the same rows in twice as many parts
        yield {"pipeline.num_micro_batch": 2 * config.pipeline.num_micro_batch}, batch // 2
    if not config.offload.level and on_gpu:
        yield {"offload.level": "v1"}, batch
    for level in ("v1", "v3") if cluster.total_gpu_num > 1 else ():
        if config.zero.level < level:
            yield {"zero.level": level}, batch
    if not config.amp.level:
        yield {"amp.level": "O1"}, batch
    if not config.gradient_checkpoint.offload and on_gpu:
        yield {"gradient_checkpoint.offload": True}, batch
    if not config.amp.level and not on_gpu:  # where "auto" is bfloat16, which may have fewer kernels
        yield {"amp.level": "O1", "amp.dtype": "float16"}, batch
    if config.optimizer.num_apply_group == 1:
        yield {"optimizer.num_apply_group": 8}, batch


def _further(names, known):
    """Whether some tensors are copies of none of those that are known."""
    return any(not any(name == each or name.endswith("/" + each) for each in known) for name in names)


def _peak(program, devices):
    """Bytes of the fullest of the devices that compute."""
    mesh = program.plan.mesh
    names = [mesh.device(index).partition("/device:")[2] for index in range(mesh.devices_per_worker)]
    return max(devices[name].peak_bytes for name in names if name in devices)
