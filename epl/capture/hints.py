"""`epl.shard` and `epl.whole`: what users decide themselves about where tensors lie inside of `epl.split`."""

from typing import TypeVar

import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture.record import record_of
from epl.capture.strategy import caller, scopes
from epl.errors import CaptureError, PlanError
from epl.graph import tags

Value = TypeVar("Value")


def shard(value: Value, dim: int) -> Value:
    """Divides a tensor or a variable along one of its dimensions, over the devices of the `epl.split` scope.

    What is computed of it, its gradient and the slots of its optimizer follow as they do from what EPL chooses. A
    dimension whose size does not divide has parts that differ by one.

    Args:
      value: a tf.Tensor or a tf.Variable; one that `tf.get_variable` has partitioned is none.
      dim: the dimension; negative ones count from the last.

    Returns:
      The value, as it is.

    Raises:
      CaptureError: it is neither a tensor nor a variable, or the call stands outside of an `epl.split` scope.
      PlanError: there is no such dimension, it is smaller than the number of devices, or another hint says otherwise.
    """
    where = "epl.shard at %s" % caller(1)
    name, shape, scope = _checked(value, where)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise PlanError("%s: dim is the number of a dimension, such as 0, not %r." % (where, dim))
    rank = shape.ndims
    if rank is None and dim < 0 or rank is not None and not -rank <= dim < rank:
        raise PlanError(
            "%s: '%s' is of shape %s and has no dimension %d. Name one of its dimensions." % (where, name, shape, dim)
        )
    size = None if rank is None else shape.as_list()[dim]
    if size is not None and size < scope.device_count:
        raise PlanError(
            "%s: dimension %d of '%s' has %d elements, too few to give each of %d devices one. Name another dimension."
            % (where, dim, name, size, scope.device_count)
        )
    _note(value, name, tags.divided(dim if dim >= 0 else dim + rank), where)
    return value


def whole(value: Value) -> Value:
    """Keeps a tensor or a variable whole on each device of the `epl.split` scope.

    Args:
      value: a tf.Tensor or a tf.Variable.

    Returns:
      The value, as it is.

    Raises:
      CaptureError: it is neither a tensor nor a variable, or the call stands outside of an `epl.split` scope.
      PlanError: another hint says otherwise.
    """
    where = "epl.whole at %s" % caller(1)
    name, _, _ = _checked(value, where)
    _note(value, name, tags.WHOLE, where)
    return value


def _checked(value, where):
    """(name of what a hint is for, its shape, the scope that it stands in)."""
    if not isinstance(value, tf.Tensor) and not tf_compat.is_variable(value):
        raise CaptureError("%s takes a tensor or a variable, not %r." % (where, value))
    scope = scopes().current(value.graph)
    if scope is None or scope.kind != "split":
        raise CaptureError(
            "%s stands outside of an epl.split scope, where nothing is divided. Call it inside of "
            "`with epl.split(n):`, which says over how many devices." % where
        )
    if tf_compat.is_function_graph(value.graph):
        raise CaptureError("%s stands inside of a function, in which nothing is divided. Call it outside." % where)
    return _operation(value).name, value.shape, scope


def _operation(value):
    if tf_compat.is_variable(value):
        return value.graph.get_operation_by_name(tf_compat.variable_op_name(value))
    return value.op


def _note(value, name, dim, where):
    """Writes a hint down, as a tag.

    Raises:
      PlanError: there is another one for the same output that says otherwise.
    """
    index = value.value_index if isinstance(value, tf.Tensor) else 0
    hints = record_of(value.graph).hints.setdefault(name, {})
    before, said = hints.get(index, (dim, where))
    if before != dim:
        raise PlanError(
            "%s wants '%s' to be %s, but %s wants it to be %s. Leave one of the two out."
            % (where, name, tags.told(dim), said, tags.told(before))
        )
    hints[index] = dim, said
    tf_compat.set_tag(_operation(value), tags.PLACES, tags.places({i: each for i, (each, _) in hints.items()}))
