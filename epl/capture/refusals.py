"""What programs ask of TensorFlow that cannot go together with EPL. Each is refused where it is asked for, by name.

docs/not_supported.md lists them all.
"""

import functools
import re

import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.env import Env
from epl.errors import CaptureError, UnsupportedError

_OWN_SERVERS = (
    "EPL's workers exchange gradients with each other, without parameter servers: use the optimizer inside of it"
)
_OPTIMIZERS = {
    "SyncReplicasOptimizer": "EPL aggregates the gradients of all workers by itself: use the optimizer inside of it "
    "directly",
    "DropStaleGradientOptimizer": _OWN_SERVERS,
    "ElasticAverageOptimizer": _OWN_SERVERS,
    "ModelAverageOptimizer": _OWN_SERVERS,
    "AGNOptimizer": _OWN_SERVERS,
    "CrossShardOptimizer": "It is for TPUs: use the optimizer inside of it",
}
_OF_TENSORFLOW = re.compile(r"tensorflow(_core|_estimator)?\.")

_NO_TPU = "EPL trains on GPUs and CPUs. Build the model without the functions of tf.tpu"
_NO_COLLECTIVES = "EPL gives each copy of the model one device, so that it would wait for others in vain. Use epl.ops"
_OPERATIONS = (
    (
        re.compile(r"Horovod"),
        "EPL reduces gradients and broadcasts initial values by itself. Remove the calls of Horovod that make "
        "operations (DistributedOptimizer, allreduce, broadcast_global_variables); hvd.rank() and hvd.size() may stay",
    ),
    (
        re.compile(r"(Sparse|Resource)?ConditionalAccumulator$"),
        "It gathers gradients of workers that parameter servers have. To add up gradients of several batches set "
        "pipeline.num_micro_batch",
    ),
    (re.compile(r"(ConfigureDistributedTPU|TPUReplicateMetadata|CrossReplicaSum|InfeedEnqueue)"), _NO_TPU),
    (re.compile(r"(Nccl(AllReduce|Reduce|Broadcast)|Collective(Reduce|Gather|Bcast))"), _NO_COLLECTIVES),
)


# What keeps a state that workers can share by a name; a table that never changes is the same in each of them anyhow.
_SHARED = re.compile(
    r"((FIFO|RandomShuffle|Priority)Queue|PaddingFIFOQueue|Barrier|MutableHashTable|MutableDenseHashTable)"
)

# Of those, what worker 0 keeps for all (epl.passes.worker.share_queues).
_SERVED = frozenset(["FIFOQueueV2"])


def install():
    """Hooks the calls that are refused. Calling it again changes nothing."""
    tf_compat.wrap_strategies(_strategy_made, _strategy_scope)
    tf_compat.wrap_server(_server)
    tf_compat.wrap_tpu_estimator(_tpu_estimator)
    tf_compat.wrap_enable_eager(_enable_eager)


def check_optimizer(optimizer):
    """Raises UnsupportedError for an optimizer that does itself what EPL does, or works for other clusters."""
    for cls in type(optimizer).__mro__:
        if cls.__module__.split(".")[0] == "horovod":
            raise UnsupportedError(
                "Horovod's DistributedOptimizer cannot be used with EPL, which averages the gradients of all workers "
                "by itself. Use the optimizer inside of it directly."
            )
        if cls.__name__ in _OPTIMIZERS and _OF_TENSORFLOW.match(cls.__module__):
            raise UnsupportedError(
                "tf.train.%s cannot be used with EPL. %s." % (cls.__name__, _OPTIMIZERS[cls.__name__])
            )


def check_operation(op):
    """Raises UnsupportedError for an operation that talks to other devices or workers in ways of its own."""
    advice = _advice(op.type)
    if advice:
        raise UnsupportedError("operation '%s' (%s) cannot be used with EPL. %s." % (op.name, op.type, advice))
    if shared_name(op) is not None and op.type not in _SERVED:
        raise UnsupportedError(
            "operation '%s' (%s) is to be one for all workers (shared_name=%r on /job:%s), but with EPL each of them "
            "has its own, and would wait in vain for what others put there. EPL's workers begin, save and end "
            "together: leave a barrier out, and let each worker read its own files instead of what they share. A "
            "tf.FIFOQueue can be shared."
            % (op.name, op.type, shared_name(op), tf.DeviceSpec.from_string(op.device).job)
        )


def shared_name(op):
    """The name by which all workers are meant to have a queue, a table or a barrier in common; None for what is each
    worker's own."""
    if not _may_be_shared(op.type):
        return None
    job, name = tf.DeviceSpec.from_string(op.device).job, op.get_attr("shared_name").decode()
    is_shared = job not in (None, "localhost") and name and Env.get().cluster.worker_num > 1
    return name if is_shared else None


@functools.lru_cache(maxsize=None)
def _may_be_shared(op_type):
    return _SHARED.match(op_type) is not None


@functools.lru_cache(maxsize=None)  # asked for each operation of a graph; there are some hundred types
def _advice(op_type):
    """What to do instead of using operations of a type; None for those that may be used."""
    return next((advice for pattern, advice in _OPERATIONS if pattern.match(op_type)), None)


def _strategy_made(original, extended, strategy):
    _check_strategy(strategy)
    original(extended, strategy)


def _strategy_scope(original, strategy):
    _check_strategy(strategy)
    return original(strategy)


def _check_strategy(strategy):
    if not tf_compat.is_default_strategy(strategy):  # that one is always there
        raise UnsupportedError(
            "tf.distribute's %s cannot be used with EPL, which makes the copies of the model and reduces gradients by "
            "itself. Build the model for one device, without strategy.scope(); epl.replicate says what is copied, and "
            "epl-launch on how many devices." % type(strategy).__name__
        )


def _server(original, server, *args, **kwargs):
    del original, args, kwargs
    tf_compat.never_started(server)
    raise UnsupportedError(
        "tf.train.Server cannot be used with EPL, whose workers run sessions of their own and talk to each other "
        "outside of them. Leave it and server.join() out, and start the workers with epl-launch; none of them is a "
        "parameter server."
    )


def _tpu_estimator(original, estimator, *args, **kwargs):
    if kwargs.get("use_tpu", args[4] if len(args) > 4 else True):
        raise UnsupportedError(
            "TPUEstimator(use_tpu=True), which is its default, cannot be used with EPL: it trains on GPUs and CPUs. "
            "Pass use_tpu=False."
        )
    original(estimator, *args, **kwargs)


def _enable_eager(original, *args, **kwargs):
    if tf.executing_eagerly():
        return original(*args, **kwargs)
    raise CaptureError(
        "eager execution cannot be switched on after epl.init(): EPL parallelises graphs, and would see nothing of "
        "what runs eagerly. Leave tf.enable_eager_execution() and tf.enable_v2_behavior() out."
    )
