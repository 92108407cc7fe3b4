"""How a worker comes into its job: as worker 0, by itself, or through the worker that leads its host.

The sockets of worker 0 then grow with the workers of its own host and with the hosts, not with the product. The first
worker of a host that comes leads it, so that nobody waits for one that is late. Workers of worker 0's host, and those
that are alone on theirs, go to worker 0 themselves.
"""

import hashlib
import hmac
import logging
import socket
import struct
import time

from epl.communicators.bootstrap import BootstrapClient
from epl.communicators.bootstrap_relay import BootstrapRelay
from epl.communicators.bootstrap_server import BootstrapServer
from epl.communicators.connection import NobodyLeads
from epl.errors import CommunicationError

_LOG = logging.getLogger("epl")
_RETRY_S = 0.1


def join(cluster, token, timeout_s=600.0, stopped_s=None):
    """Comes into the job.

    Args:
      cluster: the `Cluster`, of several workers.
      token: the job's token.
      timeout_s, stopped_s: as for BootstrapClient.

    Returns:
      (what this worker serves others with, or None, to be closed after the client has left; the BootstrapClient).

    Raises:
      CommunicationError: worker 0 cannot be reached in time, or refuses this worker; says why.
    """
    place, nodes = (token, cluster.worker_index, cluster.worker_num), cluster.nodes
    own, limits = nodes[cluster.worker_index], {"timeout_s": timeout_s, "stopped_s": stopped_s}
    if cluster.worker_index == 0:
        server = BootstrapServer(cluster.bootstrap_address, token, cluster.worker_num, timeout_s, stopped_s)
        limits["trouble"] = lambda: server.trouble
        return server, BootstrapClient(cluster.bootstrap_address, *place, **limits)
    if own == nodes[0] or nodes.count(own) == 1:
        return None, BootstrapClient(cluster.bootstrap_address, *place, **limits)
    return _join_host(Seat(token, cluster.bootstrap_address, own), place, len(set(nodes)), **limits)


def _join_host(seat, place, hosts, timeout_s, stopped_s):
    deadline = time.monotonic() + timeout_s
    while True:
        left = max(1.0, round(deadline - time.monotonic(), 1))
        relay = _lead(seat, place, hosts, left, stopped_s)
        try:
            limits = {"timeout_s": left, "stopped_s": stopped_s}
            client = BootstrapClient(seat.address, *place, leader=seat.who, root=seat.root, **limits)
            return relay, client
        except CommunicationError as error:
            if relay is not None:
                relay.abandon()
                raise
            if not isinstance(error, NobodyLeads):
                raise
            if time.monotonic() >= deadline:
                raise CommunicationError(
                    "Worker %d could not come to worker 0 at %s within %g s: %s"
                    % (place[1], seat.root, timeout_s, error)
                )
            _LOG.debug("worker %d: %s", place[1], error)  # it has just ended, or it does not serve yet
        time.sleep(_RETRY_S)


def _lead(seat, place, hosts, timeout_s, stopped_s):
    """The BootstrapRelay of this worker, if nobody leads this host yet."""
    if not seat.take():
        return None
    token, worker, worker_num = place
    try:
        relay = BootstrapRelay(seat, token, worker, worker_num, hosts, stopped_s)
    except CommunicationError:
        seat.leave()
        raise
    try:
        relay.connect(timeout_s)
    except CommunicationError:
        relay.abandon()
        raise
    return relay


class Seat(object):
    """That of a host's leader; one process at a time has it, and no longer than it lives.

    Its name, that of a socket without a file, follows from the token, and cannot be guessed without.

    Args:
      token: the job's token.
      root: "host:port" of worker 0.
      host: number of the host.

    Attributes:
      address: where the leader serves, as gRPC takes it.
      root: see above.
    """

    def __init__(self, token, root, host):
        secret = hmac.new(token.encode("utf-8"), b"epl leader %d of %s" % (host, root.encode("utf-8")), hashlib.sha256)
        self._name = "epl-" + secret.hexdigest()[:40]
        self._socket = None
        self.address = "unix-abstract:" + self._name
        self.root = root

    def take(self):
        """Whether this process leads from now on."""
        mine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A socket beside that of gRPC, which would complain in the log where it is taken.
            mine.bind("\0%s/leader" % self._name)
            mine.listen(16)
        except OSError:
            mine.close()
            return False
        self._socket = mine
        return True

    def leave(self):
        self._socket.close()

    def who(self):
        """Who leads, in words that begin a sentence."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(0.2)
            try:
                probe.connect("\0%s/leader" % self._name)
                found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                return "The worker that leads this host (process %d)" % struct.unpack("3i", found)[0]
            except OSError:
                return "The worker that leads this host"
