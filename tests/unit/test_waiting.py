"""Waits for other workers end: by a deadline, or because of what became of who is waited for. No network."""

import ast
import os

import pytest

from epl.communicators import waiting
from epl.communicators.bootstrap import Members, WaitTimeout
from epl.communicators.wire import Ending
from epl.errors import CommunicationError

pytestmark = pytest.mark.once
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Clock(object):
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(waiting.time, "monotonic", lambda: self.now)


class Client(object):
    """Worker 1 of three; every `get` takes as long as it may."""

    worker, worker_num = 1, 3

    def __init__(self, clock, ages=None, left=(), ending=None, comes_after=None):
        self._clock, self._began = clock, clock.now
        self.ages, self.left, self._ending, self._comes_after = ages or {}, list(left), ending, comes_after

    def get(self, key, timeout_s, writer=None):
        self._clock.now += timeout_s
        if self._comes_after is not None and self._clock.now - self._began >= self._comes_after:
            return b"value"
        raise WaitTimeout("nobody has set it")

    def members(self):
        return Members(self.ages, self.left)

    def ending(self, generation):
        return self._ending if self._ending is not None and self._ending.concerns(generation) else None


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


def test_who_waits_says_so(clock, caplog):
    caplog.set_level("INFO", "epl")
    wait(Client(clock, {0: 0, 1: 0}, comes_after=25))
    assert [record.getMessage() for record in caplog.records] == [
        "worker 1 has waited %d s for worker 2 to come; worker 2 has not started yet" % seconds for seconds in (10, 20)
    ]


def _waits_without_end(tree):
    """(line, text) of calls of `x.wait()`, `x.join()` or `x.communicate()` that have no time-out at all."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("wait", "join", "communicate", "result") and not node.args and not node.keywords:
                yield node.lineno, ast.dump(node.func)


def test_no_wait_is_without_a_deadline():
    found = []
    for folder, _, files in os.walk(os.path.join(ROOT, "epl")):
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with open(path) as file:
                    found.extend("%s:%d" % (path, line) for line, _ in _waits_without_end(ast.parse(file.read())))
    assert not found, "these wait for ever: " + ", ".join(found)


def test_the_check_sees_a_wait_without_a_deadline():
    assert list(_waits_without_end(ast.parse("event.wait()"))) and not list(_waits_without_end(ast.parse("e.wait(3)")))
