"""What strangers can make the bootstrap service do before they prove the token: next to nothing."""

import contextlib
import os
import resource
import socket
import threading
import time

import grpc
import pytest

from epl.communicators import gate, wire
from epl.communicators.bootstrap import BootstrapClient
from epl.communicators.bootstrap_server import BootstrapServer
from tests.unit.test_bootstrap_malformed import check_alive, connected, outcome

pytestmark = [pytest.mark.once, pytest.mark.alone]

TOKEN = "a token of the tests"


@pytest.fixture(name="service")
def service_of_a_job():
    server = BootstrapServer("127.0.0.1:0", TOKEN, 1, timeout_s=10)
    client = BootstrapClient("127.0.0.1:%d" % server.port, TOKEN, 0, 1, timeout_s=10)
    yield server, client
    client.leave()
    server.close()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def memory_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def settles(found, limit_s=60):
    """Whether a function comes to be true."""
    deadline = time.monotonic() + limit_s
    while not found() and time.monotonic() < deadline:
        time.sleep(0.02)
    return found()


def opened(port, count, sent=b""):
    connections = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(count)]
    for each in connections:
        with contextlib.suppress(OSError):  # it has been turned away already
            each.sendall(sent)
    return connections


def closed(connection):
    """Whether the other end has closed a connection."""
    connection.settimeout(0.01)
    try:
        while connection.recv(4096):
            continue
        return True
    except socket.timeout:
        return False
    except OSError:
        return True


def frame(kind, stream, body):
    return len(body).to_bytes(3, "big") + bytes([kind, 4 if kind == 1 else 0]) + stream.to_bytes(4, "big") + body


def call_begun(stream):
    """The frame that begins a call of Hello, by literal fields without a table."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", "/%s/Hello" % wire.SERVICE), (":authority", "x")]
    fields += [("te", "trailers"), ("content-type", "application/grpc")]
    body = b"".join(b"\0" + bytes([len(n)]) + n.encode() + bytes([len(v)]) + v.encode() for n, v in fields)
    return frame(1, stream, body)


BEGUN = gate._PREFACE + frame(4, 0, b"")


def test_idle_connections_do_not_use_up_descriptors(service):
    server, client = service
    before = descriptors()
    strangers = opened(server.port, 300, BEGUN)
    others = opened(server.port, 100)
    check_alive(client)
    most = before + len(strangers) + len(others) + gate._EACH * (gate._MAX_GUESTS + 2)
    assert settles(lambda: descriptors() <= most), (descriptors(), most)
    assert sum(map(closed, strangers)) == len(strangers)  # the oldest go first
    for each in strangers + others:
        each.close()
    check_alive(client, b"and after")


def test_calls_that_never_send_do_not_make_threads(service):
    server, client = service
    before = threading.active_count()
    data = BEGUN + b"".join(call_begun(2 * number + 1) for number in range(100))
    strangers = opened(server.port, 20, data)
    assert all(settles(lambda each=each: closed(each)) for each in strangers)
    check_alive(client)
    few = opened(server.port, 20, BEGUN + b"".join(call_begun(2 * n + 1) for n in range(gate._MAX_CALLS)))
    assert threading.active_count() <= before + gate._MAX_CALLS * (gate._MAX_GUESTS + 1) + 8
    for each in strangers + few:
        each.close()
    check_alive(client, b"and after")


def test_messages_that_stop_in_the_middle_take_no_memory(service):
    server, client = service
    before = memory_mib()
    message = b"\0" + (16 * 2**20).to_bytes(4, "big") + b"x" * 16000
    begun = BEGUN + call_begun(1) + frame(0, 1, message)
    strangers = opened(server.port, 15, begun)
    for _ in range(60):
        for each in strangers:
            with contextlib.suppress(OSError):
                each.sendall(frame(0, 1, b"x" * 16000))
    assert all(settles(lambda each=each: closed(each)) for each in strangers)
    assert memory_mib() - before < 60
    check_alive(client)


def test_a_guest_that_proves_nothing_has_to_go(service, monkeypatch):
    monkeypatch.setattr(gate, "_PATIENCE_S", 0.5)
    server, client = service
    idle = opened(server.port, 2) + opened(server.port, 2, BEGUN + call_begun(1))
    assert all(settles(lambda each=each: closed(each)) for each in idle)
    time.sleep(0.6)
    check_alive(client)  # it is no guest any more


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01" + b"\0" * 200, b"PRI * HTTP/1"])
def test_what_does_not_speak_the_protocol_does_not_reach_the_service(service, sent):
    server, client = service
    connections = opened(server.port, 1, sent)
    assert settles(lambda: closed(connections[0]))
    check_alive(client)


def test_a_few_calls_may_be_refused_and_then_the_connection_is_closed(service):
    server, client = service
    with connected("127.0.0.1:%d" % server.port) as channel:
        outcomes = [outcome(channel, "Join", b"") for _ in range(gate._MAX_CALLS + 1)]
    assert outcomes == [grpc.StatusCode.UNAUTHENTICATED] * gate._MAX_CALLS + [grpc.StatusCode.UNAVAILABLE]
    check_alive(client)


def test_large_messages_pass_once_the_token_is_proved(service):
    _, client = service
    value = os.urandom(5 * 2**20)
    client.set("large", value)
    assert client.get("large", 10) == value


def test_who_was_refused_is_named_by_its_address(service, caplog):
    server, _ = service
    with connected("127.0.0.1:%d" % server.port) as channel:
        outcome(channel, "Join", b"")
    assert "refused a connection from 127.0.0.1, which does not have this job's token" in caplog.text


def test_counting_of_calls_whatever_the_pieces():
    data = BEGUN + call_begun(1) + frame(0, 1, b"x" * 300) + call_begun(3) + frame(8, 0, b"1234")
    for size in (1, 7, 9, 64, len(data)):
        calls = gate._Calls()
        for start in range(0, len(data), size):
            calls.take(data[start : start + size])
        assert (calls.bytes, calls.begun) == (len(data), 2)


def test_without_descriptors_the_cause_is_named(service, monkeypatch, caplog):
    server, client = service
    hold = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    stranger = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 40, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                hold.append(os.open(os.devnull, os.O_RDONLY))
        stranger.connect(("127.0.0.1", server.port))
        assert settles(lambda: server.trouble is not None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in hold:
            os.close(each)
        stranger.close()
    assert "has no file descriptors left" in server.trouble and "ulimit -n" in server.trouble
    assert "worker 0 has no file descriptors left" in caplog.text
    check_alive(client)
