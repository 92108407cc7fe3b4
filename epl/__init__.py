"""EPL, the Easy Parallel Library: trains a TensorFlow-1-style graph on many devices.

The public names are those of epl/api.py. They load TensorFlow, so they are fetched when one is first used:
`epl-launch` and `epl.plan` are in this package too and do without.
"""

import importlib

from epl.version import __version__

VERSION = __version__

__all__ = [
    "Cluster",
    "Config",
    "Env",
    "GraphKeys",
    "VERSION",
    "__version__",
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


def __getattr__(name):
    if name == "Graph":
        raise AttributeError(
            "module 'epl' has no attribute 'Graph'. EPL leaves the graph to TensorFlow: tf.get_default_graph() has the "
            "model, epl.get_collection(key) what is merged. docs/migrating.md has the rest."
        )
    if name not in __all__:
        raise AttributeError("module 'epl' has no attribute %r" % name)
    value = getattr(importlib.import_module("epl.api"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(__all__))
