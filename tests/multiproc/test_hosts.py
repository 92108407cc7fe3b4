"""Jobs over two hosts with two workers each; the hosts are network namespaces of this machine."""

import json
import os
import re
import signal
import sys
import time

import numpy as np
import pytest

from tests.helpers import processes, zoo, zoo_checks, zoo_results
from tests.helpers.hosts import Hosts, Unavailable

pytestmark = pytest.mark.alone

FOLDER = os.path.dirname(os.path.abspath(__file__))
RANK = os.path.join(FOLDER, "host_rank.py")
TRAINING = os.path.join(os.path.dirname(FOLDER), "faults", "program.py")
POOL = os.path.join(FOLDER, "pool_worker.py")
HOST_OF = (0, 0, 1, 1)
LAYOUT = zoo_results.Layout(len(HOST_OF), 1)
TIMEOUT, PEER_LOST = 1, 3


@pytest.fixture
def hosts():
    made = Hosts()
    try:
        made.__enter__()
    except Unavailable as reason:
        pytest.skip("two hosts cannot be simulated here: %s" % reason)
    try:
        yield made
    finally:
        made.__exit__()


class Job(object):
    """Four processes, two on each host. A context manager that leaves none behind."""

    def __init__(self, hosts, folder, command_of, environments=None):
        self.folder = str(folder)
        environments = environments or [processes.clean_environment()] * len(HOST_OF)
        self.children = [
            processes.Process(
                hosts.inside(host, [sys.executable] + [str(each) for each in command_of(rank)]),
                environments[rank],
                os.path.join(self.folder, "log.%d" % rank),
            )
            for rank, host in enumerate(HOST_OF)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.children:
            child.kill()

    def results(self, name, timeout_s=120, without=()):
        """What each process (None for those in `without`) left in the file NAME.<rank>; all must have ended well."""
        found = []
        for rank, child in enumerate(self.children):
            if rank in without:
                found.append(None)
                continue
            end = child.wait(timeout_s)
            assert end.code == 0, end
            with open(os.path.join(self.folder, "%s.%d" % (name, rank))) as file:
                found.append(json.load(file))
        return found


def ranks(hosts, folder, what, timeout_s=200):
    return Job(
        hosts,
        folder,
        lambda rank: [RANK, folder, rank, len(HOST_OF), hosts.address(HOST_OF[rank]), timeout_s, what],
    )


def worker_environments(hosts, **variables):
    """As a launcher would set them, with the addresses of the hosts, and further variables."""
    addresses = ["%s:%d" % (hosts.address(host), 21000 + rank) for rank, host in enumerate(HOST_OF)]
    environments = []
    for rank in range(len(HOST_OF)):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        environments.append(
            processes.clean_environment(
                TF_CONFIG=json.dumps(config),
                EPL_JOB_TOKEN="a token",
                EPL_GPU_PER_WORKER=1,
                EPL_DEVICE="cpu",
                **variables,
            )
        )
    return environments


@pytest.mark.once
def test_collectives_against_numpy(hosts, tmp_path):
    with ranks(hosts, tmp_path, "cases") as job:
        # Each rank compares by itself; one that finds a difference ends badly, and leaves nothing.
        assert len(job.results("found")) == len(HOST_OF)


@pytest.mark.once
def test_lost_packets_change_nothing(hosts, tmp_path):
    how = hosts.lose_packets()
    with ranks(hosts, tmp_path, "cases", 60) as job:
        job.results("found", 240)
    assert hosts.dropped() > 0, how


@pytest.mark.once
def test_ranks_measure_the_way_between_them(hosts, tmp_path):
    """How near they come to what the cable can keep up: benchmarks/link_speed.py."""
    with ranks(hosts, tmp_path, "speed") as job:
        for found in job.results("found"):
            assert found["bytes_per_s"] > 0 and found["latency_s"] > 0, found


@pytest.mark.once
def test_killed_rank_is_named_on_both_hosts(hosts, tmp_path):
    with ranks(hosts, tmp_path, "loop") as job:
        job.children[3].wait_for("running", 60)
        job.children[3].signal(signal.SIGKILL)
        for outcome in job.results("found", without=[3])[:3]:
            assert outcome["code"] == PEER_LOST, outcome
            assert "rank 3" in outcome["message"]


@pytest.mark.once
def test_cut_cable_ends_with_a_time_out(hosts, tmp_path):
    with ranks(hosts, tmp_path, "loop", 3) as job:
        job.children[0].wait_for("running", 60)
        hosts.cut()
        for rank, outcome in enumerate(job.results("found", 60)):
            assert outcome["code"] == TIMEOUT, outcome
            assert "all_reduce 'grads/7'" in outcome["message"]
            elsewhere = [str(each) for each, host in enumerate(HOST_OF) if host != HOST_OF[rank]]
            assert any("for rank %s" % each in outcome["message"] for each in elsewhere), outcome


def test_pool_and_operations(hosts, tmp_path):
    scenarios = ["exchange", "all_reduce", "order", "all_gather", "broadcast", "half", "abort_and_reconnect"]
    command = [POOL, tmp_path, "auto"] + scenarios
    with Job(hosts, tmp_path, lambda _: command, worker_environments(hosts)) as job:
        found = job.results("result", 240)
    for worker in found:
        for scenario in scenarios:
            assert "traceback" not in worker[scenario], worker[scenario]["traceback"]
        assert worker["exchange"]["backend"] == "hierarchical"


@pytest.mark.once
def test_killed_worker_is_noticed_by_all(hosts, tmp_path):
    with Job(hosts, tmp_path, lambda _: [POOL, tmp_path, "auto", "killed"], worker_environments(hosts)) as job:
        for child in job.children:
            child.wait_for("WAITS FOR THE LAST", 120)
        job.children[3].signal(signal.SIGKILL)
        for worker in job.results("result", 60, without=[3])[:3]:
            assert worker["killed"]["error"] == "AbortedError"
            assert "worker 3" in worker["killed"]["message"]
            assert worker["killed"]["ending"]["worker"] == 3


class Runs(object):
    """What `zoo_checks` compares: the same training on one device and on the hosts."""

    def __init__(self, single, several):
        self._of = {zoo_results.PLAIN: single, LAYOUT: several}

    def of(self, layout, _):
        return self._of[layout]


@pytest.mark.once
def test_training_equals_one_device(hosts, tmp_path):
    case = sorted(name for name in zoo.CASES if name.startswith("mlp-momentum"))[0]
    single, several = tmp_path / "single", tmp_path / "several"
    single.mkdir()
    several.mkdir()
    command = ["-m", "tests.helpers.zoo_run"]
    plain = processes.python(command + ["plain", single, case], processes.clean_environment(), single / "log")
    end = plain.wait(240)
    assert end.code == 0, end
    with Job(hosts, several, lambda _: command + ["epl", several, case], worker_environments(hosts)) as job:
        for child in job.children:
            end = child.wait(240)
            assert end.code == 0, end

    def arrays(folder, worker):
        return dict(np.load(str(folder / ("%s.%d.npz" % (case, worker)))))

    runs = Runs([arrays(single, 0)], [arrays(several, rank) for rank in range(len(HOST_OF))])
    zoo_checks.check_case(runs, LAYOUT, case)


@pytest.mark.once
def test_cut_cable_is_noticed_by_signs_of_life(hosts, tmp_path):
    """With default time-outs of what communicates; each host hears its own workers still."""
    environments = worker_environments(hosts, EPL_COMMUNICATION_STOPPED_S="11")
    with Job(hosts, tmp_path, lambda _: [TRAINING, "hang", tmp_path, "1"], environments) as job:
        deadline = time.monotonic() + 120
        while not (tmp_path / "in_step").exists():
            assert time.monotonic() < deadline and job.children[0].running(), job.children[0].output()[-3000:]
            time.sleep(0.1)
        hosts.cut()
        for rank, host in enumerate(HOST_OF):
            if rank == 1:
                continue  # it is the one that hangs
            ended = job.children[rank].wait(90)
            silent = "[23]" if host == 0 else "0"
            assert ended.code == 1, ended
            assert re.search(
                r"no sign of life from worker %s for 1\d s \(communication.stopped_s" % silent, ended.output
            )


@pytest.mark.once
@pytest.mark.parametrize("fault", ["delay", "loss"])
def test_a_slow_or_lossy_cable_ends_nothing(hosts, tmp_path, fault):
    if fault == "loss":
        hosts.lose_packets()
    else:
        try:
            hosts.delay(50)
        except Unavailable as reason:
            pytest.skip("packets cannot be held here: %s" % reason)
    with Job(hosts, tmp_path, lambda _: [TRAINING, "none", tmp_path], worker_environments(hosts)) as job:
        for child in job.children:
            ended = child.wait(240)
            assert ended.code == 0 and "finished after 40 steps" in ended.output, ended
            assert "no sign of life" not in ended.output, ended
