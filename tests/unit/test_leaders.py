"""How workers of several hosts come together through leaders: sockets, calls, merging. Hosts are 127.0.0.1, .2, .."""

import collections
import logging
import socket
import threading
import time
import types

import pytest

from epl.cluster import Cluster
from epl.communicators import bootstrap_relay, bootstrap_state, leaders, service
from epl.communicators.connection import Connection, WaitTimeout
from epl.communicators.merged_calls import Flights, Gatherings
from epl.communicators.wire import MAX_MESSAGE_BYTES
from epl.errors import CommunicationError
from epl.version import __version__
from tests.helpers.light_jobs import addresses
from tests.helpers.processes import free_ports

pytestmark = pytest.mark.once

TOKEN = "a token of the tests"


def at_once(calls):
    """The results of calls in threads, in their order; an error is one."""
    results = [None] * len(calls)

    def run(place):
        try:
            results[place] = calls[place]()
        except (CommunicationError, bootstrap_state.WriteError) as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


class Workers(object):
    """Workers of one job in this process."""

    def __init__(self, sizes):
        self.hosts = addresses(sizes, free_ports(1)[0])
        self.made = collections.OrderedDict()

    def come(self, *workers, timeout_s=30):
        clusters = [Cluster(len(self.hosts), worker, hosts=self.hosts) for worker in workers]
        found = at_once([lambda c=cluster: leaders.join(c, TOKEN, timeout_s) for cluster in clusters])
        for worker, each in zip(workers, found):
            if isinstance(each, Exception):
                raise each
            self.made[worker] = each
        return [self.made[worker][1] for worker in workers]

    def end(self, worker):
        service, client = self.made.pop(worker)
        client.leave(3)
        if service is not None:
            service.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in sorted(self.made, reverse=True):
            self.made[worker][1].leave()
        at_once([service.close for service, _ in self.made.values() if service is not None])


def test_workers_of_another_host_come_through_the_first_of_it(monkeypatch):
    with Workers([2, 3, 1]) as job:
        job.come(0, 3)
        job.come(1, 2, 4, 5)
        clients = [job.made[worker][1] for worker in range(6)]
        assert [client.served_by for client in clients] == [0, 0, 3, 3, 3, 0]
        clients[2].set("a", b"of 2")
        assert clients[5].get("a", 5, writer=2) == clients[4].get("a", 5) == b"of 2"
        for refused, told in (
            (lambda: clients[4].set("a", b""), "Worker 4 cannot set the key 'a', which is worker 2's"),
            (lambda: clients[4].get("a", 5, writer=0), "The key 'a' is worker 0's to set, but worker 2 did"),
            (lambda: clients[4].get("b", 0.3), "Nobody has set the key 'b' within 0.3 s"),
            (lambda: clients[4].fail(2, "error", 0, "not so", 0), "Worker 4 cannot say that worker 2 has ended"),
            (lambda: clients[4].set("b", b"x" * MAX_MESSAGE_BYTES), "bytes are allowed"),
        ):
            with pytest.raises(CommunicationError, match=told):
                refused()
        longest = b"x" * (MAX_MESSAGE_BYTES - 1000)
        clients[2].set("large", longest)
        assert clients[4].get("large", 20) == longest
        for module in (service, bootstrap_relay):
            monkeypatch.setattr(module, "PAGE_BYTES", 1000)
        values = [b"%d" % worker * (700 if worker in (2, 4) else 9) for worker in range(6)]
        found = at_once([lambda c=c: c.gather("pages", c.worker, 6, values[c.worker], 20) for c in clients])
        assert found == [(values, [])] * 6
        first, second = at_once([lambda c=c: c.gather("pair", 0, 3, b"", 0.2) for c in clients[2:4]])
        assert sorted(map(str, (first, second)))[0] == "(None, [1, 2])"
        assert [e for e in (first, second) if "cannot come to 'pair' as rank 0, which is worker" in str(e)]
        ending = clients[4].fail(4, "error", 7, "no memory", 0)
        assert all(client.ending(0, timeout_s=5) == ending for client in clients)
        assert sorted(clients[3].members().ages) == list(range(6)) and clients[2].unresponsive() == []


def test_a_leader_that_ends_sends_its_members_to_worker_0():
    with Workers([1, 3]) as job:
        job.come(0, 2)
        first, last = job.come(1, 3)
        chief = job.made[0][1]
        assert (first.served_by, last.served_by) == (2, 2)
        last.set("a", b"1")
        waiting = []
        thread = threading.Thread(target=lambda: waiting.append(first.gather("late", 0, 2, b"0", 20)))
        thread.start()
        time.sleep(0.3)
        job.end(2)
        assert (first.served_by, last.served_by) == (0, 0)
        last.set("a", b"2")  # it is still this worker's
        assert chief.get("a", 5, writer=3) == b"2"
        assert chief.gather("late", 1, 2, b"1", 20) == ([b"0", b"1"], [])
        thread.join(20)
        assert waiting == [([b"0", b"1"], [])]
        assert first.departed() == {2: 3}
        time.sleep(0.3)
        assert chief.ending(0) is None and first.ending(0) is None
        first._connection.close()  # as a crash does
        assert (chief.ending(0, 5).worker, last.ending(0, 5).worker) == (1, 1)


