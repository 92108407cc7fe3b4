"""The address at which the other workers can reach this one."""

import socket

# Never sent to: connecting a datagram socket only looks up which of the own addresses would be used.
_ELSEWHERE = ("192.0.2.1", 9)


def own_address(cluster):
    """The IP address of this worker's machine, as seen from the other workers.

    The names in a list of workers do not always serve: behind a Kubernetes service they belong to a proxy, some
    launchers tell no names at all, and many machines resolve their own name to a loopback address. What leads to worker
    0 does.

    Args:
      cluster: the `Cluster`.
    """
    host, port = _split(cluster.bootstrap_address)
    if cluster.worker_index > 0:
        return _source_address((host, port or 1)) or host
    own = _resolve(host)
    if own and _can_bind(own) and not (own.startswith("127.") and _elsewhere(cluster, host)):
        return own
    return _source_address(_ELSEWHERE) or own or host


def _elsewhere(cluster, host):
    """Whether some worker is on another machine than `host`."""
    return any(_split(other)[0] != host for other in cluster.hosts)


def _split(address):
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _resolve(host):
    try:
        return socket.getaddrinfo(host, None, 0, socket.SOCK_STREAM)[0][4][0]
    except OSError:
        return None


def _family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _can_bind(address):
    with socket.socket(_family(address), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
            return True
        except OSError:
            return False


def _source_address(target):
    """The own address from which `target` is reached, or None without a route there."""
    address = _resolve(target[0])
    if address is None:
        return None
    with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, target[1]))
            return probe.getsockname()[0]
        except OSError:
            return None
