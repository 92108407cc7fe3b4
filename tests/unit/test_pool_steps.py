"""What the pool hands to the native library step by step, and what it says when that is refused. No processes."""

import types

import pytest

from epl.communicators import native
from epl.communicators.pool import Pool
from epl.communicators.waiting import Missing
from epl.config import Config
from epl.errors import CommunicationError

pytestmark = pytest.mark.once


class Library(object):
    """Takes tags for communicators, with a code for an answer."""

    def __init__(self):
        self.code, self.expected, self.arrays = native.OK, [], []

    def epl_comm_expect(self, comm, tags, count):
        self.expected.append((comm, list(tags)[:count]))
        self.arrays.append(tags)
        return self.code

    def epl_comm_abort(self, comm, reason):
        del comm, reason

    def epl_pool_set(self, slot, comm):
        del slot, comm


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(native, "comm", lambda: made)
    return made


@pytest.fixture
def pool(library):
    made = Pool(types.SimpleNamespace(worker_num=2, worker_index=0), None)
    made._control = "control"
    for slot in (0, 1):
        made._take_slot(slot, "comm %d" % slot)
    return made


def test_tags_are_made_for_the_library_once_for_each_kind_of_step(pool, library):
    first, second = {1: [5, 6], 0: [4]}, {0: [7]}
    for orders in (first, second, first):
        pool.expect(orders)
    assert library.expected == [
        ("comm 0", [4]),
        ("comm 1", [5, 6]),
        ("comm 0", [7]),
        ("comm 0", [4]),
        ("comm 1", [5, 6]),
    ]
    assert library.arrays[0] is library.arrays[3] and library.arrays[1] is library.arrays[4]


def test_a_list_for_no_communicator(pool):
    with pytest.raises(CommunicationError, match="tags for communicator 3 but there are 2 communicators"):
        pool.expect({3: [1]})


@pytest.mark.parametrize(
    "code, aborted, said",
    [
        ("INVALID", None, "next step: the step before is not through"),
        ("PEER_LOST", None, "next step: it has ended .PEER_LOST."),
        ("ABORTED", "worker 1 failed at step 3: no memory", "next step: worker 1 failed at step 3: no memory"),
    ],
)
def test_why_the_next_step_is_refused(pool, library, code, aborted, said):
    library.code = next(number for number, name in native.CODES.items() if name == code)
    if aborted:
        pool.abort(aborted)
    with pytest.raises(CommunicationError, match=said) as caught:
        pool.expect({0: [1]})
    assert caught.value.code == code


def test_who_does_not_come_is_named_with_the_address(library, monkeypatch):
    def gather(*args, **limits):
        raise Missing("in vain", [1, 2])

    monkeypatch.setattr("epl.communicators.pool.gather", gather)
    hosts = ("10.0.0.4:2222", "10.0.0.5:2222", "10.0.0.7:2223")
    cluster = types.SimpleNamespace(worker_num=3, worker_index=0, hosts=hosts)
    pool = Pool(cluster, Config({"communication.start_timeout_s": 5.0}), object())
    said = r"worker 1 \(10.0.0.5:2222\), worker 2 \(10.0.0.7:2223\) did not come within 5 s"
    with pytest.raises(CommunicationError, match=said):
        pool.connect(0)