def test_nobody_goes_to_a_worker_0_that_is_lost(monkeypatch):
    with Workers([1, 2]) as job:
        job.come(0, 1)
        (member,) = job.come(2)
        moved = []
        monkeypatch.setattr(member, "_move", moved.append)
        job.made[0][1]._connection.close()  # as a crash does
        assert member.ending(0, 5).worker == 0
        job.end(1)
        with pytest.raises(CommunicationError, match="orker 1, which leads this host, is gone"):
            member.set("a", b"1")
        assert [(each.worker, each.kind) for each in member._endings] == [(0, "lost")] and not moved


def test_who_does_not_fit_is_refused_by_name(monkeypatch):
    with Workers([1, 2]) as job:
        job.come(0, 1)
        with pytest.raises(CommunicationError, match="Worker 0 at .* refused worker 1: two processes say"):
            leaders.join(Cluster(3, 1, hosts=job.hosts), TOKEN, 5)
        monkeypatch.setattr("epl.communicators.bootstrap.__version__", "9.9")
        with pytest.raises(CommunicationError, match="Worker 0 at .* refused worker 2: it runs epl 9.9"):
            job.come(2)
        monkeypatch.undo()
        assert job.come(2)[0].served_by == 1


def test_a_leader_takes_nobody_without_the_token_and_speaks_for_its_members_alone(caplog):
    caplog.set_level(logging.WARNING, "epl")
    with Workers([2, 2]) as job:
        job.come(0, 1, 2, 3)
        seat = leaders.Seat(TOKEN, job.hosts[0], 1)
        assert seat.address != leaders.Seat(TOKEN + "x", job.hosts[0], 1).address
        stranger = Connection(seat.address, TOKEN + "x", 3, job.hosts[0], leader=lambda: "who leads")
        with pytest.raises(CommunicationError, match="refused worker 3: this is another job"):
            stranger.enter("Join", {}, 5, 5)
        stranger.close()
        assert len([each for each in caplog.records if "does not have this job's token" in each.message]) == 1
        # One that has it, and would speak for a worker of another host.
        foreign = Connection(job.hosts[0], TOKEN, 3, job.hosts[0])
        foreign.enter("Lead", {"worker_num": 4, "version": __version__}, 5, 5)
        for name, header in (("Set", {"key": "a", "for": 1}), ("Gather", {"for": 1}), ("Lead", {"for": 1})):
            with pytest.raises(CommunicationError, match="Worker 1 has not joined the job through worker 3"):
                foreign.call(name, header, b"", 5)
        several = {"topic": "t", "size": 1, "entries": [[0, 1, 0]], "timeout_s": 0, "begin": 0}
        with pytest.raises(CommunicationError, match="Worker 1 has not joined the job through worker 3"):
            foreign.call("Several", several, b"", 5)
        foreign.call("Lost", {"worker": 1}, b"", 5)
        assert job.made[0][1].ending(0, 0.3) is None
        with pytest.raises(CommunicationError, match="wo processes say that they are worker 1"):
            foreign.call("Join", {"for": 1, "identity": "x", "worker_num": 4, "version": __version__}, b"", 5)
        time.sleep(0.5)  # gRPC complains of a channel that is closed while it looks for changes of its state
        foreign.close()


def test_a_leader_that_does_not_answer_ends_the_wait():
    job = Workers([1, 2])
    seat = leaders.Seat(TOKEN, job.hosts[0], 1)
    assert seat.take() and not leaders.Seat(TOKEN, job.hosts[0], 1).take()
    try:
        with pytest.raises(
            CommunicationError, match=r"within 1 s: The worker that leads this host \(process \d+\) is gone"
        ):
            job.come(2, timeout_s=1)
        with socket.socket(socket.AF_UNIX) as silent:  # as one that is stopped
            silent.bind("\0" + seat.address.partition(":")[2])
            silent.listen(5)
            with pytest.raises(CommunicationError, match=r"Worker 2 could not join within 1 s.*\(process \d+\) conn"):
                job.come(2, timeout_s=1)
    finally:
        seat.leave()


def test_worker_0_that_never_comes_is_named_to_all():
    job = Workers([1, 3])
    clusters = [Cluster(4, worker, hosts=job.hosts) for worker in (1, 2, 3)]
    for found in at_once([lambda c=cluster: leaders.join(c, TOKEN, 2) for cluster in clusters]):
        assert job.hosts[0] in str(found), found


# --- counts ---


