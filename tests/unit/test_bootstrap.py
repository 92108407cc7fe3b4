"""The bootstrap service: keys, gatherings, endings, refusals. Everything in one process, over real connections."""

import collections
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import grpc
import pytest

from epl.cluster import Cluster
from epl.communicators import bootstrap_state, wire
from epl.communicators.bootstrap import EVERY_GENERATION, BootstrapClient, BootstrapServer, Ending, job_token
from epl.communicators.proof import ClientProof
from epl.errors import CommunicationError
from tests.helpers.processes import clean_environment, free_ports

pytestmark = pytest.mark.once

TOKEN = "a token of the tests"
# How long a thread may take that waits for nobody, and for how long one would wait that does: no measure of speed.
LIMIT_S, NEVER_S = 120, 1000


@pytest.fixture
def job():
    """Makes a service and clients of a job with any number of workers; ends them after the test."""
    made = []

    def make(workers):
        server = BootstrapServer("127.0.0.1:0", TOKEN, workers, timeout_s=30)
        made.append(server.close)
        address = "127.0.0.1:%d" % server.port
        clients = [BootstrapClient(address, TOKEN, index, workers, timeout_s=10) for index in range(workers)]
        made.extend(client.leave for client in clients)
        return address, clients

    yield make
    for end in reversed(made):
        end()


def in_thread(call):
    """Starts `call` and returns a function that waits for its result, which may be an exception."""
    result = []

    def run():
        try:
            result.append(call())
        except CommunicationError as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def join():
        thread.join(LIMIT_S)
        assert result, "still running after %d s" % LIMIT_S
        return result[0]

    return join


def until(true):
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def crash(client):
    """Ends a client the way a crash does: its connection is gone, nothing was said."""
    client._stopped.set()
    client._connection.close()


def test_keys(job):
    _, (first, second) = job(2)
    waiting = in_thread(lambda: second.get("a", 10))
    first.set("a", b"\0\xff" * 1000)
    assert waiting() == b"\0\xff" * 1000
    second.set("b/1", b"")
    assert second.get("b/1", 1) == b""
    second.clear("b/")
    with pytest.raises(CommunicationError, match="Nobody has set the key 'b/1' within 0.3 s"):
        first.get("b/1", 0.3)
    with pytest.raises(CommunicationError, match="Worker 1 has not set the key 'b/1' within 0.3 s"):
        first.get("b/1", 0.3, writer=1)
    assert first.get("a", 1)


class TooLate(grpc.RpcError):
    """What gRPC raises where the time of day has been set ahead during a call."""

    def code(self):
        return grpc.StatusCode.DEADLINE_EXCEEDED

    def details(self):
        return "Deadline Exceeded"


def test_a_call_that_is_over_before_its_time_comes_again(job, monkeypatch):
    _, (client,) = job(1)
    rpc, late, made = client._connection.rpc, [TooLate()], []

    def jumps(name, header, *rest):
        if name != "Set":
            return rpc(name, header, *rest)
        made.append(header["key"])
        if late:
            raise late.pop()
        return rpc(name, header, *rest)

    monkeypatch.setattr(client._connection, "rpc", jumps)
    client.set("a", b"1")
    assert client.get("a", 1) == b"1" and made == ["a", "a"]
    late.extend([TooLate(), TooLate()])
    with pytest.raises(CommunicationError, match="Worker 0 at .* did not answer within 10 s"):
        client.set("b", b"1")
    assert made == ["a", "a", "b", "b"]


