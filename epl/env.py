"""The one global object: configuration and cluster of this process."""

import threading
from typing import Optional

from epl.cluster import Cluster
from epl.cluster.machine import machine
from epl.config import Config
from epl.errors import ConfigError


class Env:
    """Configuration and cluster of this process. Get it with `Env.get()`.

    Before `epl.init()` both are what the environment variables say.
    """

    _instance = None
    _lock = threading.RLock()

    def __init__(self):
        self._config = None
        self._cluster = None
        self._state = {}

    @classmethod
    def get(cls) -> "Env":
        """The process's only `Env`."""
        with cls._lock:
            if cls._instance is None:
                cls._instance = cls()
            return cls._instance

    @property
    def config(self) -> Config:
        """The current `Config`."""
        with self._lock:
            if self._config is None:
                self.reset()
            return self._config

    @property
    def cluster(self) -> Cluster:
        """The current `Cluster`."""
        with self._lock:
            if self._cluster is None:
                self.reset()
            return self._cluster

    def reset(self, config: Optional[Config] = None) -> "Env":
        """Start afresh with `config` (default: `Config()`) and read the cluster from the environment again.

        Returns:
          This object.

        Raises:
          ConfigError: `config` is no `Config`, its keys contradict each other, or `cluster.machine` cannot be read.
          ClusterError: the environment describes the cluster wrongly. Nothing has changed then.
        """
        if config is None:
            config = Config()
        elif not isinstance(config, Config):
            raise ConfigError(
                'config must be an epl.Config, such as epl.Config({"communication.max_splits": 3}), '
                "not %s." % type(config).__name__
            )
        config.validate()
        cluster = Cluster.from_environment(run_visible_devices=config.cluster.run_visible_devices)
        if config.cluster.machine:
            cluster = cluster.with_machine(machine(config.cluster.machine))
        with self._lock:
            self._config, self._cluster = config, cluster
            self._state = {}
        return self

    def state(self, key, make):
        """What another module keeps here under `key` until the next `reset`; `make()` gives its first value."""
        with self._lock:
            if key not in self._state:
                self._state[key] = make()
            return self._state[key]

    def peek_state(self, key):
        """The same, or None where nothing is kept."""
        with self._lock:
            return self._state.get(key)
