"""Who gives no sign of life: named first, lost after communication.stopped_s."""

import threading
import time

import pytest

from epl.communicators import silence
from epl.communicators.bootstrap_state import BootstrapState
from epl.communicators.silence import Silence, look, lost_text

pytestmark = pytest.mark.once


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(name="log")
def log_of_epl(caplog):
    caplog.set_level("INFO", "epl")
    return caplog


def test_named_once_and_then_lost(log):
    found = Silence(0, 60.0)
    assert found.over({1: 9.0, 2: 10.9}) == [] and not log.messages
    assert found.over({1: 11.5, 2: 1.0}) == [] and found.over({1: 12.5, 2: 1.0}) == []
    assert len(log.messages) == 1 and "no sign of life from worker 1 for 12 s" in log.messages[0]
    assert found.over({1: 61.5, 2: 1.0}) == [(1, 61.5)]
    assert found.over({1: 0.1}) == [] and log.messages[1] == "worker 0 hears worker 1 again"
    assert lost_text(1, 61.5).startswith(
        "no sign of life from worker 1 for 62 s (communication.stopped_s): its process"
    )


def test_without_a_number_nobody_is_lost():
    assert Silence(0, None).over({1: 1e9}) == []


def test_calls_without_an_answer():
    clock = Clock()
    found = Silence(1, 60.0, clock=clock)
    clock.now = 50.0
    assert found.called(0, False, 5.0, 5.0) == []
    clock.now = 62.0
    assert found.called(0, False, 5.0, 5.0) == [(0, 62.0)]
    assert found.called(0, True, 0.1, 5.0) == []
    clock.now = 200.0
    assert found.called(0, False, 5.0, 5.0) == [(0, 138.0)]


def test_the_time_in_which_this_process_was_stopped_does_not_count():
    clock = Clock()
    found = Silence(1, 60.0, clock=clock)
    clock.now = 300.0
    assert found.called(0, False, 295.0, 5.0) == []  # it was stopped inside of the call
    clock.now = 361.5
    assert found.called(0, False, 5.0, 5.0) == [(0, 61.5)]


def state_of_two(clock):
    state = BootstrapState(2, clock)
    for worker in range(2):
        assert state.join(worker, "process %d" % worker) is None
    return state


def test_the_service_loses_who_is_silent(monkeypatch):
    monkeypatch.setattr(silence, "_LOOK_S", 0.01)
    clock, stopped = Clock(), threading.Event()
    state = state_of_two(clock)
    look(state, Silence(0, 60.0), stopped)
    clock.now = 62.0
    state.heard(0)
    deadline = time.monotonic() + 60
    while not state.endings_after(0, 0.0)[0]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stopped.set()
    (ending,) = state.endings_after(0, 0.0)[0]
    assert (ending.worker, ending.kind, ending.message) == (1, "lost", lost_text(1, 62.0))


def test_after_it_was_stopped_itself_the_service_has_just_heard_all():
    clock = Clock()
    state = state_of_two(clock)
    clock.now = 300.0
    state.hear_all()
    assert state.silences() == {0: 0.0, 1: 0.0}


def test_a_silent_leader_stands_for_its_members():
    clock = Clock()
    state = BootstrapState(4, clock)
    assert state.lead(2, "link") is None
    assert state.join(2, "a", "link") is None and state.join(3, "b", "link") is None
    state.heard_through("link", [[2, 0.0, None], [3, 0.5, [0, 7]]])
    assert state.places() == {3: [0, 7]}
    clock.now = 30.0
    assert state.silences() == {2: 30.0}