def test_a_key_belongs_to_who_sets_it(job, caplog):
    _, (chief, first, second) = job(3)
    first.set("a", b"1")
    first.set("a", b"2")
    for refused, told in (
        (lambda: second.set("a", b"3"), "Worker 2 cannot set the key 'a', which is worker 1's"),
        (lambda: second.clear("a"), "Worker 2 cannot clear the key 'a', which is worker 1's"),
        (lambda: second.get("a", 5, writer=0), "The key 'a' is worker 0's to set, but worker 1 did"),
        (lambda: second.fail(1, "error", 0, "not so", 0), "Worker 2 cannot say that worker 1 has ended"),
    ):
        with pytest.raises(CommunicationError, match=told):
            refused()
    assert "worker 2 cannot set the key 'a'" in caplog.text
    assert second.get("a", 5, writer=1) == b"2"
    chief.clear("a")
    with pytest.raises(CommunicationError, match="within 0.1 s"):
        first.get("a", 0.1)


def test_a_third_host_that_has_the_token_speaks_for_nobody(job):
    """It knows the token and all addresses, and wants workers to take its bytes for those of worker 1."""
    address, (chief, first) = job(2)
    with pytest.raises(CommunicationError, match="two processes say that they are worker 1"):
        BootstrapClient(address, TOKEN, 1, 2, timeout_s=10)
    with pytest.raises(CommunicationError, match="there is no worker 2 in a job of 2"):
        BootstrapClient(address, TOKEN, 2, 2, timeout_s=10)
    # A client that leaves out joining.
    guest = ClientProof(TOKEN, 1)
    with grpc.insecure_channel(address) as channel:
        guest.accept(channel.unary_unary("/%s/Hello" % wire.SERVICE)(guest.nonce, timeout=10))
        for name, header in (("Set", {"key": "meet/g0/0/1"}), ("Watch", {}), ("Leave", {})):
            call = channel.unary_stream if name == "Watch" else channel.unary_unary
            with pytest.raises(grpc.RpcError, match="has not joined the job as worker 1"):
                list(call("/%s/%s" % (wire.SERVICE, name))(guest.seal(name, wire.pack(header, b"!"))[0], timeout=10))
    first.set("meet/g0/0/1", b"own")
    assert chief.get("meet/g0/0/1", 5, writer=1) == b"own"


def test_a_service_without_the_token_is_refused(job):
    """A worker tells nothing to who answers at worker 0's address without being of the job."""
    address, _ = job(1)
    with pytest.raises(CommunicationError, match="refused worker 0: this is another job: it does not prove"):
        BootstrapClient(address, "the right token", 0, 1, timeout_s=10)


def test_message_size_is_bounded(job):
    _, (client,) = job(1)
    client.set("large", b"x" * (wire.MAX_MESSAGE_BYTES - 1000))
    assert len(client.get("large", 5)) == wire.MAX_MESSAGE_BYTES - 1000
    with pytest.raises(CommunicationError, match="bytes are allowed"):
        client.set("too large", b"x" * wire.MAX_MESSAGE_BYTES)


def test_gathering_and_who_is_missing(job):
    _, clients = job(3)
    assert clients[0].gather("start", 0, 3, b"of 0", 0.2) == (None, [1, 2])
    waiting = [in_thread(lambda c=c: c.gather("start", c.worker, 3, b"of %d" % c.worker, 10)) for c in clients[1:]]
    everyone = [b"of 0", b"of 1", b"of 2"], []
    assert [wait() for wait in waiting] == [everyone] * 2
    assert clients[0].gather("start", 0, 3, b"of 0", 0.2) == everyone  # it has come before
    assert clients[2].gather("pair", 1, 2, b"", 0.0) == (None, [0])  # ranks of a group are others
    with pytest.raises(CommunicationError, match="(?i)worker 1 cannot come to 'pair' as rank 1, which is worker 2"):
        clients[1].gather("pair", 1, 2, b"", 0.0)
    with pytest.raises(CommunicationError, match="comes to 'other' as rank 2 of 2"):
        clients[1].gather("other", 2, 2, b"", 0.0)
    clients[0].clear("start")
    assert clients[1].gather("start", 1, 3, b"", 0.0) == (None, [0, 2])


def test_what_is_gathered_may_be_larger_than_a_message(job):
    _, clients = job(2)
    values = [b"0" * (wire.MAX_MESSAGE_BYTES - 1000), b"1" * (wire.MAX_MESSAGE_BYTES - 1000)]
    waiting = [in_thread(lambda c=c: c.gather("large", c.worker, 2, values[c.worker], 20)) for c in clients]
    assert all(wait() == (values, []) for wait in waiting)


