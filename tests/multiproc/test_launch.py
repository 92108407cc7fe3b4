"""epl-launch with real processes. The workers are small programs without TensorFlow."""
import json
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.helpers.processes import REPOSITORY, clean_environment

LIMIT_S = 40

# What every Python worker of these tests begins with.
PRELUDE = """\
import json, os, signal, subprocess, sys, time
INDEX = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
def note(name, text=""):
    with open(os.path.join(os.environ["NOTES"], "%s-%d" % (name, INDEX)), "w") as stream:
        stream.write(text or str(os.getpid()))
"""


class Launch:
    """A running epl-launch."""

    def __init__(self, folder, arguments, environ=None, **popen):
        variables = clean_environment(NOTES=folder, TMPDIR=folder, **(environ or {}))
        options = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        options.update(popen)
        self.folder = folder
        self.process = subprocess.Popen([sys.executable, "-m", "epl.launch"] + arguments, cwd=str(folder),
                                        env=variables, start_new_session=True, **options)

    def wait(self):
        """(exit status, standard output, standard error) as text, at the end."""
        try:
            out, err = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError("epl-launch did not end: %r" % (self.process.communicate(),))
        return self.process.returncode, (out or b"").decode("utf-8", "replace"), (err or b"").decode("utf-8", "replace")

    def notes(self, name, number):
        """What `number` workers have noted under `name`, by worker; waits for them."""
        deadline = time.monotonic() + LIMIT_S
        paths = [os.path.join(str(self.folder), "%s-%d" % (name, index)) for index in range(number)]
        while not all(os.path.exists(path) and os.path.getsize(path) for path in paths):
            assert time.monotonic() < deadline, "workers did not note %s" % name
            time.sleep(0.02)
        return [open(path).read() for path in paths]

    def pids(self, name, number):
        return [int(text) for text in self.notes(name, number)]


@pytest.fixture(name="launch")
def launch_fixture(tmp_path):
    """launch(program, options..., script=[arguments of the script]): the program is a .py, or a .sh if it begins so."""
    started = []

    def launch(program, *options, script=(), environ=None, **popen):
        shell = program.startswith("#!")
        path = tmp_path / ("run.sh" if shell else "train.py")
        path.write_text(program if shell else PRELUDE + textwrap.dedent(program))
        started.append(Launch(tmp_path, list(options) + [path.name] + list(script), environ, **popen))
        return started[-1]

    yield launch
    for each in started:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.communicate(timeout=LIMIT_S)


def alive(pid):
    """Whether there is a process `pid` that is no zombie."""
    try:
        with open("/proc/%d/stat" % pid) as stream:
            return stream.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def assert_gone(pids, within_s=8.0):
    deadline = time.monotonic() + within_s
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "still there: %s" % [pid for pid in pids if alive(pid)]
        time.sleep(0.05)


def lines_of(output, worker):
    head = "[worker %d] " % worker
    return [line[len(head):] for line in output.splitlines() if line.startswith(head)]


# --- what workers get ---