def simulated_joins(sizes, monkeypatch):
    """{worker: sockets of the bootstrap service}, when all workers come; the highest of each host first."""
    sockets, led = collections.Counter(), {}
    hosts = addresses(sizes, 1000)
    serves = {hosts[0]: 0}

    def connect(address, worker):
        sockets[worker] += 1
        sockets[serves[address]] += 1

    class Seat(leaders.Seat):
        def take(self):
            return led.setdefault(self.address, self) is self

        def who(self):
            return "somebody"

    class Relay(object):
        def __init__(self, seat, token, worker, *_):
            del token
            serves[seat.address] = worker
            connect(seat.root, worker)

        def connect(self, timeout_s):
            pass

    def client(address, token, worker, worker_num, **_):
        del token, worker_num
        connect(address, worker)

    monkeypatch.setattr(leaders, "Seat", Seat)
    monkeypatch.setattr(leaders, "BootstrapRelay", Relay)
    monkeypatch.setattr(leaders, "BootstrapServer", lambda *_: None)
    monkeypatch.setattr(leaders, "BootstrapClient", client)
    nodes = Cluster(len(hosts), 0, hosts=hosts).nodes
    for worker in reversed(range(len(hosts))):
        cluster = types.SimpleNamespace(worker_index=worker, worker_num=len(hosts), nodes=nodes)
        cluster.bootstrap_address = hosts[0]
        leaders.join(cluster, TOKEN)
    return sockets


@pytest.mark.parametrize("sizes", [[64] * 64, [2, 2], [1, 3, 1], [5]])
def test_sockets_grow_with_ranks_on_a_host_and_hosts(sizes, monkeypatch):
    found = simulated_joins(sizes, monkeypatch)
    first = 0
    for size in sizes:
        ranks = range(first, first + size)
        # A server has both ends of its own connection, which a worker alone on its host need not have.
        assert max(found[rank] for rank in ranks) <= max(size + len(sizes), 4)
        first += size


def test_worker_0_is_called_once_a_host(monkeypatch):
    """4,096 ranks on 64 hosts come to a gathering; those of the last hosts ask once more, when it is complete."""
    hosts, each = 64, 64
    size, calls = hosts * each, collections.Counter()
    state = bootstrap_state.BootstrapState(size)
    now = [0.0]

    def ask(topic, size, entries, timeout_s):
        calls["all"] += 1
        calls["ranks"] += len(entries)
        now[0] += 100.0  # the members' time is over
        return state.gather_several(topic, size, entries, 0.0, lambda: True)

    relays = [Gatherings(ask, lambda: each, size, (50.0, 50.0), lambda: now[0]) for _ in range(hosts)]

    def all_come(*of_hosts):
        for host in of_hosts:
            relay, ranks = relays[host], range(host * each, host * each + each)
            yield at_once([lambda r=r: relay.gather("cards", r, size, b"%d" % r, r, 60.0, lambda: True) for r in ranks])

    found = list(all_come(*range(hosts)))
    assert all(values is None and missing for values, missing in found[0])
    assert (calls["all"], calls["ranks"]) == (hosts, size)
    everyone = [b"%d" % rank for rank in range(size)], []
    assert all(answer == everyone for answers in all_come(0, 1, hosts - 1) for answer in answers)
    assert calls["ranks"] == size and calls["all"] <= hosts + 3


def test_one_question_at_a_time():
    asked, looked = [], collections.Counter()

    def clock():
        looked[threading.get_ident()] += 1
        return time.monotonic()

    def slow(left):
        asked.append(left)
        # Who looks at the clock a second time waits for the answer, or has asked.
        while sum(times > 1 for times in looked.values()) < 8:
            time.sleep(0.01)
        return "answer"

    flights = Flights(clock=clock)
    assert at_once([lambda: flights.ask("q", 100, slow)] * 8) == ["answer"] * 8 and len(asked) == 1

    def slower(left):
        time.sleep(0.3)
        return "answer"

    late = at_once([lambda: flights.ask("q", 100, slower), lambda: flights.ask("q", 0.05, slower)])
    assert "answer" in late and (late == ["answer"] * 2 or any(isinstance(each, WaitTimeout) for each in late))

    def fails(left):
        raise CommunicationError("no")

    assert [str(each) for each in at_once([lambda: flights.ask("q", 5, fails)] * 3)] == ["no"] * 3


def test_what_could_not_be_told_is_told_again():
    told, down = [], [True]

    def ask(topic, size, entries, timeout_s):
        if down:
            raise CommunicationError(down.pop() and "worker 0 does not answer")
        told.extend(rank for rank, _, _ in entries)
        return ([b"a", b"b"], [], {}) if len(told) == 2 else (None, [1], {})

    relay = Gatherings(ask, lambda: 1, 8)
    with pytest.raises(CommunicationError, match="does not answer"):
        relay.gather("t", 0, 2, b"a", 4, 0.0, lambda: True)
    assert relay.gather("t", 0, 2, b"a", 4, 0.0, lambda: True) == (None, [1])
    assert relay.gather("t", 1, 2, b"b", 5, 0.0, lambda: True) == ([b"a", b"b"], [])
    assert told == [0, 1]
