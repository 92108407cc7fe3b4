"""The bootstrap service under malformed input: it refuses who has no token, and goes on to serve those who have."""

import json
import socket
import struct

import grpc
import hypothesis
import hypothesis.strategies as st
import pytest

from epl.communicators import proof, wire
from epl.communicators.bootstrap import BootstrapClient
from epl.communicators.bootstrap_server import BootstrapServer
from epl.communicators.proof import ClientProof, Refused

pytestmark = pytest.mark.once

TOKEN = "a token of the tests"
CALLS = ("Join", "Leave", "Heartbeat", "Set", "Get", "Clear", "Gather", "Fail")
_BOUNDED = hypothesis.settings(
    max_examples=40, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())
# Headers without what any call needs, and bytes that are no message at all.
_HEADERS = st.dictionaries(st.text(max_size=3), _VALUES, max_size=4) | _VALUES
_MESSAGES = st.binary(max_size=200) | st.builds(
    lambda header, body: struct.pack(">I", len(header)) + header + body,
    _HEADERS.map(lambda header: json.dumps(header).encode()),
    st.binary(max_size=50),
)


@pytest.fixture(scope="module")
def service():
    server = BootstrapServer("127.0.0.1:0", TOKEN, 1, timeout_s=10)
    address = "127.0.0.1:%d" % server.port
    client = BootstrapClient(address, TOKEN, 0, 1, timeout_s=10)
    channel = grpc.insecure_channel(address)
    yield address, client, channel
    channel.close()
    client.leave()
    server.close()


def connected(address):
    """A channel with a connection of its own: guests may begin a few calls over each."""
    return grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])


def outcome(channel, call, message):
    """The status of a call with these bytes."""
    try:
        method = channel.unary_unary("/%s/%s" % (wire.SERVICE, call))
        method(message, timeout=10)
        return grpc.StatusCode.OK
    except grpc.RpcError as error:
        return error.code()


def check_alive(client, value=b"still here"):
    client.set("alive", value)
    assert client.get("alive", 5) == value


@_BOUNDED
@hypothesis.given(st.sampled_from(CALLS), _MESSAGES, st.text("abcxyz ", max_size=30))
def test_nothing_is_read_without_the_token(service, call, message, token):
    address, client, _ = service
    refused = grpc.StatusCode.UNAUTHENTICATED
    with connected(address) as channel:
        assert outcome(channel, call, message) == refused
        # Somebody who has seen what the service answers, and guesses the token.
        stranger = ClientProof(token, 0)
        answer = channel.unary_unary("/%s/Hello" % wire.SERVICE)(stranger.nonce, timeout=10)
        with pytest.raises(Refused, match="does not prove"):
            stranger.accept(answer)
        stranger._key = proof._key(token.encode(), stranger.nonce, answer[: proof.NONCE_BYTES], 0)
        assert outcome(channel, call, stranger.seal(call, message)[0]) == refused
    check_alive(client)


def test_a_call_is_heard_once(service):
    """Who listens on the wire cannot send what was sent again, nor change it, nor use it for another call."""
    _, client, channel = service
    sealed, _ = client._connection.proof.seal("Set", wire.pack({"key": "again"}, b"1"))
    changed = sealed[:-1] + b"2"
    refused = grpc.StatusCode.UNAUTHENTICATED
    assert outcome(channel, "Set", changed) == outcome(channel, "Clear", sealed) == refused
    assert outcome(channel, "Set", sealed) == grpc.StatusCode.OK
    assert outcome(channel, "Set", sealed) == refused
    assert client.get("again", 5) == b"1"


def test_calls_that_overtake_each_other(service):
    _, client, channel = service
    calls = [client._connection.proof.seal("Set", wire.pack({"key": "late/%d" % i}, b"1"))[0] for i in range(20)]
    assert {outcome(channel, "Set", call) for call in reversed(calls)} == {grpc.StatusCode.OK}
    assert {outcome(channel, "Set", call) for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}


def test_the_token_does_not_travel(service):
    _, client, _ = service
    sealed, _ = client._connection.proof.seal("Set", wire.pack({"key": "a"}, b"1"))
    assert TOKEN.encode() not in sealed and TOKEN.encode() not in client._connection.proof.nonce


@_BOUNDED
@hypothesis.given(st.sampled_from(CALLS), _MESSAGES)
def test_malformed_messages_are_errors(service, call, message):
    _, client, channel = service
    if call in ("Leave", "Heartbeat"):
        return  # they need nothing that could be missing
    status = outcome(channel, call, client._connection.proof.seal(call, message)[0])
    assert status not in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
    check_alive(client)


@_BOUNDED
@hypothesis.given(st.binary(min_size=1, max_size=300))
def test_bytes_that_are_not_grpc(service, noise):
    address, client, _ = service
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 5) as guest:
        guest.sendall(noise)
    check_alive(client)


def test_a_header_that_is_nested_too_deeply_is_an_error(service):
    _, client, channel = service
    deep = b'{"key": ' + b"[" * 200000
    message = struct.pack(">I", len(deep)) + deep
    status = outcome(channel, "Set", client._connection.proof.seal("Set", message)[0])
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    check_alive(client)
