"""How long many workers take to find each other: light processes that load the communicators without TensorFlow.

    python benchmarks/start_many.py [--workers 128] [--backend auto] [--workers-a-host 64]

All processes are forked from one that has loaded what they need. Printed are the seconds from the first fork until
the last process runs, until the last worker has joined the job, and until it has exchanged a message with all others;
and, of the worker that has most, open sockets, and calls to the bootstrap service but heartbeats. The sockets between
worker 0, which runs that service, and the others are counted apart; so are those of a leader of another host, which
runs it for the others there. With --workers-a-host so many in a row count as a host, with shared memory within and
TCP between hosts.
"""

import argparse
import collections
import importlib
import json
import os
import socket
import sys
import time

from epl.cluster import Cluster
from epl.communicators import leaders, native
from epl.communicators import pool as pool_module
from epl.communicators.bootstrap import job_token
from epl.communicators.connection import Connection
from epl.config import Config

_LIMIT_S = 120


def work(index, hosts, backend, workers_a_host, report):
    """One worker; leaves a line with [calls, sockets, those of the service, when it ran, had joined, was connected]."""
    times = [time.time()]
    # Hosts are addresses of this machine; of their ports only worker 0's is listened at.
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}})
    cluster = Cluster.from_environment()
    calls, original = collections.Counter(), Connection.rpc

    def counted(connection, name, *args):
        calls[name] += connection.served_by == 0
        return original(connection, name, *args)

    Connection.rpc = counted
    server, client = leaders.join(cluster, job_token(cluster), _LIMIT_S)
    times.append(time.time())
    if workers_a_host:
        pool_module._AUTO_BACKENDS["auto"] = "auto/%d" % workers_a_host  # pylint: disable=protected-access
    config = Config({"communication.backend": backend, "communication.timeout_s": _LIMIT_S})
    pool = pool_module.Pool(cluster, config, client)
    pool.connect(0)
    everyone = pool.exchange(b"%d" % index)
    times.append(time.time())
    if everyone != [b"%d" % other for other in range(len(hosts))]:
        raise RuntimeError("worker %d has heard %r" % (index, everyone))
    num_calls = sum(count for name, count in calls.items() if name not in ("Heartbeat", "Report"))
    pool.exchange(b"")  # counting would keep the others from connecting
    os.write(report, b"%s\n" % json.dumps([num_calls] + _sockets(hosts[0]) + times).encode())
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
    with open("/proc/self/net/unix") as lines:  # between a leader and the others of its host
        of_service.update("socket:[%s]" % line.split()[6] for line in list(lines)[1:])
    found = [0, 0]
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue  # the folder itself
        if target.startswith("socket:"):
            found[target in of_service] += 1
    return found


def _load():
    """What would be loaded when it is first used, by each process for itself."""
    importlib.import_module("grpc._channel")
    importlib.import_module("grpc._server")
    native.comm()
    socket.getaddrinfo("localhost", 0)  # with its encoding of names


def measure(num_workers, backend, workers_a_host):
    """(seconds until all run, have joined and are connected, most sockets between workers, most of the service, most
    calls)."""
    _load()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    hosts_of = [1 + worker // (workers_a_host or num_workers) for worker in range(num_workers)]
    hosts = ["127.0.0.%d:%d" % (host, worker or port) for worker, host in enumerate(hosts_of)]
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
        calls, sockets, of_service, *times = zip(*(json.loads(line) for line in reports))
    return tuple(max(each) - began for each in times) + (max(sockets), max(of_service), max(calls))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=128)
    parser.add_argument("--backend", default="auto", help="communication.backend")
    parser.add_argument("--workers-a-host", type=int, default=0, help="so many in a row count as a host (all: 0)")
    args = parser.parse_args()
    figures = (args.workers,) + measure(args.workers, args.backend, args.workers_a_host)
    print(
        "%d workers: all run after %.2f s, have joined after %.2f s, are connected after %.2f s; at most %d sockets "
        "between workers, %d of the service, and %d calls a worker" % figures
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
