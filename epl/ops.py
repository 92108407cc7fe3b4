"""Collectives between workers for programs that write parallel code of their own: `epl.ops.all_reduce(x)` and so on.

They are operations of the graph and run in sessions like any other. Every worker builds the same graph with the same
collectives; the sessions see to it that all workers run them together and in the same order. With a single worker they
give what a group of one gives: the tensor itself.

All that compute with floating numbers can be differentiated. As everywhere with `tf.gradients`, what is differentiated
is the sum of `ys`, here over all workers: each worker gets the derivative of that sum with respect to its own `xs`.
"""

import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.communicators import library
from epl.env import Env
from epl.errors import CaptureError, PlanError, UnsupportedError

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "recv",
    "reduce",
    "reduce_scatter",
    "send",
]

_REDUCTIONS = ("sum", "mean", "min", "max", "prod")
# The operations that passes build too have no gradient there: one through the aggregation of gradients would be wrong.
_GRADIENT_OF = {"EplAllReduce": "EplOpsAllReduce", "EplAllGather": "EplOpsAllGather"}


def all_reduce(tensor, op="sum", name=None):
    """Reduces a tensor over all workers, element by element; every worker gets the result.

    With several devices in a worker it is over the copies of the model on all devices of all workers.

    Args:
      tensor: float16, bfloat16, float32, float64, int32 or int64; the same shape on all workers.
      op: "sum", "mean" (of floating numbers only), "min", "max" or "prod".
      name: of the operation; default "all_reduce".

    Returns:
      A tensor of the same type and shape.

    Raises:
      PlanError: `op` is none of these, or is the mean of whole numbers.

    Gradient: of sum and mean the sum and mean of the workers' gradients; min, max and prod have none.
    """
    tensor = _input(tensor)
    _check_reduction(op, tensor)
    with tf.get_default_graph().gradient_override_map(_GRADIENT_OF):
        return _kernels().epl_all_reduce(
            [tensor], N=1, R=1, workers=_workers(), reduce_op=op, name=name or "all_reduce"
        )[0]


def reduce(tensor, root=0, op="sum", name=None):
    """Reduces a tensor over all workers, element by element; one worker gets the result, the others get zeros.

    Args:
      tensor: float16, bfloat16, float32, float64, int32 or int64; the same shape on all workers.
      root: number of the worker that gets the result.
      op: "sum", "mean" (of floating numbers only), "min", "max" or "prod".
      name: of the operation; default "reduce".

    Returns:
      A tensor of the same type and shape.

    Raises:
      PlanError: `root` is no worker, `op` is none of these, or is the mean of whole numbers.

    Gradient: of sum the root's gradient, of mean its share of it; min, max and prod have none.
    """
    tensor = _input(tensor)
    _check_reduction(op, tensor)
    root = _worker(root, "root")
    return _kernels().epl_reduce(tensor, root=root, workers=_workers(), reduce_op=op, name=name or "reduce")


def broadcast(tensor, root=0, name=None):
    """Gives one worker's tensor to all workers.

    Args:
      tensor: of numbers or booleans; the same type and shape on all workers.
      root: number of the worker whose tensor it is.
      name: of the operation; default "broadcast".

    Returns:
      The root's tensor.

    Raises:
      PlanError: `root` is no worker.

    Gradient: at the root the sum of the workers' gradients, elsewhere zeros.
    """
    return _kernels().epl_broadcast(
        _input(tensor), root=_worker(root, "root"), workers=_workers(), name=name or "broadcast"
    )


def all_gather(tensor, name=None):
    """Concatenates the tensors of all workers on the first dimension.

    With several devices in a worker it is over the copies of the model on all devices of all workers; it has no
    gradient then.

    Args:
      tensor: [n, ...], of numbers or booleans. n may differ between workers and steps, the other dimensions must be
        the same on all workers and not 0.
      name: of the operation; default "all_gather".

    Returns:
      [sum of all n, ...], in the order of workers.

    Gradient: the rows of this worker in the sum of the workers' gradients.
    """
    tensor = _input(tensor)
    with tf.get_default_graph().gradient_override_map(_GRADIENT_OF):
        return _kernels().epl_all_gather([tensor], workers=_workers(), name=name or "all_gather")


