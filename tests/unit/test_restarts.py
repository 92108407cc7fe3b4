"""When a job that has failed starts again, and with how many workers."""

import pytest

from epl.errors import LaunchError
from epl.launch.notice import Notice
from epl.launch.options import parse
from epl.launch.restarts import Attempt, Restarts, table

pytestmark = pytest.mark.once


def died(cause=0, workers=2, progress=True):
    return Attempt(workers, 1.0, cause, "killed by SIGKILL (signal 9)", None, None, progress)


def raised(position, error="ValueError: no good", progress=True):
    return Attempt(2, 1.0, 0, "exit code 1", error, position, progress)


def decided(attempts, limit=10, min_workers=None):
    decisions = Restarts(limit, min_workers)
    return [decisions.ended(each, range(each.workers)) for each in attempts], decisions


def test_a_job_starts_again_as_often_as_it_may():
    found, _ = decided([died(), died(), died()], limit=2)
    assert [again for again, _ in found] == [True, True, False]
    assert found[2][1] == "That was the last of 3 attempts."
    assert decided([died()], limit=0)[0] == [(False, "")]


def test_the_same_error_at_the_same_step_is_not_tried_again():
    found, _ = decided([raised(7), raised(7)])
    assert found[0] == (True, "")
    assert found[1] == (False, "The same error came twice at the same place, after step 7, so it is not tried again.")


def test_errors_elsewhere_are_tried_again():
    found, _ = decided([raised(7), raised(8), raised(8, "OSError: other"), died(), raised(8, "OSError: other")])
    assert [again for again, _ in found] == [True] * 5


def test_attempts_that_train_no_step_end():
    found, _ = decided([died(progress=False), died(1, progress=False), died(progress=False)])
    assert [again for again, _ in found] == [True, True, False] and "have not trained a step" in found[2][1]
    found, _ = decided([died(progress=False), died(), died(progress=False), died(progress=False)])
    assert [again for again, _ in found] == [True] * 4


def test_a_worker_that_dies_twice_is_left_out():
    found, decisions = decided([died(1), died(1)], min_workers=1)
    assert found == [(True, ""), (True, "Worker 1 has failed twice one after another and is left out.")]
    assert decisions.left_out == [1]
    decisions.ended(died(0, workers=1), [0])
    decisions.ended(died(0, workers=1), [0])
    assert decisions.left_out == [1]  # one is the least


@pytest.mark.parametrize("attempts", [[died(1), died(0)], [raised(7), raised(8)]])
def test_others_stay(attempts):
    assert decided(attempts, min_workers=1)[1].left_out == []


def test_nobody_is_left_out_unasked():
    assert decided([died(1), died(1)])[1].left_out == []


def test_the_table_of_attempts():
    assert table([died(1), Attempt(1, 2.0, None, "all workers ended well", None, None, True)]) == [
        "attempt 1: 2 workers, 1.0 s: worker 1: killed by SIGKILL (signal 9)",
        "attempt 2: 1 worker, 2.0 s: all workers ended well",
    ]


class Stops:
    def __init__(self, number, count=1):
        self.number, self.count = number, count


def test_notice_is_for_the_first_sigterm(tmp_path):
    said = []
    notice = Notice(str(tmp_path / "notice"), 30, said.append)
    assert notice.left_s(Stops(2), 100.0) == 0 and not (tmp_path / "notice").exists()
    assert notice.left_s(Stops(15), 100.0) == 30 and (tmp_path / "notice").exists()
    assert notice.left_s(Stops(15), 110.0) == 20 and notice.left_s(Stops(15), 140.0) == 0
    assert notice.left_s(Stops(15, 2), 110.0) == 0
    assert said == ["SIGTERM: the workers have 30 s to save and to end"]
    assert Notice(str(tmp_path / "notice"), 0, said.append).left_s(Stops(15), 100.0) == 0
    assert not (tmp_path / "notice").exists()  # what an earlier job has left is no notice


@pytest.mark.parametrize(
    "options, words",
    [
        (["--max_restarts", "2", "--machine_list", "10.0.0.1,10.0.0.2"], "--max_restarts is for jobs on one machine"),
        (["--min_workers", "1"], "--min_workers is of use together with --max_restarts N"),
        (["--max_restarts", "1", "--num_workers", "2", "--min_workers", "3"], "--min_workers 3 is more than the 2 of"),
    ],
)
def test_options_that_do_not_go_together(options, words, tmp_path):
    (tmp_path / "train.py").write_text("")
    with pytest.raises(LaunchError, match=words):
        parse(options + [str(tmp_path / "train.py")])
