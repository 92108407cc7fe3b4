"""Waits for other workers end: by a deadline, or because of what became of who is waited for. No network."""

import ast
import functools
import os
import types

import pytest
import tensorflow.compat.v1 as tf

from epl.communicators import waiting
from epl.communicators.bootstrap import Members, WaitTimeout
from epl.communicators.wire import Ending
from epl.config import Config
from epl.errors import CommunicationError
from epl.session.endings import causes
from epl.session.front_ends import meeting, monitored
from epl.session.job import Job

pytestmark = pytest.mark.either_line

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Clock(object):
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(waiting.time, "monotonic", lambda: self.now)


class Client(object):
    """Worker 1 of three; every `get` takes as long as it may."""

    worker, worker_num = 1, 3
    reason = gathering = None  # why workers cannot come in; at which topic this one waits

    def trouble(self):
        return self.reason

    def __init__(self, clock, ages=None, left=(), ending=None, comes_after=None):
        self._clock, self._began = clock, clock.now
        self.ages, self.left, self._ending, self._comes_after = ages or {}, list(left), ending, comes_after

    def get(self, key, timeout_s, writer=None):
        self._clock.now += timeout_s
        if self._comes_after is not None and self._clock.now - self._began >= self._comes_after:
            return b"value"
        raise WaitTimeout("nobody has set it")

    def gather(self, topic, rank, size, value, timeout_s):
        self._clock.now += timeout_s
        if self._comes_after is not None and self._clock.now - self._began >= self._comes_after:
            return [b"a", value, b"c"], []
        return None, [each for each in range(size) if each != rank]

    def members(self):
        return Members(self.ages, self.left)

    def ending(self, generation, timeout_s=0.0):
        self._clock.now += timeout_s
        early = self._comes_after is not None and self._clock.now - self._began < self._comes_after
        return None if early or self._ending is None or not self._ending.concerns(generation) else self._ending

    def departed(self):
        return {worker: None for worker in self.left}


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def wait(client, **limits):
    return waiting.wait_for_key(client, "key", "worker 2 to come", 2, **limits)


def test_what_comes_in_time(clock):
    assert wait(Client(clock, {0: 0, 1: 0, 2: 0}, comes_after=500)) == b"value"


@pytest.mark.parametrize(
    "client, limits, told, seconds",
    [
        (dict(ages={0: 0, 1: 0}), {"start_s": 30.0}, r"worker 2 has not started within 30 s.*start_timeout_s", 31),
        (dict(ages={2: 9.0}, left=[]), {"silence_s": 8.0}, "no sign of life from worker 2 for 9 s.*stopped", 1),
        (dict(ages={0: 0}, left=[2]), {}, "worker 2 has ended already.*same calls", 1),
        (dict(ages={2: 0}), {"limit_s": 7.5}, "worker 1 has waited 7.5 s in vain for worker 2 to come", 7.5),
        (dict(ages={2: 0}, ending=Ending(0, "error", 3, "no memory", 4)), {"generation": 4}, "0 has failed: no mem", 1),
    ],
)
def test_what_does_not_come(clock, client, limits, told, seconds):
    client, began = Client(clock, **client), clock.now
    with pytest.raises(CommunicationError, match=told):
        wait(client, **limits)
    assert clock.now - began <= seconds + 1


def test_what_cannot_come_any_more_is_not_waited_for(clock):
    """Unless it has come just now, which is why it has to be hopeless twice."""
    ahead = lambda members: "worker 2 is at %s" % members.places[2][0] if 2 in members.places else None  # noqa: E731
    client, began = Client(clock, {0: 0, 1: 0, 2: 0}), clock.now
    client.members = lambda: Members({0: 0, 1: 0, 2: 0}, [], {}, {2: [[0, 7], None]} if clock.now > began + 20 else {})
    with pytest.raises(CommunicationError, match=r"^worker 1 waits for worker 2 to come, but worker 2 is at \[0, 7\]$"):
        wait(client, hopeless=ahead)
    assert clock.now - began <= 23
    client, began = Client(clock, {0: 0, 1: 0, 2: 0}, comes_after=22), clock.now
    client.members = lambda: Members({0: 0, 1: 0, 2: 0}, [], {}, {2: [[0, 7], None]} if clock.now > began + 20 else {})
    assert wait(client, hopeless=ahead) == b"value"