def test_gathering_without_one_who_is_lost(job):
    _, clients = job(2)
    waiting = in_thread(lambda: clients[0].gather("end", 0, 2, b"", NEVER_S))
    time.sleep(0.2)
    clients[1]._connection.close()
    assert "cannot come any more" in str(waiting())


def test_calls_to_the_service_do_not_grow_with_the_workers(monkeypatch):
    """4,096 workers come before all are there, and some of them ask once more, as all do."""
    size, calls = 4096, collections.Counter()
    state = bootstrap_state.BootstrapState(size)
    client = BootstrapClient.__new__(BootstrapClient)

    def call(method, header, body=b"", wait_s=None):
        calls[method, header["rank"]] += 1
        return server._gather(
            types.SimpleNamespace(worker=header["rank"]), header, body, types.SimpleNamespace(is_active=bool)
        )

    server = BootstrapServer.__new__(BootstrapServer)
    server._state, server._timeout_s = state, 1.0
    monkeypatch.setattr(client, "_call", call, raising=False)
    card = b"c" * 300
    for rank in range(size - 1):
        assert client.gather("cards", rank, size, card, 0.0)[0] is None
    asked = range(size - 1, -1, -63)
    for rank in asked:
        assert client.gather("cards", rank, size, card, 0.0) == ([card] * size, [])
    assert len(calls) == size and max(calls.values()) == 2 and sum(calls.values()) == size - 1 + len(asked)


def test_first_ending_of_a_generation_counts_and_reaches_all(job):
    _, clients = job(3)
    seen = [[] for _ in clients]
    for client, list_ in zip(clients, seen):
        client.watch(list_.append)
    first = clients[1].fail(1, "OutOfRangeError", 7, "end of data", 0)
    assert first == Ending(1, "OutOfRangeError", 7, "end of data", 0)
    assert clients[2].fail(2, "ValueError", 7, "later", 0) == first
    second = clients[2].fail(2, "ValueError", 9, "next generation", 1)
    for client in clients:
        assert client.ending(0, timeout_s=5) == first
        assert client.ending(1, timeout_s=5) == second
        assert client.ending(2) is None
    late = []
    clients[0].watch(late.append)
    assert late == [first, second]
    assert all(list_ == [first, second] for list_ in seen)


def test_a_lost_worker_is_told_to_all(job):
    _, clients = job(3)
    waiting = in_thread(lambda: clients[0].get("never", NEVER_S))
    time.sleep(0.2)
    crash(clients[1])
    for client in (clients[0], clients[2]):
        ending = client.ending(5, timeout_s=NEVER_S)
        assert (ending.worker, ending.kind, ending.generation) == (1, "lost", EVERY_GENERATION)
    assert "worker 1" in str(waiting())  # nobody waits for what cannot come


def test_leaving_is_no_ending(job):
    _, clients = job(3)
    clients[1].leave(7)
    clients[1].leave(7)
    time.sleep(0.5)
    assert clients[0].ending(0) is None
    assert clients[2].departed() == {1: 7}
    with pytest.raises(CommunicationError, match="has left"):
        clients[1].set("a", b"")


def test_service_that_ends_in_good_order_is_no_ending():
    server = BootstrapServer("127.0.0.1:0", TOKEN, 2)
    client = BootstrapClient("127.0.0.1:%d" % server.port, TOKEN, 1, 2, timeout_s=10)
    server.close()
    server.close()
    until(lambda: list(client.departed()) == [0])
    assert client.ending(0) is None
    with pytest.raises(CommunicationError, match="Worker 0 at .* is gone"):
        client.set("a", b"")
    client.leave()


