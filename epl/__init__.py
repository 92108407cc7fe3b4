"""EPL, the Easy Parallel Library: trains a TensorFlow-1-style graph on many devices.

The public names are those of epl/api.py. They load TensorFlow, so they are fetched when one is first used:
`epl-launch` and `epl.plan` are in this package too and do without. Tools that only read the source see them as imports.
"""

import difflib as _difflib
import importlib as _importlib
import sys as _sys
from typing import TYPE_CHECKING

from epl.version import __version__

if TYPE_CHECKING:
    from epl.api import (
        Cluster as Cluster,
    )
    from epl.api import (
        Config as Config,
    )
    from epl.api import (
        Env as Env,
    )
    from epl.api import (
        GraphKeys as GraphKeys,
    )
    from epl.api import (
        add_to_collection as add_to_collection,
    )
    from epl.api import (
        get_all_collections as get_all_collections,
    )
    from epl.api import (
        get_collection as get_collection,
    )
    from epl.api import (
        init as init,
    )
    from epl.api import (
        ops as ops,
    )
    from epl.api import (
        optimizers as optimizers,
    )
    from epl.api import (
        profiler as profiler,
    )
    from epl.api import (
        recompute as recompute,
    )
    from epl.api import (
        replicate as replicate,
    )
    from epl.api import (
        set_default_strategy as set_default_strategy,
    )
    from epl.api import (
        shard as shard,
    )
    from epl.api import (
        split as split,
    )
    from epl.api import (
        whole as whole,
    )
    from epl.launch.function import (
        run as run,
    )

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
    "run",
    "set_default_strategy",
    "shard",
    "split",
    "whole",
]


# What starts processes must do without TensorFlow, which a notebook then need not load.
_ELSEWHERE = {"run": "epl.launch.function"}

if not TYPE_CHECKING:  # to a tool it would say that there is any name

    def __getattr__(name):
        if name == "Graph":
            raise AttributeError(
                "module 'epl' has no attribute 'Graph'. EPL leaves the graph to TensorFlow: tf.get_default_graph() has "
                "the model, epl.get_collection(key) what is merged. docs/migrating.md has the rest."
            )
        if name not in __all__:
            near = [] if _sys.version_info >= (3, 10) else _difflib.get_close_matches(name, __all__, n=1)
            hint = ". Did you mean: %r?" % near[0] if near else ""  # later versions of Python say it themselves
            raise AttributeError("module 'epl' has no attribute %r%s" % (name, hint))
        value = getattr(_importlib.import_module(_ELSEWHERE.get(name, "epl.api")), name)
        globals()[name] = value
        return value


def __dir__():
    return list(__all__)
