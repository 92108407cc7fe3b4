"""Queues that the workers of a job have in common: worker 0 keeps their elements, all of them put and take.

Each call has a number of its worker's, so that one that comes again, as its connection broke or its time was over, does
what it is for once.
"""

import itertools
import threading

from epl.communicators.connection import WaitTimeout


class SharedQueues(object):
    """A worker's side. Its methods may be called from any thread.

    Args:
      client: the BootstrapClient.
      wait: function from what is waited for, in words, to a Wait.
    """

    def __init__(self, client, wait):
        self._client = client
        self._wait = wait
        self._numbers = itertools.count()
        self._pending = set()
        self._lock = threading.Lock()

    def put(self, name, value, capacity):
        """Adds bytes, as soon as there are fewer than `capacity` elements (-1: any number).

        Raises:
          WaitTimeout: there was no room in time.
          CommunicationError: a worker is gone, or the value is too large.
        """
        self._call("room in the queue '%s', which all workers share" % name, "put", name, value, capacity)

    def take(self, name):
        """The oldest element, as bytes, as soon as there is one. Raises what `put` does."""
        return self._call("an element of the queue '%s', which all workers share" % name, "take", name)

    def size(self, name):
        """How many elements there are. Raises CommunicationError: worker 0 is gone."""
        return self._client.queue_size(name)

    def _call(self, what, kind, name, value=b"", capacity=-1):
        with self._lock:
            number = next(self._numbers)
            self._pending.add(number)
        wait = self._wait(what)
        try:
            while True:
                with self._lock:
                    call = number, min(self._pending)
                try:
                    return self._client.queue_call(kind, name, call, value, capacity, wait.slice_s())
                except WaitTimeout:
                    wait.check()
        finally:
            with self._lock:
                self._pending.remove(number)


class Elements(object):
    """Worker 0's side of one queue. Whoever calls it holds a lock."""

    def __init__(self):
        self._values = []
        self._answers = {}  # (worker, number) of a call to what came of it, until the worker has heard it

    def __len__(self):
        return len(self._values)

    def ready(self, kind, worker, number, capacity):
        """Whether a call, "put" or "take", can be answered; or has been, when it came before."""
        if (worker, number) in self._answers:
            return True
        return len(self) > 0 if kind == "take" else capacity < 0 or len(self) < capacity

    def answer(self, kind, worker, number, value):
        """Does what a call that is ready is for, once. Returns bytes: the element that is taken."""
        key = worker, number
        if key not in self._answers:
            if kind == "put":
                self._values.append(value)
            self._answers[key] = self._values.pop(0) if kind == "take" else b""
        return self._answers[key]

    def forget(self, worker, oldest):
        """A worker has no calls under way with numbers below `oldest`."""
        for key in [key for key in self._answers if key[0] == worker and key[1] < oldest]:
            del self._answers[key]