def test_silent_worker_is_named(job):
    _, clients = job(3)
    until(lambda: clients[0].unresponsive(2.5) == [])
    clients[2]._stopped.set()  # what SIGSTOP does: the connection stands, the heartbeats do not come
    until(lambda: clients[0].unresponsive(2.5) == [2])
    assert clients[1].ending(0) is None


def test_token_is_refused_and_logged_once(job, caplog):
    address, (client,) = job(1)
    caplog.set_level(logging.WARNING, "epl")
    for _ in range(3):
        with pytest.raises(CommunicationError, match="refused worker 0: this is another job"):
            BootstrapClient(address, TOKEN + "x", 0, 1, timeout_s=NEVER_S)
    assert len([record for record in caplog.records if "does not have this job's token" in record.message]) == 1
    assert TOKEN not in caplog.text
    assert client.ending(0) is None


def test_strangers_do_no_harm(job):
    address, (client,) = job(1)
    host, port = address.split(":")
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1000, b""):
        with socket.create_connection((host, int(port)), timeout=5) as stranger:
            stranger.sendall(data)
    client.set("a", b"1")
    assert client.get("a", 1) == b"1"
    assert client.ending(0) is None


@pytest.mark.parametrize(
    "worker, workers, told",
    [(1, 3, "was started for 3 workers, worker 0 for 2"), (0, 2, "two processes say that they are worker 0")],
)
def test_worker_that_does_not_fit_is_refused(job, worker, workers, told):
    address, _ = job(2)
    with pytest.raises(CommunicationError, match=told):
        BootstrapClient(address, TOKEN, worker, workers, timeout_s=10)


def test_other_version_is_refused(job, monkeypatch):
    address, _ = job(1)
    monkeypatch.setattr("epl.communicators.bootstrap.__version__", "9.9")
    with pytest.raises(CommunicationError, match="runs epl 9.9, worker 0 runs epl"):
        BootstrapClient(address, TOKEN, 0, 1, timeout_s=10)


def test_port_taken_by_another_service(job):
    address, _ = job(1)
    with pytest.raises(CommunicationError, match="cannot listen at %s: the port is taken" % address):
        BootstrapServer(address, "another job", 1)


def test_port_taken_by_a_foreign_socket():
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        foreign.listen(1)
        address = "127.0.0.1:%d" % foreign.getsockname()[1]
        with pytest.raises(CommunicationError, match="cannot listen at %s: the port is taken" % address):
            BootstrapServer(address, TOKEN, 1)


def test_worker_0_is_not_there():
    (port,) = free_ports(1)
    with pytest.raises(CommunicationError, match="Worker 0 at 127.0.0.1:%d could not be reached within 1 s: " % port):
        BootstrapClient("127.0.0.1:%d" % port, TOKEN, 1, 2, timeout_s=1)


def test_something_else_is_at_the_address():
    with socket.socket() as foreign:  # accepts and says nothing
        foreign.bind(("127.0.0.1", 0))
        foreign.listen(5)
        with pytest.raises(CommunicationError, match="could not be reached within 1 s"):
            BootstrapClient("127.0.0.1:%d" % foreign.getsockname()[1], TOKEN, 1, 2, timeout_s=1)


def test_worker_0_comes_later():
    (port,) = free_ports(1)
    address = "127.0.0.1:%d" % port
    connecting = in_thread(lambda: BootstrapClient(address, TOKEN, 1, 2, timeout_s=10))
    time.sleep(1)
    server = BootstrapServer(address, TOKEN, 2)
    client = connecting()
    client.set("a", b"1")
    assert client.get("a", LIMIT_S) == b"1"
    client.leave()
    server.close()


CLIENT = """
import sys
from epl.communicators.bootstrap import BootstrapClient
print("begins", flush=True)
client = BootstrapClient(sys.argv[1], sys.argv[2], 1, 2, timeout_s=60)
client.set("a", b"1")
client.leave()
"""


