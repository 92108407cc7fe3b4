"""How long many workers take to find each other: light processes that load the communicators without TensorFlow.

    python benchmarks/start_many.py [--workers 128] [--backend auto] [--workers-a-host 64]

All processes are forked from one that has imported what they need. Printed are the seconds from the first fork until
the last worker has exchanged a message with all others, and, of the worker that has most, open sockets, and calls to
the bootstrap service but heartbeats. The sockets between worker 0, which runs that service, and the others are counted
apart. With --workers-a-host so many in a row count as a host, with shared memory within and TCP between hosts.
"""

import argparse
import collections
import json
import os
import socket
import sys
import time

from epl.cluster import Cluster
from epl.communicators import pool as pool_module
from epl.communicators.bootstrap import BootstrapClient, BootstrapServer, job_token
from epl.config import Config

_LIMIT_S = 120


def work(index, hosts, backend, workers_a_host, report):
    """One worker; leaves a line with [calls, sockets, those of the service, time of being connected]."""
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}})
    cluster = Cluster.from_environment()
    token, address, calls = job_token(cluster), cluster.bootstrap_address, collections.Counter()
    original = BootstrapClient._rpc  # pylint: disable=protected-access

    def counted(client, name, *args):
        calls[name] += 1
        return original(client, name, *args)

    BootstrapClient._rpc = counted
    server = BootstrapServer(address, token, len(hosts), _LIMIT_S) if index == 0 else None
    client = BootstrapClient(address, token, index, len(hosts), _LIMIT_S)
    if workers_a_host:
        pool_module._AUTO_BACKENDS["auto"] = "auto/%d" % workers_a_host  # pylint: disable=protected-access
    config = Config({"communication.backend": backend, "communication.timeout_s": _LIMIT_S})
    pool = pool_module.Pool(cluster, config, client)
    pool.connect(0)
    everyone = pool.exchange(b"%d" % index)
    connected = time.time()
    if everyone != [b"%d" % other for other in range(len(hosts))]:
        raise RuntimeError("worker %d has heard %r" % (index, everyone))
    num_calls = sum(count for name, count in calls.items() if name != "Heartbeat")
    os.write(report, b"%s\n" % json.dumps([num_calls] + _sockets(hosts[0]) + [connected]).encode())
    pool.exchange(b"")  # nobody leaves before all have counted
    client.leave()
    pool.close()
    if server is not None:
        server.close()


def _sockets(service):
    """Of this process: [open sockets between workers, open sockets of the bootstrap service or to it]."""
    port, of_service = ":%04X" % int(service.rpartition(":")[2]), set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with open(table) as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                if fields[1].endswith(port) or fields[2].endswith(port):
                    of_service.add("socket:[%s]" % fields[9])
    found = [0, 0]
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue  # the folder itself
        if target.startswith("socket:"):
            found[target in of_service] += 1
    return found


def measure(num_workers, backend, workers_a_host):
    """(seconds, most sockets between workers, most of the service, most calls)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    hosts = ["127.0.0.1:%d" % port] + ["127.0.0.1:%d" % other for other in range(1, num_workers)]  # the first listens
    reading, writing = os.pipe()
    began, children = time.time(), []
    for index in range(num_workers):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work(index, hosts, backend, workers_a_host, writing)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(writing)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        raise RuntimeError("%d workers have failed" % sum(map(bool, statuses)))
    with os.fdopen(reading) as reports:
        calls, sockets, of_service, connected = zip(*(json.loads(line) for line in reports))
    return max(connected) - began, max(sockets), max(of_service), max(calls)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=128)
    parser.add_argument("--backend", default="auto", help="communication.backend")
    parser.add_argument("--workers-a-host", type=int, default=0, help="so many in a row count as a host (all: 0)")
    args = parser.parse_args()
    figures = (args.workers,) + measure(args.workers, args.backend, args.workers_a_host)
    print("%d workers: %.2f s; at most %d sockets between workers, %d of the service, and %d calls a worker" % figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
