"""Errors that a worker raises because of another one."""

import functools


class FromPeer(Exception):
    """Carries an error that this worker raises because of another one, past TensorFlow's handling of its own errors."""

    def __init__(self, error):
        super().__init__(str(error))
        self.error = error


def for_programs(method):
    """What programs call raises the errors that they know: those of other workers without their wrapping."""

    @functools.wraps(method)
    def unwrapped(*args, **kwargs):
        try:
            return method(*args, **kwargs)
        except FromPeer as error:
            raise error.error from None

    return unwrapped


class TellingOthers(object):
    """Around what must not end for this worker alone: whatever error comes out of it, the others hear of it.

    Every step is in one, so it is made once, and a class: a generator takes three times as long.
    """

    def __init__(self, job):
        self._job = job

    def __enter__(self):
        return self

    def __exit__(self, _, error, traceback):
        if not isinstance(error, Exception):
            return False
        raised = self._job.broken_by(error)
        if raised is error:
            return False
        raise raised from None
