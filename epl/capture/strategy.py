"""The scopes with which a user marks parts of a model: `epl.replicate` and `epl.split`."""

import os
import sys
import weakref
from typing import Optional

from epl import tf_compat
from epl.capture.record import default_graph, has_record, record_of
from epl.env import Env
from epl.errors import CaptureError, PlanError


def caller(depth):
    """ "file:line" of the user's code that many frames up."""
    frame = sys._getframe(depth + 1)  # pylint: disable=protected-access
    return "%s:%d" % (os.path.basename(frame.f_code.co_filename), frame.f_lineno)


class Strategy(object):
    """A part of the model and how to parallelise it. Use it with `with`, or as `epl.set_default_strategy(...)`.

    Attributes:
      kind: "replicate" or "split".
      device_count: devices that one copy of this part computes on.
      name: for people.
      where: "file:line" where it was made.
    """

    def __init__(self, kind, device_count, name, where):
        if isinstance(device_count, bool) or not isinstance(device_count, int) or device_count < 1:
            raise PlanError(
                "epl.%s(device_count=%r) at %s: device_count is the number of devices that one copy of this part of "
                "the "
                "model computes on, a whole number of at least 1, for example epl.%s(1)"
                % (kind, device_count, where, kind)
            )
        self.kind = kind
        self.device_count = device_count
        self.name = name
        self.where = where

    def same_as(self, other):
        """Whether another one, or None, says the same, names aside."""
        return other is not None and (other.kind, other.device_count) == (self.kind, self.device_count)

    def __enter__(self):
        check_begun("epl.%s at %s" % (self.kind, self.where))
        scopes().enter(self)
        return self

    def __exit__(self, *exc_info):
        scopes().leave(self)


def check_begun(what):
    """Raises CaptureError where EPL does not see what is built, so that a strategy would change nothing.

    Args:
      what: the call that comes too early, for the message.
    """
    if not tf_compat.catches_operations():
        raise CaptureError(
            "%s comes before epl.init(), so EPL does not see the model that it is for. Call epl.init() right after the "
            "imports." % what
        )


class Scopes(object):
    """Which strategy holds for operations that are made now.

    Attributes:
      entered: that of the scope which is open, or None.
    """

    def __init__(self):
        self.entered = None
        self._default = None  # of graphs in which none was set
        self._defaults = weakref.WeakKeyDictionary()  # of others

    def default(self, graph):
        """The default strategy of a tf.Graph, or None."""
        return self._defaults.get(graph, self._default)

    def set_default(self, graph, strategy):
        """Sets that of a graph. What is set before anything is built holds for all graphs to come as well.

        Setting the same again where a graph is begun is no new part of its model, though a step's number, a data set or
        a placeholder of Keras may be there already.
        """
        begun = has_record(graph) and bool(record_of(graph).taskgraphs)
        if tf_compat.is_root_graph() and not begun:
            self._default = strategy
        elif begun and graph not in self._defaults and strategy.same_as(self._default) and not _has_trainable(graph):
            strategy = self._default
        self._defaults[graph] = strategy

    def current(self, graph):
        """What holds in a graph now, or None."""
        return self.entered or self.default(graph)

    def enter(self, strategy):
        if self.entered is not None:
            raise CaptureError(
                "epl.%s at %s stands inside of epl.%s at %s; strategy scopes cannot be nested. End the outer scope "
                "before "
                "the inner one begins: each scope is a part of the model of its own."
                % (strategy.kind, strategy.where, self.entered.kind, self.entered.where)
            )
        self.entered = strategy

    def leave(self, strategy):
        if self.entered is strategy:
            self.entered = None


def _has_trainable(graph):
    return bool(graph.get_collection(tf_compat.tf.GraphKeys.TRAINABLE_VARIABLES))


_ENV_KEY = "scopes"


def scopes():
    """The process's Scopes; kept by Env, the one global object."""
    return Env.get().state(_ENV_KEY, Scopes)


def _all_devices(device_count):
    """`device_count`, or the number of devices of all workers where it is None."""
    return Env.get().cluster.total_gpu_num if device_count is None else device_count


def replicate(device_count: Optional[int] = None, name: Optional[str] = None) -> Strategy:
    """Marks a part of the model that is copied, every copy computing on data of its own.

    Args:
      device_count: devices that one copy computes on. With more than one, the user's batch is divided evenly over them.
        Default: all devices of the job, so that there is one copy.
      name: for people.

    Returns:
      A scope for `with`, or an argument for `epl.set_default_strategy`.

    Raises:
      PlanError: device_count is not a whole number of at least 1.
      CaptureError: on entering it inside another scope, or before epl.init().
    """
    return Strategy("replicate", _all_devices(device_count), name, caller(1))


def split(device_count: Optional[int] = None, name: Optional[str] = None) -> Strategy:
    """Marks a part of the model whose variables, and what is computed of them, are divided over devices.

    Args:
      device_count: devices over which they are divided; default all devices of the job.
      name: for people.

    Returns:
      A scope for `with`, or an argument for `epl.set_default_strategy`.

    Raises:
      PlanError: device_count is not a whole number of at least 1.
      CaptureError: on entering it inside another scope, or before epl.init().
    """
    return Strategy("split", _all_devices(device_count), name, caller(1))


def set_default_strategy(strategy: Strategy) -> None:
    """Sets the strategy of all operations that are made from now on outside of any scope, in the default graph.

    Calling it again begins a new part of the model. What is set at the top of a program, before there is a model, holds
    for the graphs of an Estimator and all others too; what is set while one is built, for that one.

    Raises:
      CaptureError: the argument is no strategy, a scope is open, or epl.init() has not been called.
    """
    check_begun("epl.set_default_strategy at %s" % caller(1))
    if not isinstance(strategy, Strategy):
        raise CaptureError("epl.set_default_strategy takes a strategy, such as epl.replicate(1), not %r" % (strategy,))
    held = scopes()
    if held.entered is not None:
        raise CaptureError(
            "epl.set_default_strategy at %s stands inside of epl.%s at %s; call it outside of any scope."
            % (caller(1), held.entered.kind, held.entered.where)
        )
    held.set_default(default_graph(), strategy)
