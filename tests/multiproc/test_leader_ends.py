"""What becomes of jobs over several hosts when a leader, a member or worker 0 ends, with real processes."""

import json
import os
import signal
import time

import pytest

from tests.helpers import processes

pytestmark = [pytest.mark.alone, pytest.mark.once]

SIZES = [2, 3, 2]  # workers 0 and 1, 2 to 4, 5 and 6


class Job(object):
    """A context manager that leaves no process behind."""

    def __init__(self, folder, start_s=600.0, silence_s=600.0, without=(), away=()):
        self.folder = str(folder)
        for worker in away:
            open(os.path.join(self.folder, "away.%d" % worker), "w").close()
        settings = [SIZES, processes.free_ports(1)[0], start_s, silence_s, list(without)]
        arguments = [self.folder] + [json.dumps(each) for each in settings]
        command, log = ["-m", "tests.helpers.light_jobs"] + arguments, os.path.join(self.folder, "log")
        self.process = processes.python(command, processes.clean_environment(), log)
        self.pids = dict(map(tuple, self.read("pids", 0)))

    def read(self, name, worker, limit_s=60):
        path, deadline = os.path.join(self.folder, "%s.%d" % (name, worker)), time.time() + limit_s
        while not os.path.exists(path):
            assert time.time() < deadline, "%s is not there" % path
            time.sleep(0.02)
        with open(path) as file:
            return json.load(file)

    def leader(self, worker):
        """Who leads the worker's host, once all are connected."""
        served_by = [self.read("ready", each)["served_by"] for each in sorted(self.pids)]
        assert served_by[:2] == [0, 0] and len(set(served_by[2:5])) == 1 and len(set(served_by[5:])) == 1
        return served_by[worker]

    def ends(self, without=(), limit_s=60):
        return {worker: self.read("end", worker, limit_s) for worker in sorted(self.pids) if worker not in without}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()  # with all that it has forked


def test_all_come_and_go(tmp_path):
    with Job(tmp_path) as job:
        assert all(end["error"] is None for end in job.ends().values()), job.ends()


@pytest.mark.parametrize("who", ["leader", "member", "worker 0"])
def test_who_is_killed_is_named_everywhere(tmp_path, who):
    with Job(tmp_path, away=[0, 2, 3, 4]) as job:
        leader = job.leader(3)
        victim = {"leader": leader, "member": 3 if leader != 3 else 4, "worker 0": 0}[who]
        os.kill(job.pids[victim], signal.SIGKILL)
        for worker in (0, 2, 3, 4):
            os.remove(os.path.join(job.folder, "away.%d" % worker))
        for worker, end in job.ends(without=[victim]).items():
            assert end["ending"] and end["ending"][:2] == [victim, "lost"], (worker, end)


def test_a_leader_that_is_stopped_is_named_everywhere(tmp_path):
    with Job(tmp_path, silence_s=4.0, away=[2, 3, 4]) as job:
        leader = job.leader(3)
        os.kill(job.pids[leader], signal.SIGSTOP)
        for worker in (2, 3, 4):
            os.remove(os.path.join(job.folder, "away.%d" % worker))
        for worker, end in job.ends(without=[leader]).items():
            if worker in (2, 3, 4):
                told = "Worker %d, which leads this host, did not answer within" % leader
            else:
                told = "no sign of life from worker %d for" % leader
            assert told in end["error"], (worker, end)


def test_another_leads_where_the_first_never_comes(tmp_path):
    """And only who has not come is said to be missing."""
    with Job(tmp_path, start_s=6.0, without=[2]) as job:
        for worker, end in job.ends().items():
            assert "worker 2 has not started within 6 s" in end["error"], (worker, end)
