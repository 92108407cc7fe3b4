"""The state of the bootstrap service: keys, gatherings, queues, endings, and when each worker was last heard.

No network in it. All methods may be called from any thread. Waiting methods take a time-out and `alive`, a function
that says whether whoever asked still waits.
"""

import threading
import time

from epl.communicators.shared_queues import Elements
from epl.communicators.wire import EVERY_GENERATION, Ending

# Of a leader that was not heard for so long, the members of its host are not heard for that reason.
_SILENT_LEADER_S = 2.0
# A waiting call wakes this often to see whether its caller is still there.
_POLL_S = 0.5


class WaitError(Exception):
    """A wait ended without what was waited for. `code` is "timeout", "lost" or "gone"."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class WriteError(Exception):
    """A worker would change, or has changed, what is another one's."""


def foreign_rank(worker, topic, rank, owner):
    """The WriteError for who comes to a gathering as another one."""
    return WriteError("worker %d cannot come to '%s' as rank %d, which is worker %d" % (worker, topic, rank, owner))


class _Link:
    """The connection of the worker that leads a host, through which its members are connected."""

    def __init__(self, leader, now):
        self.leader = leader
        self.workers = set()  # that have joined through it
        self.heard = now
        self.detached = False  # whether it ended in good order


class _Gathering:
    """Values that some ranks bring; who has come stays there."""

    def __init__(self, size, changed):
        self.changed = changed  # waited on by these alone: each that comes would wake all others else
        self.values = {}  # rank -> (value, worker)
        self._size = size

    def bring(self, topic, rank, value, worker):
        if not 0 <= rank < self._size:
            raise WriteError("worker %d comes to '%s' as rank %d of %d" % (worker, topic, rank, self._size))
        owner = self.values.get(rank, (None, worker))[1]
        if owner != worker:
            raise foreign_rank(worker, topic, rank, owner)
        if rank not in self.values:
            self.values[rank] = value, worker
            if len(self.values) == self._size:
                self.changed.notify_all()

    def missing(self):
        return [rank for rank in range(self._size) if rank not in self.values]


