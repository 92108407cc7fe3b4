"""Two workers on two hosts, which are network namespaces with a cable of a chosen rate between them; needs root."""

import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.helpers import processes  # noqa: E402
from tests.helpers.hosts import Hosts, Unavailable  # noqa: E402

_LIMIT_S = 500


def results(script, gbit=None):
    """Runs a script on both hosts, and returns what each has written as JSON to the file after `--save`.

    Args:
      script: command line.
      gbit: rate of the cable in Gbit/s; None: as fast as the machine is.
    """
    try:
        with tempfile.TemporaryDirectory() as folder, Hosts() as hosts:
            if gbit is not None:
                hosts.limit_rate(gbit)
            return _results(script, hosts, folder)
    except Unavailable as reason:
        sys.exit("two hosts cannot be simulated here: %s" % reason)


def _results(script, hosts, folder):
    addresses = ["%s:%d" % (hosts.address(host), 20000 + host) for host in range(2)]
    children, files = [], []
    for host in range(2):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": host}}
        files.append(os.path.join(folder, "numbers.%d" % host))
        environ = processes.clean_environment(
            TF_CONFIG=json.dumps(task), EPL_JOB_TOKEN="of this benchmark", EPL_GPU_PER_WORKER=1, EPL_DEVICE="cpu"
        )
        children.append(subprocess.Popen(hosts.inside(host, script + ["--save", files[-1]]), env=environ))
    try:
        for child in children:
            if child.wait(_LIMIT_S):
                sys.exit("a worker ended with status %d" % child.returncode)
    finally:
        for child in children:
            child.kill()
            child.wait()
    found = []
    for path in files:
        with open(path) as source:
            found.append(json.load(source))
    return found


def sent_bytes():
    """What has left this host over the cable so far, with the headers of its packets."""
    with open("/proc/self/net/dev") as source:
        for line in source:
            name, _, numbers = line.partition(":")
            if name.strip() == "cable":
                return int(numbers.split()[8])
    raise RuntimeError("there is no interface 'cable' here: this runs on the hosts that `results` makes")
