"""Signals that tell the launcher to stop, over all attempts of a job."""

import os
import signal

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stops:
    """Takes the signals from its beginning to its end. A context manager.

    Attributes:
      number: of the first signal that told the launcher to stop; None: none has.
      count: how many have come.
      wake: descriptor that can be read when a signal has come, SIGCHLD too.
    """

    def __init__(self):
        self.number = None
        self.count = 0
        self.wake, self._write = os.pipe()
        for descriptor in (self.wake, self._write):
            os.set_blocking(descriptor, False)
        self._old_handlers = {}

    def __enter__(self):
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _STOP_SIGNALS:
            # `nohup` makes SIGHUP ignored, and means it. A background shell does so with SIGINT, but whoever sends
            # that to the launcher by name means it.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._old_handlers[number] = signal.signal(number, self.take)
        self._old_handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_):
        signal.set_wakeup_fd(-1)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        os.close(self.wake)
        os.close(self._write)

    def take(self, number, _=None):
        """A signal has come, or something that means the same."""
        self.number = self.number or number
        self.count += 1

    def drain(self):
        """Reads what makes `wake` readable."""
        os.read(self.wake, 4096)