class BootstrapState:
    """See the module."""

    def __init__(self, worker_num, clock=time.monotonic):
        self._worker_num = worker_num
        self._clock = clock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._values = {}  # key -> (value, worker that set it)
        self._gatherings = {}  # topic -> _Gathering
        self._queues = {}  # name -> Elements
        self._endings = []
        self._instances = {}  # worker -> identity of its process
        self._heard = {}  # worker -> time of its last sign of life
        self._places = {}  # worker -> how far it has come, as it says with its signs of life
        self._left = {}  # worker that ended in good order -> steps that it made
        self._links = {}  # identity of a leader's connection -> _Link
        self._through = {}  # worker -> the identity of the connection through which it is connected, if it is one
        self._closed = None

    # Membership

    def join(self, worker, instance, link=None):
        """Registers a worker's process, by itself or through a link. Returns what is wrong with it, or None.

        The same process may come again another way."""
        with self._changed:
            if not 0 <= worker < self._worker_num:
                return "there is no worker %d in a job of %d" % (worker, self._worker_num)
            known = self._instances.setdefault(worker, instance)
            if known != instance:
                return (
                    "two processes say that they are worker %d of this job. Give every process its own index "
                    "(TF_CONFIG task.index), and end what is left of an earlier run" % worker
                )
            self._heard[worker] = self._clock()
            self._through.pop(worker, None)
            if link is not None:
                self._through[worker] = link
                self._links[link].workers.add(worker)
            return None

    def lead(self, worker, link):
        """Registers the connection of a worker that leads its host. Returns what is wrong with it, or None."""
        with self._changed:
            if not 0 <= worker < self._worker_num:
                return "there is no worker %d in a job of %d" % (worker, self._worker_num)
            self._links.setdefault(link, _Link(worker, self._clock()))
            return None

    def is_link(self, link):
        with self._changed:
            return link in self._links

    def is_member(self, worker, instance):
        """Whether this process is the one that joined as this worker."""
        with self._changed:
            return self._instances.get(worker) == instance

    def speaks_for(self, link, worker):
        """Whether this worker has joined through that link."""
        with self._changed:
            return link in self._links and worker in self._links[link].workers

    def members(self):
        """How many have joined and not left."""
        with self._changed:
            return len(set(self._instances).difference(self._left))

    def heard(self, worker, place=None):
        with self._changed:
            self._heard[worker] = self._clock()
            self._places[worker] = place

    def heard_through(self, link, signs):
        """What a leader says of its members: [worker, seconds since it was last heard, how far it has come]."""
        with self._changed:
            now = self._links[link].heard = self._clock()
            for worker, age, place in signs:
                if self._through.get(worker) == link:
                    self._heard[worker] = max(self._heard[worker], now - age)
                    self._places[worker] = place

    def places(self):
        """How far each worker has come, of those that have said it: {worker: what it has said}."""
        with self._changed:
            return {worker: place for worker, place in self._places.items() if place is not None}

    def hear_all(self):
        """As if all had just been heard: this process was stopped itself, and could hear nobody."""
        with self._changed:
            for worker in self._heard:
                self._heard[worker] = self._clock()
            for link in self._links.values():
                link.heard = self._clock()

    def silences(self):
        """As `ages`, but a leader that is silent stands for those that are not heard for its sake."""
        through = dict(self.silent_through())
        return {through.get(worker, worker): age for worker, age in self.ages().items()}

    def ages(self):
        """Seconds since each worker that joined and has not left was last heard: {worker: seconds}."""
        with self._changed:
            now = self._clock()
            return {worker: now - then for worker, then in self._heard.items() if worker not in self._left}

    def silent_through(self):
        """[worker, the silent leader for whose sake it is not heard], of all for whom that is so."""
        with self._changed:
            now, found = self._clock(), []
            for worker, identity in sorted(self._through.items()):
                link = self._links[identity]
                if worker not in self._left and now - link.heard > _SILENT_LEADER_S:
                    found.append([worker, link.leader])
            return found

    def has_links(self):
        with self._changed:
            return bool(self._links)

    def leave(self, worker, steps=None):
        """The worker ends in good order, after so many steps: its silence is no ending from now on."""
        with self._changed:
            self._left[worker] = steps
            self._changed.notify_all()

    def wait_for_leaving(self, limit_s):
        """When worker 0 has left in good order: until those who joined have left too, or something has gone wrong."""

        def through():
            return 0 not in self._left or self._endings or set(self._left).issuperset(self._instances)

        with self._changed:
            self._changed.wait_for(through, limit_s)

    def wait_for_members(self, limit_s):
        """Until all who joined have left, or cannot be served any more."""
        with self._changed:
            self._changed.wait_for(lambda: not self.members() or self._lost(), limit_s)

    def has_left(self, worker):
        with self._changed:
            return worker in self._left

    def left(self):
        """[worker, steps that it made] of those that ended in good order."""
        with self._changed:
            return [list(item) for item in sorted(self._left.items())]

    def lose(self, worker, message):
        """The worker is gone; an ending for all generations, unless it left in good order or is known to be lost."""
        with self._changed:
            if worker in self._left or self._lost(worker) or self._closed:
                return
            self._endings.append(Ending(worker, "lost", -1, message, EVERY_GENERATION))
            self._changed.notify_all()

    def lose_through(self, link, worker, message):
        """A leader's member is gone, unless it has come another way meanwhile."""
        with self._changed:
            if self._through.get(worker) == link:
                self.lose(worker, message)

    def detach(self, link):
        """A leader's connection ends in good order: those who came through it have gone another way."""
        with self._changed:
            self._links[link].detached = True

    def lose_link(self, link, message):
        """A leader's connection broke. Its members cannot go on, but it is the leader that is gone. `message` has a
        place for a worker's index."""
        with self._changed:
            found = self._links[link]
            if found.detached:
                return
            behind = [worker for worker in sorted(found.workers) if self._through.get(worker) == link]
            if found.leader not in self._left:
                behind = [found.leader]
            for worker in behind:
                self.lose(worker, message % worker)

    def _lost(self, worker=None):
        for ending in self._endings:
            if ending.kind == "lost" and worker in (None, ending.worker):
                return ending
        return None

    # Endings

    def fail(self, ending):
        """Publishes an ending; returns the one that counts, the first of its generation."""
        with self._changed:
            for earlier in self._endings:
                if earlier.concerns(ending.generation):
                    return earlier
            self._endings.append(ending)
            self._changed.notify_all()
            return ending

    def publish(self, ending):
        """Tells on an ending that another service has published."""
        with self._changed:
            self._endings.append(ending)
            self._changed.notify_all()

    def endings_after(self, seen, timeout_s):
        """Waits up to `timeout_s` for endings beside the first `seen`. Returns (these, the last words of the service or
        None)."""
        deadline = self._clock() + timeout_s
        with self._changed:
            while len(self._endings) <= seen and not self._closed and self._clock() < deadline:
                self._changed.wait(max(0.0, deadline - self._clock()))
            return self._endings[seen:], self._closed

    def close(self, last_words=None):
        """Ends every wait. The first last words count: a dict, for those who listen for endings."""
        with self._changed:
            self._closed = self._closed or last_words or {"closed": True}
            self._changed.notify_all()

    # Keys

    def set(self, key, value, worker):
        """A worker sets a key. Raises WriteError when another one has set it: a key belongs to who sets it first."""
        with self._changed:
            owner = self._values.get(key, (None, worker))[1]
            if owner != worker:
                raise WriteError("worker %d cannot set the key '%s', which is worker %d's" % (worker, key, owner))
            self._values[key] = value, worker
            self._changed.notify_all()

    def get(self, key, timeout_s, alive, writer=None):
        """The value of `key`, as soon as it has one; of a `writer` alone if one is given. Raises WaitError, or
        WriteError when somebody else has set it."""
        with self._changed:
            who = "nobody has" if writer is None else "worker %d has not" % writer
            self._wait(lambda: key in self._values, timeout_s, alive, lambda: who + " set the key '%s'" % key)
            value, owner = self._values[key]
            if writer not in (None, owner):
                raise WriteError("the key '%s' is worker %d's to set, but worker %d did" % (key, writer, owner))
            return value

    def clear(self, prefix, worker):
        """Forgets all keys that begin with `prefix`. Raises WriteError when one is another worker's; worker 0 may."""
        with self._changed:
            found = [key for key in self._values if key.startswith(prefix)]
            foreign = [key for key in found if self._values[key][1] != worker]
            if foreign and worker != 0:
                raise WriteError(
                    "worker %d cannot clear the key '%s', which is worker %d's"
                    % (worker, foreign[0], self._values[foreign[0]][1])
                )
            for key in found:
                del self._values[key]
            for topic in [each for each in self._gatherings if each.startswith(prefix) and worker == 0]:
                del self._gatherings[topic]

    # Gatherings

    def gather(self, topic, rank, size, value, worker, timeout_s, alive):
        """Brings a value to a gathering of so many ranks, and waits for the others'.

        Returns:
          (the values in the order of ranks, or None; the ranks that have not come). Raises WaitError, or WriteError
          when another worker came as this rank.
        """
        with self._changed:
            found = self._bring(topic, rank, size, value, worker)
            return self._gathered(topic, found, size, timeout_s, alive)

    def gather_several(self, topic, size, entries, timeout_s, alive):
        """`gather` of several at once: `entries` are (rank, worker, value), none of them to wait alone.

        Returns:
          (values, missing ranks as by `gather`; {rank: why it was refused}).
        """
        with self._changed:
            found, refused = self._topic(topic, size), {}
            for rank, worker, value in entries:
                try:
                    self._bring(topic, rank, size, value, worker)
                except WriteError as error:
                    refused[rank] = str(error)
            return self._gathered(topic, found, size, 0.0 if refused else timeout_s, alive) + (refused,)

    def _topic(self, topic, size):
        return self._gatherings.setdefault(topic, _Gathering(size, threading.Condition(self._lock)))

    def _bring(self, topic, rank, size, value, worker):
        found = self._topic(topic, size)
        found.bring(topic, rank, value, worker)
        return found

    def _gathered(self, topic, found, size, timeout_s, alive):
        with self._changed:
            deadline = self._clock() + timeout_s
            while len(found.values) < size:
                left = deadline - self._clock()
                if left <= 0:
                    return None, found.missing()
                self._check(lambda: "not all have come to '%s'" % topic, alive)
                found.changed.wait(min(left, _POLL_S))
            return [found.values[rank][0] for rank in range(size)], []

    # Queues

    def queue_call(self, kind, name, value, capacity, worker, numbers, timeout_s, alive):
        """What a worker puts into a queue ("put") or takes out of it ("take"), see SharedQueues; waits until it can.

        Args:
          numbers: of the call, and of the worker's oldest one that is under way.

        Returns:
          The element, as bytes, that is taken. Raises WaitError.
        """
        number, oldest = numbers
        with self._changed:
            queue = self._queues.setdefault(name, Elements())
            queue.forget(worker, oldest)
            state = "is empty" if kind == "take" else "is full"
            self._wait(
                lambda: queue.ready(kind, worker, number, capacity),
                timeout_s,
                alive,
                lambda: "the queue '%s' %s" % (name, state),
            )
            found = queue.answer(kind, worker, number, value)
            self._changed.notify_all()
            return found

    def queue_size(self, name):
        """How many elements a queue has."""
        with self._changed:
            return len(self._queues.get(name, ()))

    def _check(self, what, alive):
        """Raises WaitError where a wait cannot come to its end."""
        lost = self._lost()
        if lost:
            raise WaitError("lost", "%s (%s, and it cannot come any more)" % (lost.message, what()))
        if self._closed:
            raise WaitError("gone", "%s, and worker 0 has ended" % what())
        if not alive():
            raise WaitError("gone", "the caller has gone")

    def _wait(self, ready, timeout_s, alive, what):
        deadline = self._clock() + timeout_s
        while not ready():
            left = deadline - self._clock()
            if left <= 0:
                raise WaitError("timeout", "%s within %g s" % (what(), timeout_s))
            self._check(what, alive)
            self._changed.wait(min(left, _POLL_S))