def reduce_scatter(tensor, op="sum", sizes=None, name=None):
    """Reduces a tensor over all workers, element by element; each worker gets a share of the rows of the result.

    Args:
      tensor: [n, ...], float16, bfloat16, float32, float64, int32 or int64; the same shape on all workers.
      op: "sum", "mean" (of floating numbers only), "min", "max" or "prod".
      sizes: how many rows each worker gets: a vector of whole numbers, the same on all workers, that add up to n.
        Default: equal shares, and n must be a multiple of the number of workers.
      name: of the operation; default "reduce_scatter".

    Returns:
      [rows of this worker, ...]; worker 0 has the first rows.

    Raises:
      PlanError: `op` is none of these, or is the mean of whole numbers.

    Gradient: of sum and mean the rows of all workers' gradients (of mean their share); min, max and prod have none.
    """
    tensor = _input(tensor)
    _check_reduction(op, tensor)
    return _kernels().epl_reduce_scatter(
        [tensor], _numbers(sizes), workers=_workers(), reduce_op=op, name=name or "reduce_scatter"
    )


def all_to_all(tensor, splits=None, name=None):
    """Sends rows of a tensor to every worker, and gets rows from every worker.

    Args:
      tensor: [n, ...], of numbers or booleans. n may differ between workers and steps, the other dimensions must be
        the same on all workers and not 0.
      splits: how many rows go to each worker: a vector of whole numbers that add up to n; it may differ between
        workers and steps. The first rows go to worker 0. Default: equal parts, and n must be a multiple of the number
        of workers.
      name: of the operation; default "all_to_all".

    Returns:
      The rows that came, those of worker 0 first. With `splits`: (these rows, vector of how many came from each).

    Gradient: the rows' gradients, sent back to where the rows came from.
    """
    received, received_splits = _kernels().epl_all_to_all(
        _input(tensor), _numbers(splits), workers=_workers(), name=name or "all_to_all"
    )
    return received if splits is None else (received, received_splits)


def send(tensor, source, target, name=None):
    """Sends one worker's tensor to another worker. Every worker builds it; it does something on these two only.

    Args:
      tensor: of numbers or booleans; what it is on workers other than `source` does not count.
      source: number of the worker that sends.
      target: number of the worker that receives.
      name: of the operation; default "send".

    Returns:
      A message: what `recv` takes. It is of no other use.

    Raises:
      PlanError: `source` or `target` is no worker.

    Gradient: on `source` the gradient of what was received, sent back; zeros elsewhere.
    """
    return _kernels().epl_send(
        _input(tensor),
        source=_worker(source, "source"),
        target=_worker(target, "target"),
        workers=_workers(),
        name=name or "send",
    )


def recv(message, shape=None, dtype=None, name=None):
    """Receives what `send` sends. Every worker builds it, once for each `send`.

    Args:
      message: what `send` returned.
      shape: shape of the tensor, a list or a vector of whole numbers; default the shape that the tensor given to
        `send` has on this worker. A tensor of another shape is refused.
      dtype: type of the tensor, checked; default that of the tensor given to `send`.
      name: of the operation; default "recv".

    Returns:
      On the message's target the tensor of its source, on other workers zeros.

    Raises:
      PlanError: `message` is no message, has been received already, or has another type.
    """
    message = _input(message)
    sent = message.op
    while sent.type == "Identity":
        sent = sent.inputs[0].op
    if sent.type != "EplSend":
        raise PlanError("epl.ops.recv takes what epl.ops.send returned, not '%s' (%s)" % (message.name, sent.type))
    if any(user.type == "EplRecv" for user in sent.outputs[0].consumers()):
        raise PlanError("the message '%s' is received already; call epl.ops.send once for each recv" % sent.name)
    if dtype is not None and tf.as_dtype(dtype) != message.dtype.base_dtype:
        raise PlanError(
            "the message '%s' holds %s, not %s" % (sent.name, message.dtype.base_dtype.name, tf.as_dtype(dtype).name)
        )
    tensor = sent.inputs[0]
    known = tensor.shape if shape is None else None
    shape = tf.shape(tensor, out_type=tf.int64) if shape is None else shape
    source, target = sent.get_attr("source"), sent.get_attr("target")
    received = _kernels().epl_recv(
        message, _numbers(shape), source=source, target=target, workers=_workers(), name=name or "recv"
    )
    if known is not None:
        received.set_shape(known)
    return received


