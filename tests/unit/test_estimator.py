"""Pieces behind tf.estimator and monitored sessions, in one process."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl import tf_compat
from epl.config import Config
from epl.errors import UnsupportedError, WorkerError
from epl.session.agreement import current_agreement
from epl.session.front_ends import estimator, meeting, monitored, saves


@pytest.fixture(autouse=True)
def started():
    with tf.Graph().as_default():
        epl.init(Config())
        yield


@pytest.mark.parametrize("argument", ["train_distribute", "eval_distribute", "experimental_distribute"])
def test_distribution_strategies_are_refused(argument):
    with pytest.raises(UnsupportedError, match=r"RunConfig\(%s=\.\.\.\) cannot be used with EPL" % argument):
        tf.estimator.RunConfig(**{argument: object()})


def test_run_config_of_a_lone_process():
    config = tf.estimator.RunConfig()
    assert config.is_chief and config.num_worker_replicas == 1 and config.master == "" and not config.cluster_spec


def test_metrics_add_up():
    assert meeting._merge("total", [np.float32(1.5), np.float32(2.0)]) == np.float32(3.5)
    merged = meeting._merge("confusion", [np.eye(2, dtype=np.int64)] * 3)
    assert merged.dtype == np.int64 and np.array_equal(merged, 3 * np.eye(2))
    assert np.array_equal(meeting._merge("seen", [np.array([True, False])] * 2), [True, False])


def test_metrics_that_do_not_add_up_are_refused():
    with pytest.raises(UnsupportedError, match=r"'values' has different shapes on the workers \(\(2,\), \(3,\)\)"):
        meeting._merge("values", [np.zeros(3), np.zeros(2)])


class FakeJob(object):
    """A job of two workers whose chief has sent `message`."""

    def __init__(self, message=b""):
        self.message = message

    def meet(self, message, limit_s=None):
        return [self.message or message, message]


def as_worker(monkeypatch, index, job):
    monkeypatch.setattr(meeting, "several_workers", lambda: True)
    monkeypatch.setattr(meeting, "is_chief", lambda: index == 0)
    monkeypatch.setattr(meeting, "job", lambda: job)


def test_a_value_comes_from_the_chief(monkeypatch):
    sent = []
    job = FakeJob()
    job.meet = lambda message, limit_s=None: sent.append(message) or [message, b""]
    as_worker(monkeypatch, 0, job)
    assert meeting.from_chief(lambda: {"loss": np.float32(2.0)}) == {"loss": 2.0}
    as_worker(monkeypatch, 1, FakeJob(sent[0]))
    assert meeting.from_chief(lambda: pytest.fail("only the chief computes it")) == {"loss": 2.0}


def test_a_failure_of_the_chief_reaches_the_others(monkeypatch):
    sent = []
    job = FakeJob()
    job.meet = lambda message, limit_s=None: sent.append(message) or [message, b""]
    as_worker(monkeypatch, 0, job)
    with pytest.raises(ZeroDivisionError):
        meeting.from_chief(lambda: 1 // 0)
    as_worker(monkeypatch, 1, FakeJob(sent[0]))
    with pytest.raises(WorkerError, match="worker 0 failed: ZeroDivisionError"):
        meeting.from_chief(lambda: None)


def test_timers_go_by_the_clock_that_workers_agree_on():
    timer = monitored.SharedTimer(every_secs=10)
    assert timer.should_trigger_for_step(0)
    current_agreement().clock = 1000.0
    timer.update_last_triggered_step(0)
    assert not timer.should_trigger_for_step(1)
    current_agreement().clock = 1009.0
    assert not timer.should_trigger_for_step(2)
    current_agreement().clock = 1010.0
    assert timer.should_trigger_for_step(3) and not timer.should_trigger_for_step(0)


@pytest.mark.parametrize("config, copies", [({}, 4), ({"auto.auto_parallel": True, "pipeline.num_stages": 2}, 2)])
def test_evaluation_steps_are_those_of_the_replicas_that_train(monkeypatch, config, copies):
    """The evaluation's graph has no scopes: automatic stages were not counted, and it took twice as many steps."""
    monkeypatch.setenv("EPL_GPU_PER_WORKER", "4")
    epl.init(Config(config))
    multiplied = []
    monkeypatch.setattr(tf_compat, "multiply_evaluation_steps", lambda hooks, factor: multiplied.append(factor))
    estimator._run_evaluation(lambda estimator, all_hooks: "done", None, all_hooks=[])
    assert multiplied == [copies]


def test_a_checkpoint_that_only_the_chief_sees(tmp_path):
    epl.init(Config({}))
    path = str(tmp_path / "model.ckpt-3")
    saves.check_seen(path)
    saves._saves().apart.add(str(tmp_path))
    with pytest.raises(UnsupportedError, match="which worker 0 has written where this worker does not see it"):
        saves.check_seen(path)
    (tmp_path / "model.ckpt-3.index").write_bytes(b"")
    saves.check_seen(path)
