"""Real processes and real faults: whatever happens to one worker, all of them end, soon, and say why."""

import glob
import json
import os
import re
import signal
import socket
import time

import numpy as np
import pytest

from epl import own_folders
from tests.faults.job import SCRIPT, Job, names_worker
from tests.helpers import processes
from tests.helpers.processes import alive

# Until jobs end that wait for nobody: longer than any of them takes, shorter than what they would wait for a worker.
END_S = 200
# communication.timeout_s of the test that waits for it.
TIMEOUT_S = 8
# With 2 stages each worker holds a stage of a pipeline, with 1 a copy of the model.
COPIES, STAGES = "1", "1,1"


def exhaustive(*values):
    """Parameters that are left out as long as not all tests are asked for."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def once(*values):
    return pytest.param(*values, marks=pytest.mark.once)


@pytest.fixture(name="start")
def start_jobs(tmp_path, template):
    """Starts a job; nothing of it is left after the test."""
    started = []

    def start(scenario, victim=-1, workers=2, **environ):
        environ = processes.clean_environment(**environ)
        started.append(Job(template.python, tmp_path, scenario, victim, workers, 1, environ))
        return started[-1]

    yield start
    for job in started:
        job.__exit__()


@pytest.mark.alone
@pytest.mark.parametrize(
    "workers, victim, stages",
    [(2, 0, COPIES), once(2, 1, COPIES), once(3, 1, COPIES), once(2, 0, STAGES), (2, 1, STAGES)],
)
def test_killed_worker(start, workers, victim, stages):
    run = start("hang", victim, workers, FAULT_STAGES=stages)
    run.wait_for_file("in_step")
    time.sleep(1)  # the others have reached their collective
    pids = run.pids()
    os.kill(pids[victim], signal.SIGKILL)
    ended = run.end(END_S)
    assert ended.code not in (0, None), ended
    assert not any(alive(pid) for pid in pids)
    assert not [folder for pid in pids for folder in glob.glob("/tmp/%s%d-*" % (own_folders.GATE, pid))]
    tail = ended.output[-3000:]
    assert names_worker(tail, victim) and re.search(r"SIGKILL|signal 9", tail), ended
    for index in set(range(workers)) - {victim}:
        error = run.read("error.%d" % index)
        if error is not None:  # the launcher may have ended it first
            assert names_worker(error, victim), error


@pytest.mark.alone
@pytest.mark.parametrize("victim", [0, once(1)])
def test_killed_worker_is_noticed_without_a_launcher(template, tmp_path, victim):
    environments = processes.worker_environments(2, 1)
    children = [
        template.python([SCRIPT, "hang", tmp_path, victim], environ, tmp_path / ("log.%d" % index))
        for index, environ in enumerate(environments)
    ]
    try:
        deadline = time.time() + 90
        while not (tmp_path / "in_step").exists():
            assert time.time() < deadline and all(child.running() for child in children), children[0].output()[-3000:]
            time.sleep(0.05)
        time.sleep(1)
        children[victim].signal(signal.SIGKILL)
        ended = children[1 - victim].wait(END_S)
    finally:
        for child in children:
            child.kill()
    assert ended.code == 1, ended
    error = (tmp_path / ("error.%d" % (1 - victim))).read_text()
    assert "CommunicationError" in error.splitlines()[0] and names_worker(error, victim), error


@pytest.mark.alone
@pytest.mark.parametrize("victim, stages", [(0, COPIES), once(1, COPIES), once(0, STAGES)])
def test_stopped_worker(start, victim, stages):
    run = start("hang", victim, EPL_COMMUNICATION_TIMEOUT_S=TIMEOUT_S, FAULT_STAGES=stages)
    run.wait_for_file("in_step")
    pid = run.pids()[victim]
    os.kill(pid, signal.SIGSTOP)
    ended = run.end(END_S)
    assert ended.code not in (0, None), ended
    assert not any(alive(each) for each in run.pids())
    error = run.read("error.%d" % (1 - victim))
    waited_for = r"all[-_ ]?reduce" if stages == COPIES else "hidden"  # in a pipeline: the message of this tensor
    assert re.search(waited_for, error, re.IGNORECASE), error
    assert re.search(r"(rank|worker)\S*\s+%d\b" % victim, error), error
    assert re.search(r"\b%d(\.0)? ?s" % TIMEOUT_S, error), error


@pytest.mark.alone
@pytest.mark.parametrize("victim", [0, once(1)])
def test_stopped_worker_without_a_launcher(template, tmp_path, victim):
    """By heartbeats, with default time-outs of what communicates."""
    environments = processes.worker_environments(2, 1)
    children = [
        template.python(
            [SCRIPT, "hang", tmp_path, victim],
            dict(environ, EPL_COMMUNICATION_STOPPED_S="11"),
            tmp_path / ("log.%d" % index),
        )
        for index, environ in enumerate(environments)
    ]
    try:
        deadline = time.time() + 90
        while not (tmp_path / "in_step").exists():
            assert time.time() < deadline and all(child.running() for child in children), children[0].output()[-3000:]
            time.sleep(0.05)
        children[victim].signal(signal.SIGSTOP)
        ended = children[1 - victim].wait(90)
    finally:
        for child in children:
            child.kill()
    assert ended.code == 1, ended
    assert "worker %d: no sign of life from worker %d for" % (1 - victim, victim) in ended.output, ended
    error = (tmp_path / ("error.%d" % (1 - victim))).read_text()
    assert re.search(r"no sign of life from worker %d for 1\d s \(communication.stopped_s\)" % victim, error), error


@pytest.mark.parametrize("scenario", [once("wrong_config_there"), "fewer_steps_with_saves"])
def test_workers_that_differ_with_default_time_outs(start, scenario):
    ended = start(scenario, 1).end()
    said = {
        "wrong_config_there": "configurations of the workers differ: worker 1 has zero.level='v1', but worker 0 has ''",
        "fewer_steps_with_saves": "but worker 0 is at another step, in which it needs worker 1: all workers must make",
    }[scenario]
    assert ended.code == 1 and said in ended.output.rpartition("epl-launch: worker 1 failed after")[2], ended


@pytest.mark.parametrize("victim, stages", [exhaustive(0, COPIES), (1, COPIES), (0, STAGES)])
def test_data_that_ends_earlier(start, victim, stages):
    run = start("data_ends", victim, FAULT_STAGES=stages)
    ended = run.end()
    assert ended.code == 0, ended
    assert [run.read("steps.%d" % index) for index in range(2)] == ["4", "4"]
    assert "the data of worker %d has ended: no worker runs step" % victim in ended.output, ended
    assert "Traceback" not in ended.output


@pytest.mark.parametrize("victim", [0, once(1)])
def test_worker_that_makes_fewer_steps(start, victim):
    run = start("fewer_steps", victim)
    ended = run.end()
    error = run.read("error.%d" % (1 - victim))
    said = "worker %d has finished after 3 steps; worker %d wanted another" % (victim, 1 - victim)
    assert ended.code not in (0, None) and error is not None and said in error, ended
    assert said in ended.output[-1500:], ended
    for noise in ("could not tell", "Connection refused", "has closed communicator", "CANCELLED"):
        assert noise not in ended.output, ended


@pytest.mark.parametrize(
    "victim, stages, scenario, kind",
    [
        once(0, COPIES, "raise_in_graph", "ValueError"),
        (1, COPIES, "raise_in_graph", "ValueError"),
        exhaustive(0, COPIES, "raise_in_script", "KeyError"),
        once(1, COPIES, "raise_in_script", "KeyError"),
        (0, COPIES, "raise_at_start", "KeyError"),
        exhaustive(1, COPIES, "raise_at_start", "KeyError"),
        (0, STAGES, "raise_in_graph", "ValueError"),
        exhaustive(1, STAGES, "raise_in_graph", "ValueError"),
        exhaustive(0, STAGES, "raise_in_script", "KeyError"),
        (1, STAGES, "raise_in_script", "KeyError"),
        exhaustive(0, STAGES, "raise_at_start", "KeyError"),
        exhaustive(1, STAGES, "raise_at_start", "KeyError"),
    ],
)
def test_worker_that_raises(start, victim, stages, scenario, kind):
    run = start(scenario, victim, FAULT_STAGES=stages)
    ended = run.end()
    assert ended.code not in (0, None), ended
    error = run.read("error.%d" % (1 - victim))
    assert error is not None, ended
    assert "WorkerError" in error.splitlines()[0], error
    assert names_worker(error, victim) and "no such luck" in error and re.search(r"step \d", error), error
    # The error's cause reaches everyone; its traceback comes from nobody but the worker that raised, and the summary
    # at the end shows its error once.
    live, mark, summary = ended.output.partition("epl-launch: worker")
    assert mark and "no such luck" in summary and names_worker(mark + summary, victim), ended
    assert summary.count("  | ") >= 1 and summary.count(" failed after ") == 1, ended
    raising = [line for line in live.splitlines() if "raise %s(" % kind in line and "no such luck" in line]
    if scenario != "raise_in_graph":
        assert len(raising) == 1 and names_worker(raising[0][:20], victim), ended
    assert summary.count("raise %s(" % kind) <= 1, ended


def test_different_graphs_are_refused(start):
    run = start("other_graph", 1)
    ended = run.end()
    assert ended.code not in (0, None), ended
    for index in range(2):
        error = run.read("error.%d" % index)
        assert error is not None and "EplError" in error.splitlines()[0], ended
        assert "hidden" in error and re.search(r"\b4\b", error) and re.search(r"\b5\b", error), error
    assert "did step" not in ended.output


def test_an_extra_layer_on_one_of_three_workers(start):
    """Told before anything is sent, and by whom, as the others are alike."""
    run = start("extra_layer", 1, workers=3)
    ended = run.end()
    assert ended.code == 1, ended
    for index in range(3):
        error = run.read("error.%d" % index).splitlines()[1]
        assert error.startswith("worker 1 and the others have built different graphs: worker 1's graph has"), ended
        assert "extra/" in error, error
    assert re.search(r"^epl-launch: worker 1 failed after ", ended.output, re.MULTILINE), ended
    assert "did step" not in ended.output


def tf_config(hosts, index):
    return json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}})


@pytest.fixture(name="single")
def single_fixture(template, tmp_path):
    """Runs one worker process by itself."""
    return lambda *args, **kwargs: single_worker(template, tmp_path, *args, **kwargs)


def single_worker(template, tmp_path, timeout_s=END_S, name="log", **environ):
    environ = dict(
        {"EPL_GPU_PER_WORKER": 1, "EPL_DEVICE": "cpu", "EPL_COMMUNICATION_START_TIMEOUT_S": 5, "EPL_JOB_TOKEN": "t"},
        **environ,
    )
    return template.python([SCRIPT, "none", tmp_path], processes.clean_environment(**environ), tmp_path / name).wait(
        timeout_s
    )


@pytest.mark.once
def test_port_taken(single):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(5)
        port = taken.getsockname()[1]
        hosts = ["127.0.0.1:%d" % port, "127.0.0.1:%d" % processes.free_ports(1)[0]]
        chief = single(TF_CONFIG=tf_config(hosts, 0))
        other = single(TF_CONFIG=tf_config(hosts, 1))
    assert chief.code == 1 and hosts[0] in last_error(chief), chief
    assert re.search(r"in use|taken|another process|listen", last_error(chief)), chief
    # Something answers there, but it is not worker 0.
    assert other.code == 1 and hosts[0] in last_error(other), other


def last_error(ended):
    """The message at the end of the traceback."""
    return re.split(r"\n(?=\S*Error\b)", ended.output)[-1]


@pytest.mark.once
@pytest.mark.parametrize("host", ["127.0.0.1:%d", "no-such-host.invalid:%d"])
def test_unreachable_host(single, host):
    hosts = [host % processes.free_ports(1)[0], "127.0.0.1:%d" % processes.free_ports(1)[0]]
    ended = single(TF_CONFIG=tf_config(hosts, 1))
    assert ended.code == 1, ended
    assert hosts[0] in last_error(ended), ended


@pytest.mark.once
def test_worker_that_never_comes(single):
    hosts = ["127.0.0.1:%d" % port for port in processes.free_ports(2)]
    ended = single(TF_CONFIG=tf_config(hosts, 0))
    assert ended.code == 1, ended
    assert re.search(r"(worker|rank)\S*\s+\[?1\b", last_error(ended), re.IGNORECASE), ended


@pytest.mark.once
@pytest.mark.parametrize(
    "config",
    [
        "{not json",
        "[]",
        "{}",
        tf_config(["127.0.0.1:1"], 5),
        tf_config(["nonsense"], 0),
        json.dumps({"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}}),
    ],
)
def test_wrong_tf_config(single, config):
    ended = single(TF_CONFIG=config)
    if config == "{}":  # what an empty TF_CONFIG means to TensorFlow too: a single worker
        assert ended.code == 0, ended
        return
    assert ended.code == 1, ended
    assert "TF_CONFIG" in last_error(ended) and "ClusterError" in last_error(ended), ended


@pytest.mark.once
def test_foreign_process_without_the_token(template, single, tmp_path):
    environments = processes.worker_environments(2, 1, token="the right one")
    hosts = json.loads(environments[0]["TF_CONFIG"])["cluster"]["worker"]
    children = [template.python([SCRIPT, "none", tmp_path], environments[0], tmp_path / "log.0")]
    try:
        wait_for_port(hosts[0])
        with socket.create_connection(hosts[0].split(":"), 5) as raw:
            raw.sendall(b"GET / HTTP/1.0\r\n\r\n" + os.urandom(4000))
        stranger = single(name="stranger", TF_CONFIG=environments[1]["TF_CONFIG"], EPL_JOB_TOKEN="a wrong one")
        assert stranger.code == 1 and "token" in last_error(stranger), stranger
        assert "the right one" not in stranger.output
        children.append(template.python([SCRIPT, "none", tmp_path], environments[1], tmp_path / "log.1"))
        ends = [child.wait(90) for child in children]
    finally:
        for child in children:
            child.kill()
    assert [ended.code for ended in ends] == [0, 0], ends
    assert all("finished after 40 steps" in ended.output for ended in ends), ends


def wait_for_port(address, timeout_s=60):
    deadline = time.time() + timeout_s
    while True:
        try:
            socket.create_connection(address.split(":"), 1).close()
            return
        except OSError:
            assert time.time() < deadline, "nobody listens on %s" % address
            time.sleep(0.1)


@pytest.mark.parametrize("stages", [COPIES, once(STAGES)])
def test_disk_full_while_saving(start, plain, stages):
    run = start("disk_full", 0, FAULT_STAGES=stages)
    ended = run.end()
    assert ended.code not in (0, None), ended
    assert names_worker(run.read("error.1"), 0), ended
    tensors, kept = plain("tests.helpers.programs.sessions:read_checkpoint", run.folder)
    assert kept == ["model-1"]
    np.testing.assert_array_equal(tensors["big"], np.load(os.path.join(run.folder, "big.npy")))
    assert {"hidden/kernel", "out/kernel"} <= set(tensors)