def barrier(name=None):
    """Waits for all workers.

    Args:
      name: of the operation; default "barrier".

    Returns:
      An operation that ends when it has begun on all workers.
    """
    _check_graph_mode()
    return _kernels().epl_barrier(workers=_workers(), name=name or "barrier")


def _kernels():
    return library.load()


def _workers():
    return Env.get().cluster.worker_num


def _check_graph_mode():
    if tf_compat.executing_eagerly():
        raise CaptureError(
            "the collectives of epl.ops are operations of a graph, but eager execution is on. Call "
            "tf.compat.v1.disable_eager_execution() right after importing TensorFlow, before epl.init()."
        )


def _input(tensor):
    _check_graph_mode()
    return tf.convert_to_tensor(tensor)


def _numbers(values):
    """A vector of int64; empty for None."""
    if values is None:
        return tf.constant([], tf.int64)
    return tf.cast(tf.convert_to_tensor(values, tf.int64 if isinstance(values, (list, tuple)) else None), tf.int64)


def _worker(number, what):
    workers = _workers()
    whole = int(number)
    if whole != number or not 0 <= whole < workers:
        raise PlanError(
            "%s is %s; it must be the number of a worker, and this job has %s"
            % (what, number, "worker 0 only" if workers == 1 else "the workers 0 to %d" % (workers - 1))
        )
    return whole


def _check_reduction(op, tensor):
    if op not in _REDUCTIONS:
        raise PlanError("op is %r; it must be one of %s" % (op, ", ".join('"%s"' % each for each in _REDUCTIONS)))
    if op == "mean" and not tensor.dtype.is_floating:
        raise PlanError(
            "op is \"mean\", but '%s' has the type %s, which cannot hold one; cast it to a floating type, or use "
            '"sum"' % (tensor.name, tensor.dtype.base_dtype.name)
        )


# ---------------------------------------------------------------------------------------------------------------------
# Gradients.


def _differentiable(node):
    """ "sum" or "mean".

    Raises:
      UnsupportedError: the reduction has no gradient.
    """
    reduction = node.get_attr("reduce_op").decode()
    if reduction not in ("sum", "mean"):
        raise UnsupportedError(
            '\'%s\' (%s) is a "%s" over workers, which has no gradient; only "sum" and "mean" have one. Use '
            "tf.stop_gradient on it if none is wanted." % (node.name, node.type, reduction)
        )
    return reduction


def _shared(gradient, node, reduction):
    return gradient / node.get_attr("workers") if reduction == "mean" else gradient


def _like(gradient, tensor):
    gradient.set_shape(tensor.shape)
    return gradient


@tf.RegisterGradient("EplOpsAllReduce")
def _all_reduce_gradient(node, gradient):
    return all_reduce(gradient, op=_differentiable(node))


@tf.RegisterGradient("EplReduce")
def _reduce_gradient(node, gradient):
    reduction = _differentiable(node)
    return _shared(broadcast(gradient, root=node.get_attr("root")), node, reduction)


@tf.RegisterGradient("EplBroadcast")
def _broadcast_gradient(node, gradient):
    return reduce(gradient, root=node.get_attr("root"))


@tf.RegisterGradient("EplOpsAllGather")
def _all_gather_gradient(node, gradient):
    tensor = node.inputs[0]
    sizes = all_gather(tf.shape(tensor, out_type=tf.int64)[:1], name="sizes")
    return _like(reduce_scatter(gradient, sizes=sizes), tensor)


@tf.RegisterGradient("EplReduceScatter")
def _reduce_scatter_gradient(node, gradient):
    reduction = _differentiable(node)
    return _like(_shared(all_gather(gradient), node, reduction), node.inputs[0]), None


@tf.RegisterGradient("EplAllToAll")
def _all_to_all_gradient(node, gradient, _):
    return _like(all_to_all(gradient, splits=node.outputs[1])[0], node.inputs[0]), None


@tf.RegisterGradient("EplSend")
def _send_gradient(node, message):
    tensor = node.inputs[0]
    return _like(recv(message, tf.shape(tensor, out_type=tf.int64)), tensor)


@tf.RegisterGradient("EplRecv")
def _recv_gradient(node, gradient):
    return send(gradient, source=node.get_attr("target"), target=node.get_attr("source")), None
