"""epl-launch with real processes. The workers are small programs without TensorFlow."""

import json
import os
import platform
import re
import select
import signal
import sys
import time

import pytest

from tests.helpers.launching import LIMIT_S, PRELUDE, Launch, assert_gone, lines_of

pytestmark = pytest.mark.once

# --- what workers get ---


def test_variables_and_arguments(launch, tmp_path):
    job = launch(
        """
        print(json.dumps([dict(os.environ), sys.argv[1:], os.getcwd(), sorted(os.sched_getaffinity(0))]))
        assert sys.stdin.read() == ""
    """,
        "--num_workers",
        "2",
        "--gpu_per_worker",
        "3",
        "--device",
        "cpu",
        script=["--num_workers", "--", "a b", ""],
    )
    status, out, err = job.wait()
    assert (status, err) == (0, "")
    seen = [json.loads(lines_of(out, worker)[0]) for worker in (0, 1)]
    hosts = json.loads(seen[0][0]["TF_CONFIG"])["cluster"]["worker"]
    assert len(set(hosts)) == 2 and all(re.match(r"127\.0\.0\.1:\d+$", host) for host in hosts)
    for index, (variables, arguments, folder, _) in enumerate(seen):
        assert json.loads(variables["TF_CONFIG"]) == {
            "cluster": {"worker": hosts},
            "task": {"type": "worker", "index": index},
        }
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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc, whose malloc this is about")
def test_memory_that_a_thread_frees_stays_for_its_next_step(launch):
    status, out, err = launch(
        """
        import ctypes, resource, threading
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]

        def step():  # tensors of 1 MiB and of 100 MiB
            tensors = [libc.malloc(size << 20) for size in (1, 100, 1)]
            for tensor in tensors: ctypes.memset(tensor, 1, 1 << 20)
            for tensor in tensors: libc.free(tensor)

        def steps():
            for _ in range(3): step()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(10): step()
            print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

        thread = threading.Thread(target=steps)
        thread.start()
        thread.join()
    """,
        "--device",
        "cpu",
    ).wait()
    assert (status, err) == (0, "")
    assert int(lines_of(out, 0)[0]) < 100  # 2560 if those of 100 MiB came anew, in pages of 4 KiB


def test_no_binding(launch):
    status, out, _ = launch("print(len(os.sched_getaffinity(0)))", "--num_workers", "2", "--bind", "none").wait()
    assert status == 0
    assert lines_of(out, 0) == lines_of(out, 1) == [str(len(os.sched_getaffinity(0)))]


def test_shell_scripts_find_this_python(launch):
    job = launch(
        "#!/bin/bash\npython -c 'import sys; print(sys.executable, sys.argv[1:])' \"$@\"\n",
        script=["x y"],
        environ={"PATH": "/usr/bin:/bin"},
    )
    status, out, _ = job.wait()
    assert status == 0
    assert lines_of(out, 0) == ["%s ['x y']" % os.path.join(os.path.dirname(sys.executable), "python")]


def test_cpu_devices_are_announced(launch):
    status, out, _ = launch("pass", "--num_workers", "2", "--gpu_per_worker", "500").wait()
    assert status == 0
    assert re.match(
        r"\[epl-launch\] 2 workers with 500 CPU devices each \(.*1000 needed\)\. Logs, kept .*/worker-<index>.log\n",
        out,
    )


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
    (tmp_path / "train.py").write_text(
        PRELUDE + "print(INDEX, os.environ['TF_CONFIG'], 'EPL_JOB_TOKEN' in os.environ)\n"
    )
    both = [
        Launch(
            tmp_path,
            [
                "--num_workers",
                "4",
                "--machine_list",
                "127.0.0.1:23000,127.0.0.1:24000",
                "--machine_rank",
                rank,
                "train.py",
            ],
        )
        for rank in "01"
    ]
    ends = [launch.wait() for launch in both]
    assert [status for status, _, _ in ends] == [0, 0]
    assert "this machine runs workers 2 to 3" in ends[1][1]
    for index in range(4):
        line = lines_of(ends[index // 2][1], index)[0]
        assert line.startswith("%d " % index) and line.endswith(" False")
        assert '["127.0.0.1:23000", "127.0.0.1:23001", "127.0.0.1:24000", "127.0.0.1:24001"]' in line


# --- output ---


def test_output_is_live_and_whole(launch):
    job = launch(
        """
        print("first"); sys.stdout.write("no end yet"); sys.stdout.flush()
        sys.stderr.write("")
        while not os.path.exists("go"): time.sleep(0.02)
        sys.stdout.buffer.write(b" \\xff\\xe4\\n"); sys.stdout.buffer.write(b"z" * 3000000); sys.stdout.flush()
        os.write(2, b"\\nlast, without an end")
    """,
        environ={"PYTHONIOENCODING": "utf-8"},
    )
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
    job = launch(
        """
        note("pid")
        while True: print("line"); time.sleep(0.01)
    """,
        "--num_workers",
        "2",
    )
    pids = job.pids("pid", 2)
    job.process.stdout.close()
    job.process.stdout = None
    status, _, err = job.wait()
    assert status == 128 + signal.SIGPIPE and "stopped by SIGPIPE" in err
    assert_gone(pids)


@pytest.mark.parametrize("failure", [False, True])
def test_a_reader_that_does_not_read_holds_nobody_up_at_the_end(launch, failure):
    job = launch(
        """
        note("pid")
        while INDEX == 0: print("x" * 1000)
        while not os.path.exists("go"): time.sleep(0.02)
        os._exit(9)
    """,
        "--num_workers",
        "2",
    )
    pids = job.pids("pid", 2)
    time.sleep(1.0)
    if failure:
        (job.folder / "go").write_text("")
    else:
        job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(timeout=LIMIT_S) == (9 if failure else 128 + signal.SIGTERM)
    assert_gone(pids)


def test_debug_shows_what_is_started_but_not_the_token(launch):
    status, out, _ = launch("print('token', os.environ['EPL_JOB_TOKEN'])", "--debug").wait()
    token = lines_of(out, 0)[0].split()[1]
    assert status == 0 and out.count(token) == 1
    assert re.search(r"\[epl-launch\] worker 0: cores .* TF_CONFIG=.* EPL_DEVICE=", out)
