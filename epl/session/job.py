"""This process as one worker of a job: its connection to the others, and how the end of one reaches all."""

import atexit
import json
import logging
import os
import random
import re
import sys
import threading
import time

import tensorflow.compat.v1 as tf

from epl.cluster.machine import Link
from epl.communicators import leaders, native
from epl.communicators.pool import Pool
from epl.communicators.shared_queues import SharedQueues
from epl.communicators.waiting import Missing, Wait, gather, wait_for_ending, wait_for_key
from epl.communicators.wire import job_token
from epl.errors import CommunicationError, ConfigError, WorkerError
from epl.session import common_queues, settings
from epl.session.background import Background
from epl.session.endings import blame
from epl.session.endings.causes import first_line, from_communication
from epl.session.endings.noting import Noting
from epl.session.endings.peer_errors import FromPeer, TellingOthers
from epl.session.following import Following

_LOG = logging.getLogger("epl")

_SETTINGS_KEY = "job/settings/%d"  # after how many calls of epl.init
_DECISION_KEY = "job/decision/%d/%d"  # the same, and the decision's number
_LINK_KEY = "job/link/%d"  # after how many calls of epl.init
# How long a worker whose communication broke waits to hear why.
_CAUSE_WAIT_S = 3.0
# What the communicators say where another worker's step has failed. It tells why when all of that step has ended, which
# may take as long as its longest operation.
_OTHER_CANCELLED = re.compile(r"(?:worker|rank) \d+: the step was cancelled while")
_DATA_ENDED = "OutOfRangeError"
# Generations between two calls of epl.init; more failures than that within one job are not lived through.
_GENERATIONS_PER_INIT = 1 << 20
_MEETING = "meet/g%d/%d/"
_NAMED = 8  # of workers that are missing
_TOLD_KEY = "told/%d/%s"  # after how many calls of epl.init, and a topic


def _workers(indices):
    """Workers in words, of many the first ones."""
    named = ", ".join(map(str, indices[:_NAMED]))
    more = " and %d others" % (len(indices) - _NAMED) if len(indices) > _NAMED else ""
    return "worker%s %s%s" % ("s" if len(indices) > 1 else "", named, more)


