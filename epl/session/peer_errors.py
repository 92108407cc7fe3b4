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
