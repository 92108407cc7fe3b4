"""epl-launch: how jobs end, with real processes. The workers are small programs without TensorFlow."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.launching import LIMIT_S, PRELUDE, Launch, assert_gone, lines_of
from tests.helpers.processes import REPOSITORY, alive, clean_environment

pytestmark = [pytest.mark.alone, pytest.mark.once]

# A worker that is not ended sleeps for longer than the tests wait: that a job ends says that nobody waited for it.


def patient(constant):
    """How Python runs a launcher that would wait for longer than the tests do."""
    code = "import epl.launch.main as main, epl.launch.processes as processes, sys; %s = 1000.0; sys.exit(main.main())"
    return ["-c", code % constant]


# --- ends ---


def test_one_failure_ends_all_and_is_summed_up(launch, tmp_path):
    job = launch(
        """
        note("pid")
        if INDEX == 1:
            for i in range(40): print("line", i)
            raise ValueError("no good")
        if INDEX == 2:
            time.sleep(1); print("epl.errors.WorkerError: worker 1 failed"); sys.exit(7)
        time.sleep(1000)
    """,
        "--num_workers",
        "3",
    )
    pids = job.pids("pid", 3)
    status, out, err = job.wait()
    assert status == 1
    assert lines_of(out, 2) == ["epl.errors.WorkerError: worker 1 failed"]  # peers have time for their last words
    cause = err[err.index("epl-launch: worker 1 failed") :]  # the last of what is said
    assert re.match(
        r"epl-launch: worker 1 failed after \d+\.\d s: exit code 1\.\n  \| ValueError: no good\n"
        r'  \|   File ".*train.py", line \d+, in <module>\n  \|   raise ValueError\("no good"\)\n$',
        cause,
    )
    assert "worker 2 ended because of it: exit code 7." in err
    assert "worker 0 was still running and was ended by epl-launch." in err
    logs = re.search(r"whole output: (.*)/worker-<index>.log", err).group(1)
    assert "line 0\n" in open(os.path.join(logs, "worker-1.log")).read()
    assert_gone(pids)


def test_the_quicker_victim_is_not_blamed(launch):
    status, _, err = launch(
        """
        from epl.errors import WorkerError
        from epl.launch import notes
        if INDEX == 1:
            notes.tell_failure(os.environ, WorkerError("worker 0 failed"), 3, [0], True)
            print("ValueError: of which the launcher makes nothing"); sys.exit(5)
        time.sleep(0.7); sys.exit(3)
    """,
        "--num_workers",
        "2",
    ).wait()
    assert status == 3 and "\nepl-launch: worker 0 failed" in err and "worker 1 ended because of it" in err


@pytest.mark.parametrize(
    "program, status, words",
    [
        ("sys.exit(42)", 42, "exit code 42"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL (signal 9)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "killed by SIGSEGV (signal 11)"),
        ("#!/bin/bash\nexit 3\n", 3, "exit code 3"),
        ("#!/bin/bash\npython -c 'import os; os.kill(os.getpid(), 9)'\n", 137, "exit code 137 (SIGKILL (signal 9)"),
        ("#!/bin/bash\nno-such-program\n", 127, "exit code 127"),
    ],
)
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
    assert job.wait()[0] == 1
    assert not any(alive(pid) for pid in pids)


def test_stopped_workers_are_ended(launch):
    job = launch(
        """
        def end(*_): note("told"); sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        note("pid")
        if INDEX == 0: os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.5); sys.exit(4)
    """,
        "--num_workers",
        "2",
        python=patient("processes.KILL_AFTER_S"),
    )
    pids = job.pids("pid", 2)
    status, _, err = job.wait()
    assert job.pids("told", 1) == pids[:1]  # it goes on to take its SIGTERM; no need for SIGKILL
    assert status == 4 and "worker 1 failed" in err and "worker 0 was stopped (SIGSTOP)" in err
    assert not any(alive(pid) for pid in pids)


def test_a_worker_that_is_stopped_at_its_end(launch):
    """Nobody is left who would miss it."""
    program = "note('pid')\nif INDEX == 0: os.kill(os.getpid(), signal.SIGSTOP)"
    code = "import epl.launch.loop as job, epl.launch.main as main, sys; job.STOPPED_GRACE_S = 1; sys.exit(main.main())"
    job = launch(program, "--num_workers", "2", python=["-c", code])
    status, out, err = job.wait()
    assert status == 143 and "[epl-launch] worker 0 is stopped (SIGSTOP)" in out
    assert err.endswith("s: it was stopped (SIGSTOP), and the others waited for it in vain.\n")


def test_a_worker_that_stays_stopped_ends_the_job(launch):
    """After the time that it has noted itself, though all others still run."""
    program = """
        from epl.launch import notes
        notes.tell(notes.JOINED, os.environ, process=os.getpid(), stopped_s=1)
        note("pid")
        if INDEX == 0: os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1000)
    """
    job = launch(program, "--num_workers", "2")
    pids = job.pids("pid", 2)
    status, _, err = job.wait()
    assert status == 143 and err.endswith("s: it was stopped (SIGSTOP), and the others waited for it in vain.\n")
    assert_gone(pids)


def test_something_else_that_is_stopped_ends_nothing(launch):
    program = """
        from epl.launch import notes
        notes.tell(notes.JOINED, os.environ, process=os.getpid(), stopped_s=0.5)
        if INDEX == 0:
            other = subprocess.Popen(["sleep", "1000"])
            other.send_signal(signal.SIGSTOP)
        time.sleep(4)
    """
    status, out, err = launch(program, "--num_workers", "2").wait()
    assert (status, err) == (0, "") and "[epl-launch] worker 0 is stopped (SIGSTOP)" in out


def test_a_worker_that_still_runs_is_named_now_and_then(launch):
    code = "import epl.launch.loop as job, epl.launch.main as main, sys; job.STILL_RUNS_S = 1; sys.exit(main.main())"
    program = "time.sleep(5 if INDEX == 1 else 0)"
    status, out, err = launch(program, "--num_workers", "3", python=["-c", code]).wait()
    said = re.findall(r"\[epl-launch\] worker 1 still runs; all others have ended, the last of them (\d+) s ago", out)
    assert (status, err) == (0, "") and len(said) >= 2 and said == sorted(said, key=int)


@pytest.mark.parametrize(
    "state, words",
    [
        ("JOINED", "exit code 0, but without leaving its job in good order, so that worker 1 waits for it in vain."),
        ("LEFT", "exit code 0, but before all others had come to epl.init(), so that worker 1 waits for it in vain."),
    ],
)
def test_worker_0_ends_before_another_has_come(launch, state, words):
    program = """
        from epl.launch import notes
        open(os.environ["EPL_LAUNCH_NOTE"], "w").close()
        notes.tell(notes.JOINING, os.environ)
        if INDEX == 0: notes.tell(notes.%s, os.environ)
        else: time.sleep(1000)
    """
    status, _, err = launch(program % state, "--num_workers", "2").wait()
    assert status == 1 and err.endswith(words + "\n")


def test_a_worker_that_ends_before_init_is_not_waited_for(launch):
    """The others would wait for it until communication.start_timeout_s."""
    program = """
        from epl.launch import notes
        notes.tell("", os.environ)
        if INDEX == 1:
            notes.tell(notes.JOINING, os.environ)
            time.sleep(1000)
    """
    status, _, err = launch(program, "--num_workers", "2").wait()
    assert status == 1
    assert err.endswith("exit code 0, but without epl.init(), so that worker 1 waits for it in vain.\n")


@pytest.mark.parametrize("number, how", [(2, "side by side, each for itself"), (1, "on one device")])
def test_a_job_in_which_nobody_calls_init_fails(launch, number, how):
    status, out, err = launch(
        'open(os.environ["EPL_LAUNCH_NOTE"], "w").close(); print("trained")', "--num_workers", str(number)
    ).wait()
    assert status == 1 and lines_of(out, 0) == ["trained"]
    last = err.splitlines()[-1]
    assert last.startswith("epl-launch: no worker came to epl.init(): ") and how in last
    assert last.endswith("Write `import epl` and `epl.init()` right after the imports, before the model is built.")
    logs = re.search(r"whole output: (.*)/worker-<index>.log", err).group(1)
    assert open(os.path.join(logs, "worker-0.log")).read() == "trained\n"


def test_a_job_in_which_nobody_calls_init_is_told_so_while_it_runs(launch):
    program = 'open(os.environ["EPL_LAUNCH_NOTE"], "w").close(); note("pid"); time.sleep(1000)'
    code = (
        "import epl.launch.loop as job, epl.launch.main as main, sys; job.INIT_EXPECTED_S = 0.5; sys.exit(main.main())"
    )
    job = launch(program, python=["-c", code], bufsize=0)
    said = b"[epl-launch] no worker has come to epl.init() within 0.5 s; without it each trains for itself\n"
    assert said in iter(job.process.stdout.readline, b"")
    job.process.terminate()
    assert job.wait()[0] == 143


def test_logs_are_private_and_follow_no_links(launch, tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "worker-0.log").write_text("before\n")
    assert launch("print('x')", "--log_dir", str(logs)).wait()[0] == 0
    assert os.listdir(str(logs)) == ["worker-0.log"]
    assert os.stat(str(logs / "worker-0.log")).st_mode & 0o777 == 0o600
    assert (logs / "worker-0.log").read_text().splitlines()[::2] == ["before", "x"]
    other = tmp_path / "other"
    other.write_text("")
    (logs / "worker-0.log").unlink()
    (logs / "worker-0.log").symlink_to(other)
    status, _, err = launch("print('x')", "--log_dir", str(logs)).wait()
    assert status == 2 and "worker-0.log" in err and other.read_text() == ""


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
    status, _, err = job.wait()
    assert status == 128 + number
    assert "stopped by %s; all workers have ended." % signal.Signals(number).name in err
    assert not any(alive(pid) for pid in pids)


def test_workers_may_tidy_up_on_ctrl_c(launch):
    job = launch(
        """
        note("pid")
        try: time.sleep(1000)
        except KeyboardInterrupt: time.sleep(0.5); print("saved")
    """,
        "--num_workers",
        "2",
    )
    job.pids("pid", 2)
    job.process.send_signal(signal.SIGINT)
    status, out, err = job.wait()
    assert status == 130
    assert lines_of(out, 0) == lines_of(out, 1) == ["saved"]


def test_a_second_ctrl_c_does_not_wait(launch):
    job = launch(STUBBORN, "--num_workers", "2", script=["9"], python=patient("processes.KILL_AFTER_S"))
    pids = job.pids("pid", 2) + job.pids("child", 2)
    job.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    job.process.send_signal(signal.SIGINT)
    assert job.wait()[0] == 130
    assert not any(alive(pid) for pid in pids)


@pytest.mark.parametrize(
    "program, arguments, names",
    [(NESTED, ["wait"], ["deep"]), (STUBBORN, ["9"], ["pid", "child"])],
    ids=["nested", "stubborn"],
)
def test_killing_the_launcher_ends_the_workers(launch, program, arguments, names):
    job = launch(program, "--num_workers", "2", script=arguments)
    pids = [pid for name in names for pid in job.pids(name, 2)]
    job.process.kill()
    job.process.communicate(timeout=LIMIT_S)
    assert_gone(pids)


def test_nohup_is_respected(launch):
    job = launch(
        "note('pid'); time.sleep(1.5); print('done')", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    job.pids("pid", 1)
    job.process.send_signal(signal.SIGHUP)
    status, out, _ = job.wait()
    assert status == 0 and lines_of(out, 0) == ["done"]


def test_a_process_outside_the_session_does_not_hold_the_launcher(launch):
    job = launch("child = subprocess.Popen(['sleep', '1000'], start_new_session=True); note('child', str(child.pid))")
    assert job.wait()[0] == 0
    for pid in job.pids("child", 1):
        os.kill(pid, signal.SIGKILL)


def test_ctrl_c_reaches_a_launcher_started_in_the_background(tmp_path):
    (tmp_path / "train.py").write_text(PRELUDE + "note('pid'); time.sleep(1000)\n")
    # A shell makes what it starts with & ignore SIGINT.
    shell = "%s -m epl.launch --num_workers 2 train.py > out 2>&1 & echo $! > launcher; wait $!; echo $? > status"
    process = subprocess.Popen(
        ["bash", "-c", shell % sys.executable],
        cwd=str(tmp_path),
        env=clean_environment(NOTES=tmp_path, TMPDIR=tmp_path),
    )
    job = Launch.__new__(Launch)
    job.folder = tmp_path
    pids = job.pids("pid", 2)
    os.kill(int((tmp_path / "launcher").read_text()), signal.SIGINT)
    assert process.wait(timeout=LIMIT_S) == 0
    assert (tmp_path / "status").read_text() == "130\n"
    assert not any(alive(pid) for pid in pids)


def test_the_package_runs_from_its_folder():
    result = subprocess.run(
        [sys.executable, "-m", "epl.launch", "--help"],
        cwd=REPOSITORY,
        timeout=LIMIT_S,
        stdout=subprocess.PIPE,
        universal_newlines=True,
        env=clean_environment(),
    )
    assert result.returncode == 0 and "--gpu_per_worker" in result.stdout
