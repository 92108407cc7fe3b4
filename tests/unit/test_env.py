"""Env: the one place that holds configuration and cluster of the process."""

import pytest

from epl.config import Config
from epl.env import Env
from epl.errors import ClusterError, ConfigError

pytestmark = pytest.mark.once

TF_CONFIG = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}'


@pytest.fixture(name="clean_env")
def clean_env_fixture(monkeypatch):
    monkeypatch.setattr(Env, "_instance", None)
    for name in ("TF_CONFIG", "EPL_GPU_PER_WORKER", "EPL_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_env_before_init(clean_env):
    clean_env.setenv("TF_CONFIG", TF_CONFIG)
    assert Env.get() is Env.get()
    assert Env.get().cluster.worker_index == 1
    assert Env.get().config == Config()


def test_env_reset(clean_env):
    env = Env.get().reset(Config({"communication.max_splits": 2, "cluster.run_visible_devices": "0,1"}))
    assert env is Env.get()
    assert (env.config.communication.max_splits, env.cluster.gpu_num_per_worker) == (2, 2)
    assert env.reset().config.communication.max_splits == 5
    with pytest.raises(ConfigError, match="must be an epl.Config.*not dict"):
        env.reset({"communication.max_splits": 2})


def test_a_failed_reset_changes_nothing(clean_env):
    env = Env.get().reset(Config({"communication.max_splits": 2}))
    clean_env.setenv("TF_CONFIG", "{")
    with pytest.raises(ClusterError):
        env.reset()
    assert (env.config.communication.max_splits, env.cluster.worker_num) == (2, 1)