def test_workers_that_wait_for_each_other_at_different_places(clock):
    client, began = Client(clock, {0: 0.5, 1: 0.5, 2: 0.5}), clock.now
    client.members = lambda: Members(client.ages, [], {}, {0: [None, "topic"], 1: [None, "x"], 2: [None, "other"]})
    with pytest.raises(
        CommunicationError, match="waits for the others, but worker 2 has come to another call, in which"
    ):
        waiting.gather(client, "topic", 1, 3, b"", "the others")
    assert 10 < clock.now - began <= 12 and client.gathering is None
    # What was heard of it is from before this one came here.
    client, began = Client(clock, {0: 0.5, 1: 0.5}, comes_after=60), clock.now
    client.members = lambda: Members({0: 0.5, 1: 0.5, 2: clock.now - began}, [], {}, {2: [None, "other"]})
    assert waiting.gather(client, "topic", 1, 3, b"b", "the others") == [b"a", b"b", b"c"]


def test_who_cannot_come_in_is_not_waited_for(clock):
    client = Client(clock, {0: 0, 1: 0})
    client.reason = "has no file descriptors left"
    with pytest.raises(CommunicationError, match="^worker 1 waits for worker 2 to come, but worker 1 has no file desc"):
        wait(client)
    client.ages = {0: 0, 1: 0, 2: 0}  # it is there
    client._comes_after = 20
    assert wait(client) == b"value"


@pytest.mark.parametrize("place, said", [([0, 2], None), ([0, 3], "worker 2 is at another step"), ([1, 3], None)])
def test_who_is_ahead_needs_this_worker(place, said):
    job = Job(types.SimpleNamespace(worker_num=1, worker_index=1), Config({}, {}))
    job._exchanges = 2
    found = job._ahead(Members({}, [], {}, {0: [[0, 2], None], 1: [[0, 2], None], 2: [place, None]}))
    assert found is said is None or found.startswith(said)


def test_who_waits_says_so(clock, caplog):
    caplog.set_level("INFO", "epl")
    wait(Client(clock, {0: 0, 1: 0}, comes_after=25))
    assert [record.getMessage() for record in caplog.records] == [
        "worker 1 has waited %d s for worker 2 to come; worker 2 has not started yet" % seconds for seconds in (10, 20)
    ]


def test_a_gathering_says_who_is_missing(clock):
    client = Client(clock, ages={0: 0, 1: 0, 2: 0})
    with pytest.raises(waiting.Missing, match="worker 1 has waited 7.5 s in vain for the others") as caught:
        waiting.gather(client, "topic", 1, 3, b"", "the others", limit_s=7.5)
    assert caught.value.ranks == [0, 2]
    assert waiting.gather(Client(clock, {0: 0}, comes_after=300), "topic", 1, 3, b"b", "the others") == [
        b"a",
        b"b",
        b"c",
    ]
    with pytest.raises(CommunicationError, match="worker 2 has ended already"):
        waiting.gather(Client(clock, {0: 0}, left=[2]), "topic", 1, 3, b"", "the others")


WHY = "epl communication: 'x': worker 2: the step was cancelled while 'y' was under way"


