"""What `import epl` offers, apart from the classes and functions that it takes from where they are defined."""

import os
from typing import Optional

from epl import logs, ops, optimizers, profiler, tf_compat
from epl.capture import caught as _capture_hooks
from epl.capture.blocks import recompute
from epl.capture.collections import GraphKeys, add_to_collection, get_all_collections, get_collection
from epl.capture.hints import shard, whole
from epl.capture.strategy import replicate, set_default_strategy, split
from epl.cluster import Cluster
from epl.cluster.sources import for_programs
from epl.config import Config
from epl.env import Env
from epl.errors import CaptureError
from epl.launch import notes
from epl.session import hooks as _session_hooks
from epl.session.front_ends import chief as _chief
from epl.session.front_ends import estimator as _estimator
from epl.session.front_ends import intact as _intact
from epl.session.front_ends import keras as _keras
from epl.session.front_ends import monitored as _monitored

__all__ = [
    "Cluster",
    "Config",
    "Env",
    "GraphKeys",
    "add_to_collection",
    "get_all_collections",
    "get_collection",
    "init",
    "ops",
    "optimizers",
    "profiler",
    "recompute",
    "replicate",
    "set_default_strategy",
    "shard",
    "split",
    "whole",
]


_session_hooks.watch()


def init(config: Optional[Config] = None) -> None:
    """Starts EPL: from here on graphs are captured and sessions run in parallel. Calling it again starts afresh.

    Call it before the model is built. In a job of several workers it connects to worker 0. From here on TF_CONFIG says
    what programs are to do: worker 0 is the chief, and nobody starts a server; all workers are in `Env.get().cluster`.

    Args:
      config: an epl.Config; default what the environment variables say.

    Raises:
      CaptureError: eager execution is on, or the default graph has a model already that was built after a call of this.
      ConfigError, ClusterError: the configuration, EPL_LOG_LEVEL or the description of the cluster is wrong.
      CommunicationError: worker 0 cannot be reached.
    """
    if tf_compat.executing_eagerly():
        raise CaptureError(
            "EPL parallelises graphs, but eager execution is on. Call tf.compat.v1.disable_eager_execution() (or "
            "tf.compat.v1.disable_v2_behavior()) right after importing TensorFlow, before epl.init()."
        )
    _capture_hooks.begin()
    logs.install()
    before = _session_hooks.current_job()
    Env.get().reset(config)
    os.environ.update(for_programs(os.environ))
    if Env.get().config.execution.xla:
        tf_compat.allow_xla_on_cpus()
    _capture_hooks.install()
    _session_hooks.install()
    _chief.install()
    _intact.install()
    _monitored.install()
    _estimator.install()
    _keras.install()
    if not os.environ.get(_session_hooks.PREVIEW):
        notes.tell(notes.JOINING, os.environ)
        _session_hooks.start_job(before)
        _session_hooks.current_job().noting.joined()