def test_another_process_that_comes_before_worker_0():
    """Unlike a thread of this process, which the service keeps gRPC busy for."""
    address = "127.0.0.1:%d" % free_ports(1)[0]
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, address, TOKEN], env=clean_environment(), stdout=subprocess.PIPE
    )
    try:
        assert client.stdout.readline() == b"begins\n"
        time.sleep(0.5)
        server = BootstrapServer(address, TOKEN, 2, timeout_s=60)
        own = BootstrapClient(address, TOKEN, 0, 2)
        assert own.get("a", LIMIT_S) == b"1"
        assert client.wait(LIMIT_S) == 0
        own.leave()
        server.close()
    finally:
        client.kill()
        client.communicate()


_STOPPED_SERVICE = """
import sys, time
from epl.communicators.bootstrap import BootstrapServer
server = BootstrapServer("127.0.0.1:0", sys.argv[1], 2)
print(server.port, flush=True)
time.sleep(60)
"""


def test_a_stopped_service_gets_no_more_time_than_this_worker_was_given():
    command = [sys.executable, "-c", _STOPPED_SERVICE, TOKEN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, universal_newlines=True) as service:
        try:
            address = "127.0.0.1:%d" % int(service.stdout.readline())
            client = BootstrapClient(address, TOKEN, 1, 2, timeout_s=2)
            service.send_signal(signal.SIGSTOP)
            with pytest.raises(CommunicationError, match="Worker 0 at .* did not answer within 2 s"):
                client.set("a", b"")
            client.leave()
        finally:
            service.kill()


@pytest.mark.parametrize("address", ["127.0.0.1", "host:", ":12", "host:99999", "host:port"])
def test_address_that_is_none(address):
    with pytest.raises(CommunicationError, match="not of the form host:port"):
        BootstrapClient(address, TOKEN, 0, 1, timeout_s=1)


def test_name_that_cannot_be_resolved():
    with pytest.raises(CommunicationError, match="cannot be resolved"):
        BootstrapServer("no-such-host.invalid:2222", TOKEN, 1)


def test_worker_0_listens_nowhere_but_where_it_was_told(monkeypatch):
    """203.0.113.0/24 is for documentation: no machine has such an address."""
    with pytest.raises(CommunicationError, match="203.0.113.7:2222, which is no address of its machine.*bind_address"):
        BootstrapServer("203.0.113.7:2222", TOKEN, 2)
    monkeypatch.setenv("EPL_BIND_ADDRESS", "203.0.113.8")
    with pytest.raises(CommunicationError, match="EPL_BIND_ADDRESS=203.0.113.8 is no address of worker 0's machine"):
        BootstrapServer("203.0.113.7:2222", TOKEN, 2)
    monkeypatch.setenv("EPL_BIND_ADDRESS", "127.0.0.1")
    server = BootstrapServer("203.0.113.7:0", TOKEN, 1)
    client = BootstrapClient("127.0.0.1:%d" % server.port, TOKEN, 0, 1, timeout_s=10)
    client.leave()
    server.close()


def test_token_of_a_job_without_launcher_depends_on_its_workers_and_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    hosts = ["10.0.0.1:2222", "10.0.0.2:2222"]
    one = Cluster(worker_num=2, worker_index=0, hosts=hosts)
    two = Cluster(worker_num=2, worker_index=1, hosts=hosts)
    other = Cluster(worker_num=2, worker_index=0, hosts=["10.0.0.1:2222", "10.0.0.3:2222"])
    before = job_token(one)
    assert job_token(one) == job_token(two) != job_token(other)
    # Who knows the addresses knows nothing yet: the user's secret is in it.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    assert job_token(one) != before
    assert job_token(Cluster(worker_num=2, hosts=hosts, token="secret")) == "secret"


def test_damaged_messages_are_errors():
    for message in (b"", b"\0\0", b"\0\0\0\xff{}", b"\0\0\0\x02[]", b"\0\0\0\x02\xff\xff"):
        with pytest.raises(CommunicationError):
            wire.unpack(message)
    assert wire.unpack(wire.pack({"a": 1}, b"body")) == ({"a": 1}, b"body")