@pytest.mark.parametrize(
    "said, client, limit_s, found, seconds",
    [
        (WHY, dict(ending=Ending(2, "error", 3, "no memory", 0), comes_after=25), 60, True, 25),
        (WHY, dict(), 60, False, 60),
        (WHY, dict(left=[2]), 60, False, 1),
        ("the connection broke", dict(ending=Ending(2, "error", 3, "no memory", 0), comes_after=25), 60, False, 3),
    ],
)
def test_a_worker_whose_step_fails_has_time_to_say_why(clock, caplog, said, client, limit_s, found, seconds):
    caplog.set_level("INFO", "epl")
    client, began = Client(clock, **client), clock.now
    config = Config({"communication.timeout_s": limit_s, "communication.start_timeout_s": limit_s})
    job = Job(types.SimpleNamespace(worker_num=1, worker_index=1), config)
    job._client = client
    ending = job._cause(CommunicationError(said))
    assert (ending is not None) == found and clock.now - began == pytest.approx(seconds, abs=1)
    notices = [record.getMessage() for record in caplog.records]
    assert notices == ["worker 1 waits to hear why " + WHY] * (int(seconds) // 10 - (not found and seconds > 10))


def test_a_session_is_not_waited_for_without_end(clock, monkeypatch):
    """A worker that lives but never comes to where a session over several workers is made."""
    began, config = clock.now, Config({"communication.start_timeout_s": 25})
    job = Job(types.SimpleNamespace(worker_num=1, worker_index=1), config)
    job.cluster, job._client = types.SimpleNamespace(worker_num=3, worker_index=1), Client(clock, {0: 0, 1: 0, 2: 0})
    monkeypatch.setattr(meeting, "job", lambda: job)
    monkeypatch.setattr(meeting, "several_workers", lambda: True)
    monkeypatch.setattr(meeting, "is_chief", lambda: False)
    monkeypatch.setattr(monitored.Env, "get", lambda: types.SimpleNamespace(config=config))
    with pytest.raises(
        CommunicationError, match="worker 1 has waited 25 s in vain for workers 0, 2 to come to the same call"
    ):
        monitored._shared_checkpoint(None)
    assert clock.now - began < 30


COMM = "epl communication: all_reduce 'x': worker 0 waited 8 s for worker 1"


@pytest.mark.parametrize(
    "message, said, from_communication",
    [
        (COMM + "\n\t [[{{node x}}]]", COMM, True),
        ("2 root error(s) found.\n  (0) UNKNOWN: %s\n\t [[{{node x}}]]\n  (1) UNKNOWN: b\n" % COMM, "b", False),
        (
            "2 root error(s) found.\n  (0) UNKNOWN: %s\n\t [[{{node x}}]]\n  (1) UNKNOWN: %s\n" % (COMM, COMM),
            COMM,
            True,
        ),
        ("2 root error(s) found.\n  (0) Unknown: %s\n  (1) Cancelled: cancelled by x" % COMM, COMM, True),
        ("2 root error(s) found.\n  (0) Unknown: %s\n  (1) Invalid argument: Nan in x\n" % COMM, "Nan in x", False),
        ("2 root error(s) found.\n  (0) Unknown: KeyError: 'a'\nx\n  (1) Unknown: b", "KeyError: 'a'", False),
        ("2 root error(s) found.\n  (0) Unknown: %s\n  (1) Out of range: End\n" % COMM, "End", True),
        ("Nan in x\n\t [[node]]", "Nan in x", False),
    ],
)
def test_what_an_error_says_whose_causes_are_several(message, said, from_communication):
    error = tf.errors.UnknownError(None, None, message)
    assert causes.first_line(error) == said
    assert causes.from_communication(error) == from_communication


# Waits that do not go through epl.communicators.waiting: (file, function) to why not.
BESIDE = {
    ("communicators/waiting.py", "wait_for_key"): "the helper itself",
    ("communicators/waiting.py", "gather"): "the helper itself",
    ("communicators/pool.py", "measure"): "looks, and does not wait",
    ("communicators/bootstrap.py", "ending"): "waits here for what worker 0 pushes, by a deadline",
    ("communicators/gate.py", "_without_descriptors"): "a moment, for other threads to close some",
    ("session/recorded.py", "_leave"): "for files of workers that end together, by a deadline",
    ("session/owned.py", "_lives"): "watches a file for some seconds",
    ("session/owned.py", "_take"): "a moment, for another process that takes the same file over",
    ("session/owned.py", "_touch"): "a thread that touches files now and then, as long as the process lives",
    ("communicators/silence.py", "look"): "a thread that looks around now and then, until the service ends",
    ("communicators/silence.py", "run"): "the same",
    ("communicators/bootstrap.py", "_call"): "for this worker's way from one service to another, by a deadline",
    ("communicators/bootstrap.py", "_enter"): "for the service's answer to a call, by a deadline",
    (
        "communicators/connection.py",
        "_enter",
    ): "comes before the helper can ask anybody; has deadline and notice of its own",
    ("communicators/leaders.py", "_join_host"): "a pause between two attempts, until a deadline",
    ("communicators/bootstrap_relay.py", "connect"): "for worker 0's answer to a call, by a deadline",
    ("communicators/bootstrap_relay.py", "abandon"): "for the relay's own threads, by a deadline",
    ("communicators/bootstrap_relay.py", "close"): "for the relay's own threads, by a deadline",
    ("communicators/bootstrap_relay.py", "_join"): "the service's side: its callers set the deadline",
    ("communicators/bootstrap_relay.py", "_report"): "a pause between two reports",
    ("communicators/bootstrap_relay.py", "_news"): "the service's side, at its end, as long as `close` lets it",
    ("communicators/merged_calls.py", "gather"): "the service's side: its callers set the deadline",
    ("communicators/merged_calls.py", "_send"): "for a few milliseconds",
    ("communicators/merged_calls.py", "ask"): "the service's side: its callers set the deadline",
    ("communicators/bootstrap.py", "_send_heartbeats"): "a pause between two heartbeats",
    ("communicators/bootstrap_server.py", "close"): "for worker 0's own threads, by a deadline",
    ("communicators/bootstrap_state.py", "wait_for_leaving"): "the service's side, at its end, by a deadline",
    ("communicators/bootstrap_state.py", "endings_after"): "the service's side: its callers set the deadline",
    ("communicators/bootstrap_state.py", "wait_for_members"): "the service's side, at its end, by a deadline",
    ("communicators/bootstrap_state.py", "_gathered"): "the service's side: its callers set the deadline",
    ("communicators/bootstrap_state.py", "_wait"): "the service's side: its callers set the deadline",
    ("session/ahead.py", "ends_within"): "for a thread of this process, in slices, between which others are looked at",
    ("session/background.py", "finish"): "for a thread of this process, which communicates and so has deadlines",
    ("session/front_ends/saves.py", "_look"): "for a disk to show a file, by a deadline; no worker is waited for",
    ("launch/function.py", "_launch"): "for the launcher, once it has closed its output, by a deadline",
    ("launch/stacks.py", "ask"): "for a process of this machine to write a file, by a deadline",
    ("launch/top.py", "_watch"): "a pause between two looks at files",
    ("launch/processes.py", "end_sessions"): "for processes of this machine to end, by a deadline",
    ("launch/processes.py", "close"): "for the guard, a process of this machine, to end, by a deadline",
}
_CLIENTS = ("client", "_client")


def _name_of(node):
    """The last name of `x`, `a.x` or `a.x()`."""
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "attr", getattr(node, "id", None))


