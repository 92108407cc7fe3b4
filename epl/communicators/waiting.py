"""How a worker waits for another: with a deadline, with a word in the log, and not for who cannot come any more."""

import logging
import time

from epl.communicators.bootstrap import WaitTimeout
from epl.errors import CommunicationError

_LOG = logging.getLogger("epl")

# While it waits, a worker looks this often at what has become of the others.
SLICE_S = 1.0
# Who waits for all others, and hears that another one still does so at another place after so long, waits in vain.
_APART_S = 10.0
# Whoever waits for longer says so, and again after as long.
_NOTICE_S = 10.0


def wait_for_key(client, key, what, worker=None, **limits):
    """The value of a key of the bootstrap service, as soon as it is there.

    Args:
      client: the BootstrapClient.
      key, worker: as for its `get`; None for a key of any worker.
      what: what is waited for, in words that go on after "worker 1 waits for".
      **limits: of the Wait.

    Raises:
      CommunicationError: see Wait.
    """
    wait = Wait(client, what, worker, **limits)
    while True:
        try:
            return client.get(key, wait.slice_s(), writer=worker)
        except WaitTimeout:
            wait.check()


def wait_for_ending(client, generation, limit_s, why):
    """The first Ending of a generation; None: nobody tells one in `limit_s` seconds, or a worker has left in order.

    Args:
      client: the BootstrapClient.
      why: what is waited for, in words that go on after "worker 1 waits to hear".
    """
    began = time.monotonic()
    notice = began + _NOTICE_S
    while True:
        left = began + limit_s - time.monotonic()
        ending = client.ending(generation, max(0.0, min(SLICE_S, left)))
        if ending is not None or left <= SLICE_S or client.departed():
            return ending
        if time.monotonic() >= notice:
            notice += _NOTICE_S
            _LOG.info("worker %d waits to hear %s", client.worker, why)


class Missing(WaitTimeout):
    """Not all have come to a gathering. `ranks`: who has not."""

    def __init__(self, message, ranks):
        super().__init__(message)
        self.ranks = ranks


def gather(client, topic, rank, size, value, what, **limits):
    """What `size` ranks bring to `topic`, as bytes in their order; this one brings `value`.

    Args:
      client, what, **limits: as for `wait_for_key`.

    Raises:
      Missing: some did not come within `limit_s` seconds.
      CommunicationError: see Wait.
    """
    wait = Wait(client, what, **limits)
    if size == client.worker_num:
        client.gathering = topic
    try:
        while True:
            values, missing = client.gather(topic, rank, size, value, wait.slice_s())
            if not missing:
                return values
            try:
                wait.check()
            except WaitTimeout as error:
                raise Missing(str(error), missing) from None
    finally:
        client.gathering = None


class Wait(object):
    """One wait, of which `check` is called at least every second or two.

    Args:
      client: the BootstrapClient.
      what: what is waited for, in words.
      worker: for whom; None for anybody.
      generation: of the communicators, whose end ends the wait.
      error_of: function from the Ending of another worker to the error to raise.
      limit_s: seconds in all; None for as long as all workers live.
      start_s: seconds for a worker to join the job.
      silence_s: seconds without a sign of life of a worker that has joined.
      hopeless: function from Members to why it is of no use to wait any longer, or None.
    """

    def __init__(
        self,
        client,
        what,
        worker=None,
        generation=None,
        error_of=None,
        limit_s=None,
        start_s=600.0,
        silence_s=600.0,
        hopeless=lambda members: None,
    ):
        self._client = client
        self._what = what
        self._worker = worker
        self._generation = generation
        self._error_of = error_of or _failed
        self._limit_s = limit_s
        self._start_s = start_s
        self._silence_s = silence_s
        self._hopeless = hopeless
        self._why = None  # it was hopeless at the latest check; what is waited for may have come meanwhile
        self._began = time.monotonic()
        self._notice = self._began + _NOTICE_S

    def slice_s(self):
        """Seconds until the next call of `check`."""
        if self._limit_s is None:
            return SLICE_S
        return max(0.0, min(SLICE_S, self._began + self._limit_s - time.monotonic()))

    def check(self):
        """Says in the log that the wait goes on, now and then.

        Raises:
          WaitTimeout: the limit is reached.
          CommunicationError: a worker has ended, has not started, or gives no sign of life.
        """
        waited = time.monotonic() - self._began
        ending = None if self._generation is None else self._client.ending(self._generation)
        if ending is not None and ending.worker != self._client.worker:
            raise self._error_of(ending)
        members = self._client.members()
        self._check_departed(members)
        self._check_gatherings(members, waited)
        before, self._why = self._why, self._hopeless(members)
        if before is not None and self._why is not None:
            raise CommunicationError("worker %d waits for %s, but %s" % (self._client.worker, self._what, self._why))
        absent = [w for w in self._awaited() if w not in members.ages and w not in members.left]
        if absent and self._client.trouble() is not None:
            raise CommunicationError(
                "worker %d waits for %s, but worker %d %s"
                % (self._client.worker, self._what, self._client.worker, self._client.trouble())
            )
        if absent and waited > self._start_s:
            raise CommunicationError(
                "%s not started within %g s (communication.start_timeout_s), but worker %d waits for %s. See its own "
                "output, or the launcher's, for what became of it."
                % (_have(absent), self._start_s, self._client.worker, self._what)
            )
        silent = [w for w in self._awaited() if members.ages.get(w, 0.0) > self._silence_s]
        if silent:
            first = members.through.get(silent[0], silent[0])
            raise CommunicationError(
                "no sign of life from worker %d for %.0f s (communication.timeout_s), but worker %d waits for %s: its "
                "process is stopped, its machine is gone, or the network to it is cut"
                % (first, members.ages.get(first, members.ages[silent[0]]), self._client.worker, self._what)
            )
        if self._limit_s is not None and waited >= self._limit_s:
            raise WaitTimeout(
                "worker %d has waited %g s in vain for %s" % (self._client.worker, self._limit_s, self._what)
            )
        if time.monotonic() >= self._notice:
            self._notice += _NOTICE_S
            who = "; %s not started yet" % _have(absent) if absent else ""
            _LOG.info("worker %d has waited %.0f s for %s%s", self._client.worker, waited, self._what, who)

    def _awaited(self):
        return range(self._client.worker_num) if self._worker is None else (self._worker,)

    def _check_gatherings(self, members, waited):
        """Two workers that wait for all others at different places do so for ever."""
        own = self._client.gathering
        for worker, (_, topic) in sorted(members.places.items()):
            long = waited - members.ages.get(worker, waited) > _APART_S
            if worker != self._client.worker and None not in (own, topic) and topic != own and long:
                raise CommunicationError(
                    "worker %d waits for %s, but worker %d has come to another call, in which it needs worker %d: all "
                    "workers must run the same program with the same settings"
                    % (self._client.worker, self._what, worker, self._client.worker)
                )

    def _check_departed(self, members):
        gone = [w for w in self._awaited() if w in members.left]
        if gone:
            raise CommunicationError(
                "worker %d has ended already, but worker %d waits for %s: every worker must make the same calls"
                % (gone[0], self._client.worker, self._what)
            )


def _failed(ending):
    return CommunicationError("worker %d has failed: %s" % (ending.worker, ending.message))


def _have(workers):
    names = (
        " and ".join(str(w) for w in workers[:2])
        if len(workers) < 3
        else "%d and %d others"
        % (
            workers[0],
            len(workers) - 1,
        )
    )
    return "worker%s %s %s" % ("" if len(workers) == 1 else "s", names, "has" if len(workers) == 1 else "have")
