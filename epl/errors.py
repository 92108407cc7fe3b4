"""Errors that EPL raises.

Every class is also one of Python's own exception classes, so that a script can catch `ValueError` or `RuntimeError`
without knowing about EPL. Messages say what was wrong, what was expected and how to mend it.
"""


class EplError(Exception):
    """Base class of all errors of EPL."""


class ConfigError(EplError, ValueError):
    """A configuration key or value is wrong."""


class ClusterError(EplError, ValueError):
    """The description of the workers (TF_CONFIG and its like) is wrong, or this process has no place in it."""


class PlanError(EplError, ValueError):
    """The model cannot be placed on the cluster in the way that was asked for."""


class CaptureError(EplError, RuntimeError):
    """EPL was used in a way or at a moment that it cannot follow while the model is being built."""


class CollectionKeyError(CaptureError, KeyError):
    """A collection that epl.GraphKeys does not name."""

    __str__ = Exception.__str__  # KeyError's would put the message into quotes


class GradientError(EplError, RuntimeError):
    """Gradients are not what they must be."""


class PassError(EplError, RuntimeError):
    """A rewrite of the graph went wrong."""


class LaunchError(EplError, ValueError):
    """`epl-launch` cannot start the workers as asked."""


class NoDataError(EplError, ValueError):
    """The input of this worker ended before its first step."""


class CheckpointError(EplError, RuntimeError):
    """A checkpoint cannot be written as asked."""


class CommunicationError(EplError, RuntimeError):
    """Workers could not talk to each other: a time-out, a refused connection, a mismatch."""


class WorkerError(CommunicationError):
    """Another worker failed, so this one cannot go on.

    Attributes:
      worker: index of the worker that failed, or -1 if that is not known.
      step: number of the step in which it failed, or -1 if that is not known.
      cause: what happened there, in words.
    """

    def __init__(self, message, worker=-1, step=-1, cause=""):
        super().__init__(message)
        self.worker = worker
        self.step = step
        self.cause = cause

    def __reduce__(self):
        return (type(self), (str(self), self.worker, self.step, self.cause))


class VerifyError(EplError, RuntimeError):
    """A program cannot be compared with one device as asked."""


class UnsupportedError(EplError, NotImplementedError):
    """Something that is documented but that this version cannot do."""