class Job(object):
    """The connection of this worker to its job. A job of one worker needs none, and everything here is then trivial.

    Args:
      cluster, config: of the process.

    Attributes:
      step: how many calls of sessions have been made together with the other workers.
      num_updates: how many of those changed variables.
      background: what communicates while the program goes on.

    Raises:
      CommunicationError: worker 0 cannot be reached, or the port is taken.
    """

    def __init__(self, cluster, config):
        self.cluster = cluster
        self.lock = threading.RLock()
        self.background = Background()
        self.following = Following(os.environ)
        self.noting = Noting(cluster, self.following, stopped_s=config.communication.stopped_s)
        self._telling = TellingOthers(self)
        self._counting = threading.Lock()
        self.step = 0
        self.num_updates = 0
        self._config = config
        self._server = None
        self._client = None
        self._sessions = 0
        self._generation = 0
        self._broken = False
        self._unheard = 0  # who keeps this worker from telling the others anything
        self._exchanges = 0  # in this generation
        self._met = (0, -1)  # generation and number of the latest meeting
        self._link = None
        self._decisions = 0
        self._queues = None  # those that all workers share
        self._queue_functions = {}  # what asks for them, by token
        self.seed = 0
        self.pool = None
        if cluster.worker_num > 1:
            self._connect()
        else:
            self.pool = Pool(cluster, config)

    def _connect(self):
        with self._noting_errors(), self.following.preparing("connecting to the other workers"):
            self._come_in(self._config.communication.start_timeout_s)
        native.comm().epl_flight_set(self.following.board.collectives)
        self.pool = Pool(self.cluster, self._config, self._client)
        self._client.watch(self._on_ending)
        self._queues = SharedQueues(self._client, self._queue_wait)
        atexit.register(self.close)
        self._catch_uncaught()

    def _come_in(self, timeout_s):
        token = job_token(self.cluster)
        self._server, self._client = leaders.join(self.cluster, token, timeout_s, self._config.communication.stopped_s)
        self.seed = random.SystemRandom().randrange(1 << 48)
        self._compare_settings()

    def _compare_settings(self):
        """Takes worker 0's seed. All workers must have the same configuration, or the others hear of it."""
        key, own = _SETTINGS_KEY % (self._generation // _GENERATIONS_PER_INIT), settings.told(self._config)
        if self._index == 0:
            self._client.set(key, json.dumps({"seed": self.seed, "config": own}).encode())
            return
        limit_s = self._config.communication.start_timeout_s
        told = json.loads(self._wait(key, "worker 0 to tell the job's settings", 0, limit_s=limit_s).decode())
        self.seed = told["seed"]
        try:
            settings.check_same(own, told["config"], self._index)
        except ConfigError as error:
            self.note(error)
            self._publish("error", "ConfigError: %s" % error)
            raise

    def _catch_uncaught(self):
        """A Python error that ends this process is told to the others as its cause; they know of those from talking."""
        before = sys.excepthook

        def hook(kind, value, traceback):
            if isinstance(value, Exception):
                self.note(value)
            if not issubclass(kind, (CommunicationError, KeyboardInterrupt)):
                self._publish("error", "%s: %s" % (kind.__name__, first_line(value)))
            before(kind, value, traceback)

        sys.excepthook = hook

    def restart(self, config):
        """Starts afresh with the connection that is there already, as `epl.init` does when it is called again.

        Every worker must do so, as every worker runs the same script.
        """
        self.background.finish()
        self.following.begin_anew()
        with self.lock:
            self.pool.close()
            self._config = config
            self._sessions = 0
            # Not the next number: a worker may have lived through more failures than another, and all must meet here.
            self._generation = (self._generation // _GENERATIONS_PER_INIT + 1) * _GENERATIONS_PER_INIT
            self._exchanges = 0
            self._broken = False
            self._link = None  # another back end may carry the data now
            self.step = self.num_updates = 0
            self.pool = Pool(self.cluster, config, self._client)
            if self._client is not None:
                with self._noting_errors():
                    self._compare_settings()

    def took_step(self):
        """Counts a step; in the background there may be others. What was noted before it has been lived through."""
        with self._counting:
            self.step += 1
        self.noting.took_step()

    def count_updates(self, number):
        """So many more runs have changed variables."""
        self.num_updates += number
        self.noting.updated(number)

    def new_session(self):
        """A number for a session that communicates; sessions with the same number on all workers belong together."""
        self._sessions += 1
        return self._sessions

    def ready(self):
        """Makes the communicators usable: at first use, and anew after an ending that the program lived through.

        What runs in the background uses those that there were when it began.
        """
        if self._client is None or self.background.is_here:
            return
        self._begin_generation()
        if self.pool.generation != self._generation:
            with self.noting.waiting_for_all("the others to come to a step that communicates"):
                self.pool.connect(self._generation)

    @property
    def link(self):
        """The Link that all workers go by, if it is known already."""
        return self._link

    def measure_link(self):
        """The Link between the workers. At the first call after `epl.init` all of them measure it, so all must come.

        Returns:
          The same on all workers; None in a job of one.

        Raises:
          FromPeer, CommunicationError: as a step that communicates.
        """
        if self._client is None or self._link is not None:
            return self._link
        with self.lock:
            if self._link is None:
                try:
                    self._begin_generation()
                    key = _LINK_KEY % (self._generation // _GENERATIONS_PER_INIT)
                    with self.noting.waiting_for_all("the others to measure how fast their link is"):
                        self._link = Link(*self.pool.measure(self._generation, key))
                except Exception as error:  # whatever it is, the others must not wait for this worker
                    raised = self.broken_by(error)
                    if raised is error:
                        raise
                    raise raised from None
            return self._link

    def decided(self, what, decide):
        """What worker 0 decides for all workers, who come to this in the same order; others wait for it.

        Args:
          what: is chosen, in words that go on after "worker 0 to choose".
          decide: function that returns it as bytes, called in worker 0. It raises nothing.

        Raises:
          CommunicationError, WorkerError: worker 0 is gone, or did not decide in time.
        """
        if self._client is None:
            return decide()
        self._decisions += 1
        key = _DECISION_KEY % (self._generation // _GENERATIONS_PER_INIT, self._decisions)
        if self._index == 0:
            made = decide()
            self._client.set(key, made)
            return made
        limit_s = self._config.communication.start_timeout_s
        return self._wait(key, "worker 0 to choose %s" % what, 0, limit_s=limit_s)

    def _begin_generation(self):
        """The next one, if this one has ended."""
        lost = self._client.ending(self._generation + (1 if self._broken else 0))
        if lost is not None and lost.kind == "lost":
            raise FromPeer(self._error(lost))
        if self._broken:
            self._generation += 1
            self._exchanges = 0
            self._broken = False

    @property
    def _index(self):
        return self.cluster.worker_index

    def hand_in(self, kind, number, data):
        """Leaves bytes for the chief, who takes them with `handed_in`; nobody waits."""
        self._client.set(self._left_by(kind, number, self.cluster.worker_index), data)

    def handed_in(self, kind, number, worker, timeout_s):
        """What a worker left under a kind and a number; it is forgotten afterwards.

        Raises:
          CommunicationError: it left nothing within `timeout_s` seconds.
        """
        key = self._left_by(kind, number, worker)
        what = "what worker %d leaves for the chief" % worker
        data = self._wait(key, what, worker, generation=self._generation, limit_s=timeout_s)
        self._client.clear(key)
        return data

    def _left_by(self, kind, number, worker):
        return "left/%d/%s/%d/%d/" % (self._generation, kind, number, worker)

    @property
    def place(self):
        """How far this worker has come, as text: the same for all who have come as far together."""
        self.background.finish()
        return "%d/%s" % (self._generation, "ended" if self._broken else self._exchanges)

    def exchange(self, message):
        """Gives each worker's bytes to every worker, in their order."""
        self._exchanges += 1
        if self._client is not None:
            self._client.place = [self._generation, self._exchanges]
        began = time.monotonic()
        replies = self.pool.exchange(message)
        self.following.waited(time.monotonic() - began)
        return replies

    def meet(self, message, limit_s=None):
        """Gives each worker's bytes (up to 16 MiB) to every worker, and waits for as long as all of them live.

        For what takes some workers much longer than others, such as an evaluation or a checkpoint; all take part.

        Args:
          limit_s: seconds to wait for each of the others at most; None where one may take any time.

        Raises:
          WorkerError: a worker failed meanwhile.
          CommunicationError: a worker is gone, or did not come in time.
        """
        if self._client is None:
            return [message]
        self.background.finish()
        with self.lock:
            generation = self._generation + (1 if self._broken else 0)
            before, number = self._met, self._met[1] + 1 if self._met[0] == generation else 0
            self._met = (generation, number)
            with self._noting_errors():
                replies = self._replies(message, generation, limit_s)
            if self.cluster.worker_index == 0 and before[1] >= 0:
                self._client.clear(_MEETING % before)  # whoever came to this meeting is through with that one
            return replies

    def _replies(self, message, generation, limit_s):
        try:
            with self.noting.waiting_for_all("the others to come to the same call"):
                return self._gather(_MEETING % self._met, message, generation=generation, limit_s=limit_s)
        except WorkerError:
            raise
        except Missing as error:
            raise CommunicationError(
                "worker %d has waited %g s in vain for %s to come to the same call"
                % (self.cluster.worker_index, limit_s, _workers(error.ranks))
            ) from None
        except CommunicationError:  # the chief has ended, and with it the service through which workers meet
            ending = self._client.ending(generation, _CAUSE_WAIT_S)
            if ending is None or ending.worker == self.cluster.worker_index:
                raise
            raise self._error(ending) from None

    def _gather(self, topic, message, **limits):
        """What all workers bring to a topic, in their order."""
        place, what = (self.cluster.worker_index, self.cluster.worker_num), "the others to come to the same call"
        return gather(self._client, topic, *place, message, what, **self._limits(limits))

    def _wait(self, key, what, worker, **limits):
        """What a worker sets, see `wait_for_key`."""
        return wait_for_key(self._client, key, what, worker, **self._limits(limits))

    def _limits(self, limits):
        """Those of a Wait, with what all of this job's waits have in common."""
        communication = self._config.communication
        own = {"start_s": communication.start_timeout_s, "silence_s": communication.timeout_s, "hopeless": self._ahead}
        return dict(limits, error_of=self._error, **own)

    def _ahead(self, members):
        """Says who has gone on to a step that cannot be made without this worker, which waits for something else."""
        for worker, (place, _) in sorted(members.places.items()):
            generation, exchanges = place or (-1, 0)
            if generation == self._generation and exchanges > self._exchanges and worker != self._index:
                return (
                    "worker %d is at another step, in which it needs worker %d: all workers must make the same number "
                    "of steps, and save and evaluate at the same ones" % (worker, self._index)
                )
        return None

    def tell(self, topic, data):
        """Leaves bytes for all other workers under a topic, a text; nobody waits."""
        self._client.set(_TOLD_KEY % (self._generation // _GENERATIONS_PER_INIT, topic), data)

    def told(self, topic, what, limit_s=None):
        """What the chief tells under a topic; waits for as long as all live, or for `limit_s` seconds.

        Args:
          what: for the log and errors, what is waited for, in words that go on after "worker 1 waits for".

        Raises:
          WorkerError: a worker failed meanwhile.
          CommunicationError: the chief is gone or silent; WaitTimeout: it has told nothing in time.
        """
        key = _TOLD_KEY % (self._generation // _GENERATIONS_PER_INIT, topic)
        generation = self._generation + (1 if self._broken else 0)
        with self._noting_errors():
            return self._wait(key, what, 0, generation=generation, limit_s=limit_s)

    def share_queues(self, graph):
        """Has what a rewritten Graph asks of queues that all workers share ask worker 0."""
        if self._client is None:
            return
        epoch = self._generation // _GENERATIONS_PER_INIT
        self._queue_functions.update(common_queues.functions(graph, self._queues, "%d/" % epoch))

    def _queue_wait(self, what):
        limits = self._limits({"generation": self._generation, "limit_s": self._config.communication.timeout_s})
        del limits["hopeless"]  # a thread that waits for a queue keeps nobody from going on
        return Wait(self._client, what, **limits)

    def check_others(self):
        """For a step that communicates with nobody: ends it where another worker has failed or is gone.

        Data that has ended somewhere is no reason to stop before the workers meet again.

        Raises:
          FromPeer: with what became of it.
        """
        ending = self._client.ending(self._generation) if self._client is not None else None
        if ending is not None and ending.kind != _DATA_ENDED and ending.worker != self._index:
            self._broken = True
            self.pool.abort(_sentence(ending))
            raise FromPeer(self._error(ending))

    def broken_by(self, error):
        """Deals with an error in a step that communicates, whoever caused it; returns the error to raise.

        The first worker with an error of its own publishes it and ends the others' waiting; they raise (inside a
        FromPeer) the same class of error, or a WorkerError that names the worker, the step and the cause.
        """
        if self._client is None:
            return error
        raised = error if isinstance(error, FromPeer) else self._raised_for(error)
        wrong = raised.error if isinstance(raised, FromPeer) else raised
        if not isinstance(wrong, tf.errors.OutOfRangeError):  # that data has ended is nothing wrong, unless uncaught
            self.note(wrong)
        return raised

    def _raised_for(self, error):
        if isinstance(error, WorkerError):  # all workers have come to the same conclusion already
            self.pool.abort(str(error))
            self._broken = True
            return FromPeer(error)
        own = not from_communication(error)
        if own:
            ending = self._publish(_kind(error), "%s: %s" % (type(error).__name__, first_line(error)))
        else:
            ending = self._cause(error) or self._report(error)
        if ending is not None and ending.kind == _DATA_ENDED and ending.worker == self.cluster.worker_index:
            _LOG.info("the data of worker %d has ended: no worker runs step %d any more", ending.worker, ending.step)
        self._broken = True
        self.pool.abort(_sentence(ending) if ending is not None else first_line(error))
        if ending is None or ending.worker == self.cluster.worker_index:
            return error if own else FromPeer(CommunicationError(self._said(error, ending)))
        # Data that ended here as well is no news; anything else of our own still is.
        if own and not (ending.kind == _DATA_ENDED and _kind(error) == _DATA_ENDED):
            return error
        return FromPeer(self._error(ending))

    def note(self, error):
        """Tells the launcher what has gone wrong here."""
        self.noting.error(error, self.step)

    def _noting_errors(self):
        return self.noting.errors(lambda: self.step)

    def telling_others(self):
        """A context: whatever error comes out of it, the other workers hear of it."""
        return self._telling

    def _said(self, error, ending):
        """The text for an error of the communicators that nobody else has caused, or that could not be told."""
        if ending is not None:
            return ending.message
        finished = self._client.departed()
        return self._wanted_more(finished) if finished else self._explain(error, [self._unheard])

    def _cause(self, error):
        """The Ending behind what the communicators say; None if nobody tells it."""
        said = first_line(error)
        if not _OTHER_CANCELLED.search(said):
            return self._client.ending(self._generation, _CAUSE_WAIT_S)
        limit_s = max(_CAUSE_WAIT_S, self._config.communication.timeout_s)
        return wait_for_ending(self._client, self._generation, limit_s, "why " + said)

    def _report(self, error):
        """Tells the others what the communicators say, unless those through whom it would go are silent themselves:
        the leader of this host, or worker 0."""
        finished = self._client.departed()
        if finished:
            return self._publish("communication", self._wanted_more(finished))
        silent = [w for w in self._client.unresponsive() if w != self.cluster.worker_index]
        for worker in (0, self._client.served_by):
            if worker in silent:
                self._unheard = worker
                return None
        return self._publish("communication", self._explain(error, silent))

    def _wanted_more(self, finished):
        """What went wrong when this worker went on and others had ended in good order."""
        worker, steps = sorted(finished.items())[0]
        after = "" if steps is None else " after %d step%s" % (steps, "" if steps == 1 else "s")
        return "worker %d has finished%s; worker %d wanted another: all workers must make the same number of steps" % (
            worker,
            after,
            self._index,
        )

    def _explain(self, error, silent):
        """What a communicator says, and which workers are silent altogether."""
        text = first_line(error)
        if silent:
            who = ", ".join(str(w) for w in silent)
            text += " (no sign of life from worker %s: its process is stopped, its machine is gone, or the " % who
            text += "network to it is cut)"
        return text

    def _error(self, ending):
        if ending.kind == _DATA_ENDED:
            text = "the data of worker %d ended at step %d, so all workers end here (%s)"
            text %= (ending.worker, ending.step, ending.message)
            return blame.because_of(tf.errors.OutOfRangeError(None, None, text), ending.worker)
        return WorkerError(_sentence(ending), worker=ending.worker, step=ending.step, cause=ending.message)

    def _publish(self, kind, message):
        try:
            return self._client.fail(self.cluster.worker_index, kind, self.step, message, self._generation)
        except CommunicationError as error:
            # This worker's own error says why it ends; that worker 0 is gone before it is no news, and no cause.
            _LOG.debug("could not tell the other workers of '%s': %s", message, error)
            return self._client.ending(self._generation)

    def _on_ending(self, ending):
        if ending.worker != self.cluster.worker_index and ending.concerns(self._generation):
            self.pool.abort(_sentence(ending))

    def close(self):
        """Leaves the job in good order."""
        if self._client is None:
            return
        self.noting.left()
        self._client.leave(self.num_updates)
        self.pool.close()
        if self._server is not None:
            self._server.close()
        self._client = None
        atexit.unregister(self.close)


def _kind(error):
    return _DATA_ENDED if isinstance(error, tf.errors.OutOfRangeError) else "error"


def _sentence(ending):
    if ending.kind == "lost":
        return ending.message
    return "worker %d failed at step %d: %s" % (ending.worker, ending.step, ending.message)
