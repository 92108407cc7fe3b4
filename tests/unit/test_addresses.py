"""Which address a worker tells the others."""

import socket

import pytest

from epl.cluster import Cluster
from epl.communicators import addresses

pytestmark = pytest.mark.once

OTHER = "203.0.113.7:2222"  # an address for examples; nobody's


def address(index, *hosts):
    return addresses.own_address(Cluster(worker_num=len(hosts), worker_index=index, hosts=list(hosts)))


def is_own(text):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((text, 0))
    return True


def test_one_machine():
    hosts = ["127.0.0.1:2222", "127.0.0.1:2223"]
    assert [address(index, *hosts) for index in range(2)] == ["127.0.0.1"] * 2
    assert address(0, "localhost:2222", "localhost:2223") == "127.0.0.1"


def test_a_name_that_belongs_to_a_proxy_is_not_told():
    """Worker 0's name leads to an address that this machine does not have."""
    assert is_own(address(0, OTHER, "203.0.113.8:2222"))


def test_names_that_mean_nothing(monkeypatch):
    """Horovod and Open MPI do not tell the machines' names; only worker 0's address serves."""
    monkeypatch.setattr(addresses, "_source_address", lambda target: "10.1.2.3" if target == ("10.1.2.9", 7) else None)
    assert address(1, "10.1.2.9:7", "machine1:0") == "10.1.2.3"


def test_own_name_that_is_a_loopback_address(monkeypatch):
    """As Debian's /etc/hosts has it; of no use to another machine."""
    monkeypatch.setattr(addresses, "_resolve", lambda host: {"first": "127.0.1.1", "192.0.2.1": "192.0.2.1"}[host])
    monkeypatch.setattr(addresses, "_source_address", lambda target: "10.1.2.3")
    assert address(0, "first:7", "second:7") == "10.1.2.3"
    assert address(0, "first:7", "first:8") == "127.0.1.1"