def test_variables_and_arguments(launch, tmp_path):
    job = launch("""
        print(json.dumps([dict(os.environ), sys.argv[1:], os.getcwd(), sorted(os.sched_getaffinity(0))]))
        assert sys.stdin.read() == ""
    """, "--num_workers", "2", "--gpu_per_worker", "3", "--device", "cpu", script=["--num_workers", "--", "a b", ""])
    status, out, err = job.wait()
    assert (status, err) == (0, "")
    seen = [json.loads(lines_of(out, worker)[0]) for worker in (0, 1)]
    hosts = json.loads(seen[0][0]["TF_CONFIG"])["cluster"]["worker"]
    assert len(set(hosts)) == 2 and all(re.match(r"127\.0\.0\.1:\d+$", host) for host in hosts)
    for index, (variables, arguments, folder, _) in enumerate(seen):
        assert json.loads(variables["TF_CONFIG"]) == {
            "cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}
        assert (variables["EPL_GPU_PER_WORKER"], variables["EPL_DEVICE"]) == ("3", "cpu")
        assert variables["CUDA_VISIBLE_DEVICES"] == ""
        assert arguments == ["--num_workers", "--", "a b", ""]
        assert folder == str(tmp_path)
    token = seen[0][0]["EPL_JOB_TOKEN"]
    assert len(token) >= 16 and token == seen[1][0]["EPL_JOB_TOKEN"]
    cores = [set(each[3]) for each in seen]
    if len(os.sched_getaffinity(0)) >= 2:
        assert not cores[0] & cores[1] and cores[0] | cores[1] == os.sched_getaffinity(0)
        threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
        assert int(seen[0][0]["TF_NUM_INTRAOP_THREADS"]) <= int(threads)
    assert list(tmp_path.glob("epl-launch-*")) == []


def test_no_binding(launch):
    status, out, _ = launch("print(len(os.sched_getaffinity(0)))", "--num_workers", "2", "--bind", "none").wait()
    assert status == 0
    assert lines_of(out, 0) == lines_of(out, 1) == [str(len(os.sched_getaffinity(0)))]


def test_shell_scripts_find_this_python(launch):
    job = launch("#!/bin/bash\npython -c 'import sys; print(sys.executable, sys.argv[1:])' \"$@\"\n", script=["x y"],
                 environ={"PATH": "/usr/bin:/bin"})
    status, out, _ = job.wait()
    assert status == 0
    assert lines_of(out, 0) == ["%s ['x y']" % os.path.join(os.path.dirname(sys.executable), "python")]


def test_cpu_devices_are_announced(launch):
    status, out, _ = launch("pass", "--num_workers", "2", "--gpu_per_worker", "500").wait()
    assert status == 0
    assert re.match(r"\[epl-launch\] 2 workers with 500 CPU devices each \(.*1000 needed\)\n", out)


def test_gpus_that_are_not_there(launch):
    status, out, err = launch("pass", "--gpu_per_worker", "500", "--device", "gpu").wait()
    assert (status, out) == (2, "")
    assert "--device gpu: 1 worker on this machine with 500 GPUs each need 500, but there" in err


def test_missing_script(tmp_path):
    (tmp_path / "run.sh").write_text("true\n")
    status, out, err = Launch(tmp_path, ["--num_workers", "2", "rnu.sh"]).wait()
    assert (status, out) == (2, "")
    assert err == "epl-launch: error: script rnu.sh does not exist. Did you mean run.sh?\n"


def test_several_machines_in_one(tmp_path):
    (tmp_path / "train.py").write_text(PRELUDE + "print(INDEX, os.environ['TF_CONFIG'], 'EPL_JOB_TOKEN' in os.environ)\n")
    both = [Launch(tmp_path, ["--num_workers", "4", "--machine_list", "127.0.0.1:23000,127.0.0.1:24000",
                              "--machine_rank", rank, "train.py"]) for rank in "01"]
    ends = [launch.wait() for launch in both]
    assert [status for status, _, _ in ends] == [0, 0]
    assert "this machine runs workers 2 to 3" in ends[1][1]
    for index in range(4):
        line = lines_of(ends[index // 2][1], index)[0]
        assert line.startswith("%d " % index) and line.endswith(" False")
        assert '["127.0.0.1:23000", "127.0.0.1:23001", "127.0.0.1:24000", "127.0.0.1:24001"]' in line


# --- output ---


def test_output_is_live_and_whole(launch):
    job = launch("""
        print("first"); sys.stdout.write("no end yet"); sys.stdout.flush()
        sys.stderr.write("")
        while not os.path.exists("go"): time.sleep(0.02)
        sys.stdout.buffer.write(b" \\xff\\xe4\\n"); sys.stdout.buffer.write(b"z" * 3000000); sys.stdout.flush()
        os.write(2, b"\\nlast, without an end")
    """, environ={"PYTHONIOENCODING": "utf-8"})
    seen, deadline = b"", time.monotonic() + LIMIT_S
    while b"[worker 0] no end yet" not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([job.process.stdout], [], [], 0.1)[0]:
            seen += os.read(job.process.stdout.fileno(), 4096)
    assert b"[worker 0] first\n[worker 0] no end yet" in seen
    (job.folder / "go").write_text("")
    status, rest, _ = job.wait()
    assert status == 0
    assert rest == " \ufffd\ufffd\n[worker 0] %s\n[worker 0] last, without an end\n" % ("z" * 3000000)


def test_log_files(launch, tmp_path):
    for turn in (0, 1):
        program = "sys.stdout.buffer.write(b'turn %d \\xff\\r\\n'); sys.stdout.flush(); print('worker', INDEX)" % turn
        assert launch(program, "--num_workers", "2", "--log_dir", "logs/here").wait()[0] == 0
    assert sorted(os.listdir(str(tmp_path / "logs" / "here"))) == ["worker-0.log", "worker-1.log"]
    content = (tmp_path / "logs" / "here" / "worker-1.log").read_bytes()
    assert content.startswith(b"turn 0 \xff\r\nworker 1\n=== epl-launch, ")
    assert content.endswith(b" ===\nturn 1 \xff\r\nworker 1\n")


def test_log_directory_that_cannot_be(launch, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = launch("pass", "--log_dir", "file").wait()
    assert status == 2 and err.startswith("epl-launch: error: ") and "file" in err


def test_a_reader_that_goes_away_ends_the_job(launch):
    job = launch("""
        note("pid")
        while True: print("line"); time.sleep(0.01)
    """, "--num_workers", "2")
    pids = job.pids("pid", 2)
    job.process.stdout.close()
    job.process.stdout = None
    status, _, err = job.wait()
    assert status == 128 + signal.SIGPIPE and "stopped by SIGPIPE" in err
    assert_gone(pids)


def test_a_reader_that_does_not_read_holds_nobody_up_at_the_end(launch):
    job = launch("""
        note("pid")
        while True: print("x" * 1000)
    """, "--num_workers", "2")
    pids = job.pids("pid", 2)
    time.sleep(1.0)
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(timeout=LIMIT_S) == 128 + signal.SIGTERM
    assert_gone(pids)


def test_debug_shows_what_is_started_but_not_the_token(launch):
    status, out, _ = launch("print('token', os.environ['EPL_JOB_TOKEN'])", "--debug").wait()
    token = lines_of(out, 0)[0].split()[1]
    assert status == 0 and out.count(token) == 1
    assert re.search(r"\[epl-launch\] worker 0: cores .* TF_CONFIG=.* EPL_DEVICE=", out)


# --- ends ---


def test_one_failure_ends_all_and_is_summed_up(launch, tmp_path):
    job = launch("""
        note("pid")
        if INDEX == 1:
            for i in range(40): print("line", i)
            raise ValueError("no good")
        if INDEX == 2:
            time.sleep(1); print("epl.errors.WorkerError: worker 1 failed"); sys.exit(7)
        time.sleep(1000)
    """, "--num_workers", "3")
    start = time.monotonic()
    pids = job.pids("pid", 3)
    status, out, err = job.wait()
    assert status == 1 and time.monotonic() - start < 10
    assert lines_of(out, 2) == ["epl.errors.WorkerError: worker 1 failed"]  # peers have time for their last words
    assert re.match(r"epl-launch: worker 1 failed after \d+\.\d s: exit code 1\.\n", err)
    assert "  | line 39\n" in err and "  | ValueError: no good\n" in err and "  | line 1\n" not in err
    assert "worker 2 ended because of it: exit code 7." in err
    assert "worker 0 was still running and was ended by epl-launch." in err
    logs = re.search(r"whole output: (.*)/worker-<index>.log", err).group(1)
    assert "line 0\n" in open(os.path.join(logs, "worker-1.log")).read()
    assert_gone(pids)


def test_the_quicker_victim_is_not_blamed(launch):
    status, _, err = launch("""
        if INDEX == 1: print("epl.errors.WorkerError: worker 0 failed"); sys.exit(5)
        time.sleep(0.7); sys.exit(3)
    """, "--num_workers", "2").wait()
    assert status == 3 and err.startswith("epl-launch: worker 0 failed") and "worker 1 ended because of it" in err


@pytest.mark.parametrize("program, status, words", [
    ("sys.exit(42)", 42, "exit code 42"),
    ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL (signal 9)"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "killed by SIGSEGV (signal 11)"),
    ("#!/bin/bash\nexit 3\n", 3, "exit code 3"),
    ("#!/bin/bash\npython -c 'import os; os.kill(os.getpid(), 9)'\n", 137, "exit code 137 (SIGKILL (signal 9)"),
    ("#!/bin/bash\nno-such-program\n", 127, "exit code 127"),
])
def test_exit_status(launch, program, status, words):
    found, _, err = launch(program).wait()
    assert found == status
    assert "worker 0 failed" in err and words in err


def test_all_well_says_nothing(launch):
    status, out, err = launch("print('x')", "--num_workers", "2").wait()
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()[1:]) == ["[worker 0] x", "[worker 1] x"]


STUBBORN = """
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"])
note("child", str(child.pid))
note("pid")
if INDEX == int(sys.argv[1]): sys.exit(1)
while True: time.sleep(1)
"""


def test_stubborn_workers_are_killed(launch):
    job = launch(STUBBORN, "--num_workers", "2", script=["1"])
    pids = job.pids("pid", 2) + job.pids("child", 2)
    start = time.monotonic()
    assert job.wait()[0] == 1
    assert time.monotonic() - start < 12
    assert not any(alive(pid) for pid in pids)


def test_stopped_workers_are_ended(launch):
    job = launch("""
        note("pid")
        if INDEX == 0: os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.5); sys.exit(4)
    """, "--num_workers", "2")
    pids = job.pids("pid", 2)
    status, _, err = job.wait()
    assert status == 4 and "worker 1 failed" in err and "worker 0 was still running" in err
    assert not any(alive(pid) for pid in pids)


# `timeout` makes a process group of its own; the background job outlives the shell.
NESTED = """#!/bin/bash
timeout 1000 python -c "
import os, sys, time, json
i = json.loads(os.environ['TF_CONFIG'])['task']['index']
open(os.environ['NOTES'] + '/deep-%d' % i, 'w').write(str(os.getpid())); time.sleep(1000)" &
if [ "$1" = wait ]; then wait; fi
sleep 1
"""


def test_what_a_script_leaves_behind_ends_with_the_job(launch):
    job = launch(NESTED, "--num_workers", "2")
    pids = job.pids("deep", 2)
    status, _, err = job.wait()
    assert (status, err) == (0, "")
    assert not any(alive(pid) for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_leaves_nothing_behind(launch, number):
    job = launch(NESTED, "--num_workers", "2", script=["wait"])
    pids = job.pids("deep", 2)
    job.process.send_signal(number)
    start = time.monotonic()
    status, _, err = job.wait()
    assert status == 128 + number and time.monotonic() - start < 8
    assert "stopped by %s; all workers have ended." % signal.Signals(number).name in err
    assert not any(alive(pid) for pid in pids)


def test_workers_may_tidy_up_on_ctrl_c(launch):
    job = launch("""
        note("pid")
        try: time.sleep(1000)
        except KeyboardInterrupt: time.sleep(0.5); print("saved")
    """, "--num_workers", "2")
    job.pids("pid", 2)
    job.process.send_signal(signal.SIGINT)
    status, out, err = job.wait()
    assert status == 130
    assert lines_of(out, 0) == lines_of(out, 1) == ["saved"]


def test_a_second_ctrl_c_does_not_wait(launch):
    job = launch(STUBBORN, "--num_workers", "2", script=["9"])
    pids = job.pids("pid", 2) + job.pids("child", 2)
    job.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    start = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    assert job.wait()[0] == 130
    assert time.monotonic() - start < 3
    assert not any(alive(pid) for pid in pids)


@pytest.mark.parametrize("program, arguments, names", [(NESTED, ["wait"], ["deep"]), (STUBBORN, ["9"], ["pid", "child"])],
                         ids=["nested", "stubborn"])
def test_killing_the_launcher_ends_the_workers(launch, program, arguments, names):
    job = launch(program, "--num_workers", "2", script=arguments)
    pids = [pid for name in names for pid in job.pids(name, 2)]
    job.process.kill()
    job.process.communicate(timeout=LIMIT_S)
    assert_gone(pids)


def test_nohup_is_respected(launch):
    job = launch("note('pid'); time.sleep(1.5); print('done')",
                 preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    job.pids("pid", 1)
    job.process.send_signal(signal.SIGHUP)
    status, out, _ = job.wait()
    assert status == 0 and lines_of(out, 0) == ["done"]


def test_a_process_outside_the_session_does_not_hold_the_launcher(launch):
    job = launch("child = subprocess.Popen(['sleep', '20'], start_new_session=True); note('child', str(child.pid))")
    start = time.monotonic()
    status, _, _ = job.wait()
    assert status == 0 and time.monotonic() - start < 10
    for pid in job.pids("child", 1):
        os.kill(pid, signal.SIGKILL)


def test_ctrl_c_reaches_a_launcher_started_in_the_background(tmp_path):
    (tmp_path / "train.py").write_text(PRELUDE + "note('pid'); time.sleep(1000)\n")
    # A shell makes what it starts with & ignore SIGINT.
    shell = "%s -m epl.launch --num_workers 2 train.py > out 2>&1 & echo $! > launcher; wait $!; echo $? > status"
    process = subprocess.Popen(["bash", "-c", shell % sys.executable], cwd=str(tmp_path),
                               env=clean_environment(NOTES=tmp_path, TMPDIR=tmp_path))
    job = Launch.__new__(Launch)
    job.folder = tmp_path
    pids = job.pids("pid", 2)
    os.kill(int((tmp_path / "launcher").read_text()), signal.SIGINT)
    assert process.wait(timeout=LIMIT_S) == 0
    assert (tmp_path / "status").read_text() == "130\n"
    assert not any(alive(pid) for pid in pids)


def test_the_package_runs_from_its_folder():
    result = subprocess.run([sys.executable, "-m", "epl.launch", "--help"], cwd=REPOSITORY, timeout=LIMIT_S,
                            stdout=subprocess.PIPE, universal_newlines=True, env=clean_environment())
    assert result.returncode == 0 and "--gpu_per_worker" in result.stdout
