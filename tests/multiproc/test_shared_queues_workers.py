"""Queues on /job:ps with a shared name are one for all workers."""

import pytest

from tests.helpers import processes

WAITS = """
import tensorflow.compat.v1 as tf
import epl

tf.disable_v2_behavior()
epl.init()
with tf.device("/job:ps/task:0/cpu:0"):
    take = tf.FIFOQueue(1, [tf.float32], shapes=[()], shared_name="never").dequeue()
with tf.Session() as session:
    if epl.Env.get().cluster.worker_index == 1:
        raise KeyError("worker 1 has lost its way")
    session.run(take)
"""
PROGRAMS = "tests.helpers.programs.shared_queues:"


def test_a_barrier_at_the_end(two_workers, tmp_path):
    assert two_workers(PROGRAMS + "barrier", str(tmp_path)) == [(2, str(tmp_path / "model.ckpt-3"))] * 2


@pytest.mark.parametrize("layout", [(2, 1), (3, 1)], ids=str)
def test_each_element_goes_to_one_worker(jobs, layout):
    taken = jobs[layout](PROGRAMS + "work", 12)
    assert sorted(sum(taken, []), key=lambda each: each[1]) == [
        ("file-%d" % each, [each, each + 1]) for each in range(12)
    ]


def test_who_waits_for_a_worker_that_has_failed_ends(template, tmp_path):
    (tmp_path / "train.py").write_text(WAITS)
    command = ["-m", "epl.launch", "--num_workers", "2", "train.py"]
    ended = template.python(command, processes.clean_environment(), str(tmp_path / "log"), str(tmp_path)).wait(120)
    assert ended.code == 1, ended
    assert "KeyError: 'worker 1 has lost its way'" in ended.output


def test_alone_a_queue_is_tensorflows_own(jobs):
    (taken,) = jobs[1, 1](PROGRAMS + "work", 3)
    assert [name for name, _ in taken] == ["file-0", "file-1", "file-2"]
