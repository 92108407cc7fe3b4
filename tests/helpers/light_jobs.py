"""Jobs of light processes on hosts that are addresses of this machine: python -m tests.helpers.light_jobs FOLDER ...

All are forked from one process, which has imported what they need; none has TensorFlow. Each leaves in FOLDER what it
has come to: ready.<worker>, then end.<worker>, both JSON.
"""

import json
import os
import sys
import time

from epl.cluster import Cluster
from epl.communicators import leaders, waiting
from epl.errors import CommunicationError

TOKEN = "a token of light jobs"


def addresses(sizes, port):
    """What a list of workers has, where so many are on each host; only worker 0's port is one to listen at."""
    names = ["127.0.%d.%d" % (host // 250, host % 250 + 1) for host, size in enumerate(sizes) for _ in range(size)]
    return ["%s:%d" % (name, port + worker) for worker, name in enumerate(names)]


def leave(folder, name, worker, content):
    path = os.path.join(folder, "%s.%d" % (name, worker))
    with open(path + ".part", "w") as file:
        json.dump(content, file)
    os.rename(path + ".part", path)


def work(worker, hosts, folder, start_s, silence_s):
    """Comes, gathers with all, and then once more, when `away.<worker>` is not there any more."""
    began = time.time()
    server = None
    try:
        server, client = leaders.join(Cluster(len(hosts), worker, hosts=hosts), TOKEN, 60)
        values = waiting.gather(client, "all", worker, len(hosts), b"%d" % worker, "all", generation=0, start_s=start_s)
        assert values == [b"%d" % each for each in range(len(hosts))]
        leave(folder, "ready", worker, {"served_by": client.served_by})
        while os.path.exists(os.path.join(folder, "away.%d" % worker)):
            time.sleep(0.05)
            assert time.time() - began < 60
        limits = dict(generation=0, silence_s=silence_s, limit_s=600.0)
        waiting.gather(client, "rest", worker, len(hosts), b"", "the rest", **limits)
        client.leave(1)
        end = {"error": None}
    except CommunicationError as error:
        ending = None
        if "client" in locals():
            ending = client.ending(0, 2.0)
        end = {"error": str(error), "ending": ending and [ending.worker, ending.kind, ending.message]}
    leave(folder, "end", worker, end)
    if server is not None:
        server.close()  # as an interpreter that ends would: what it knows goes to those whom it serves


def main(folder, sizes, port, start_s, silence_s, without):
    hosts, pids = addresses(sizes, port), {}
    for worker in range(len(hosts)):
        if worker in without:
            continue
        pids[worker] = os.fork()
        if pids[worker] == 0:
            try:
                work(worker, hosts, folder, start_s, silence_s)
            finally:
                sys.stderr.flush()
                os._exit(0)
    leave(folder, "pids", 0, sorted(pids.items()))
    for pid in pids.values():
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1], *(json.loads(argument) for argument in sys.argv[2:]))