def _waits_for_others(call):
    """Whether a call waits for somebody: sleeps, waits for an event, a process or a thread, asks for a key."""
    if not isinstance(call.func, ast.Attribute):
        return False
    name, receiver = call.func.attr, _name_of(call.func.value)
    if name == "sleep" or name in ("wait", "wait_for", "result", "communicate"):
        return receiver not in ("self", "wait_for")
    if name == "join":
        return bool(receiver and "thread" in receiver) or not call.args and not call.keywords
    return name in ("get", "gather") and receiver in _CLIENTS


def _waits(tree):
    """(function, line) of calls that wait."""
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.Lambda)):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and _waits_for_others(node):
                    yield getattr(function, "name", "lambda"), node.lineno


@functools.lru_cache(maxsize=None)
def _trees():
    return list(_parsed())


def _parsed():
    for folder, _, files in os.walk(os.path.join(ROOT, "epl")):
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as file:
                    yield os.path.relpath(path, os.path.join(ROOT, "epl")), ast.parse(file.read())


def test_every_wait_goes_through_the_helper():
    found = {(path, function): line for path, tree in _trees() for function, line in _waits(tree)}
    new = [
        "%s:%d in %s" % (path, line, function)
        for (path, function), line in found.items()
        if (path, function) not in BESIDE
    ]
    assert not new, "these wait beside epl.communicators.waiting: " + ", ".join(sorted(new))
    assert not set(BESIDE) - set(found), "these do not wait any more"


def _waits_without_end(tree):
    """(line, text) of calls of `x.wait()`, `x.join()` or `x.communicate()` that have no time-out at all."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("wait", "join", "communicate", "result") and not node.args and not node.keywords:
                yield node.lineno, ast.dump(node.func)


def test_no_wait_is_without_a_deadline():
    found = ["%s:%d" % (path, line) for path, tree in _trees() for line, _ in _waits_without_end(tree)]
    assert not found, "these wait for ever: " + ", ".join(found)


def test_the_check_sees_waits():
    for text in ("event.wait(3)", "time.sleep(1)", "self._client.get('k', 5.0)", "thread.join(2)", "client.gather()"):
        assert list(_waits(ast.parse("def f():\n    " + text))) == [("f", 2)], text
    assert not list(_waits(ast.parse("def f(x):\n    x.get('k', 5)\n    ', '.join(x)\n    os.path.join(x, x)")))
    assert list(_waits_without_end(ast.parse("event.wait()"))) and not list(_waits_without_end(ast.parse("e.wait(3)")))
