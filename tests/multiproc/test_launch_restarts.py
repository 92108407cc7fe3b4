"""epl-launch starts a job again, with real processes. The workers are small programs without TensorFlow."""

import json
import signal
import time

import pytest

from tests.helpers.launching import LIMIT_S, assert_gone

pytestmark = [pytest.mark.alone, pytest.mark.once]

TRAINS = """
ATTEMPT = int(os.environ["EPL_ATTEMPT"])
open(os.environ["EPL_LAUNCH_NOTE"], "a").write('{"trains": true}\\n')
note("seen.%d" % ATTEMPT, json.dumps([os.environ["EPL_JOB_TOKEN"], os.environ["TF_CONFIG"]]))
for other in range(len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])):
    seen = os.path.join(os.environ["NOTES"], "seen.%d-%d" % (ATTEMPT, other))
    while not (os.path.exists(seen) and os.path.getsize(seen)): time.sleep(0.02)
"""


def read(path):
    with open(path) as file:
        return json.load(file)


def test_attempts_have_nothing_in_common(launch):
    job = launch(
        TRAINS
        + """
if ATTEMPT < 2 and INDEX == ATTEMPT: os.kill(os.getpid(), signal.SIGKILL)
if ATTEMPT < 2: time.sleep(1000)
""",
        "--num_workers",
        "2",
        "--max_restarts",
        "3",
    )
    status, out, err = job.wait()
    assert status == 0
    assert "[epl-launch] worker 0 failed" in out and "starting again with 2 workers (restart 1 of at most 3)" in out
    assert "[epl-launch] worker 1 failed" in out and "starting again with 2 workers (restart 2 of at most 3)" in out
    assert [line.partition(" s: ")[2] for line in err.splitlines()] == [
        "worker 0: killed by SIGKILL (signal 9)",
        "worker 1: killed by SIGKILL (signal 9)",
        "all workers ended well",
    ]
    seen = [[read(path) for path in job.notes("seen.%d" % attempt, 2)] for attempt in range(3)]
    assert all(of_0[0] == of_1[0] for of_0, of_1 in seen)
    assert len({of_0[0] for of_0, _ in seen}) == 3  # tokens
    hosts = [json.loads(of_0[1])["cluster"]["worker"] for of_0, _ in seen]
    assert len({tuple(each) for each in hosts}) == 3


def test_the_same_error_twice_ends_the_job(launch):
    program = TRAINS + "if INDEX == 1: raise ValueError('no good')\ntime.sleep(1000)\n"
    status, out, err = launch(program, "--num_workers", "2", "--max_restarts", "5").wait()
    assert status == 1
    assert "restart 1 of at most 5" in out and "restart 2" not in out
    assert "The same error came twice at the same place" in out
    assert "epl-launch: attempt 2: 2 workers" in err and "ValueError: no good" in err[err.index("worker 1 failed") :]


def test_a_worker_that_fails_twice_is_left_out(launch):
    program = TRAINS + "if INDEX == 1: os.kill(os.getpid(), signal.SIGKILL)\nif ATTEMPT < 2: time.sleep(1000)\n"
    job = launch(program, "--num_workers", "2", "--max_restarts", "5", "--min_workers", "1")
    status, out, _ = job.wait()
    assert status == 0
    assert "Worker 1 has failed twice one after another and is left out. starting again with 1 worker" in out
    cluster = json.loads(read(job.notes("seen.2", 1)[0])[1])["cluster"]["worker"]
    assert len(cluster) == 1


@pytest.mark.parametrize("notice", [True, False])
def test_workers_end_by_themselves_after_notice(launch, notice):
    program = """
    note("pid")
    while not os.path.exists(os.environ["EPL_LAUNCH_NOTICE"]): time.sleep(0.05)
    time.sleep(0.5); print("saved")
    """
    job = launch(program, "--num_workers", "2", "--max_restarts", "1", "--notice_s", str(LIMIT_S if notice else 0))
    pids = job.pids("pid", 2)
    job.process.send_signal(signal.SIGTERM)
    status, out, err = job.wait()
    assert status == 143 and "epl-launch: stopped by SIGTERM; all workers have ended." in err
    assert out.count("saved") == (2 if notice else 0) and "starting again" not in out
    assert_gone(pids)


def test_a_second_signal_shortens_the_notice(launch):
    job = launch("note('pid'); time.sleep(1000)", "--notice_s", "1000")
    pids = job.pids("pid", 1)
    job.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait()[0] == 143
    assert_gone(pids)
