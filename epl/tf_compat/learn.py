"""tf.contrib.learn, a part of TensorFlow 1.15 that is wrapped when a program imports it: loading it takes seconds."""

import importlib.abc
import importlib.util
import sys

from epl.tf_compat.wrapping import line, wrap

_RUN_CONFIG = "tensorflow.contrib.learn.python.learn.estimators.run_config"


def wrap_learn_config(wrapper):
    """`wrapper(original, config, ...)` around the constructor of contrib.learn's RunConfig."""
    if line() == "tf1":
        _when_imported(_RUN_CONFIG, lambda module: wrap(module.ClusterConfig, "__init__", wrapper))


def set_learn_chief(run_config, chief):
    """Makes a RunConfig of contrib.learn say whether its process is the chief."""
    run_config._is_chief = chief


def _when_imported(name, then):
    """Calls `then(module)` now, or as soon as the program has imported the module."""
    if name in sys.modules:
        then(sys.modules[name])
        return
    sys.meta_path[:] = [each for each in sys.meta_path if getattr(each, "awaits", None) != name]
    sys.meta_path.insert(0, _Import(name, then))


class _Import(importlib.abc.MetaPathFinder):
    """Finds one module as others would, and does something once it has been loaded."""

    def __init__(self, name, then):
        self.awaits = name
        self._then = then

    def find_spec(self, name, path=None, target=None):
        del path, target
        if name != self.awaits:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_go_on(module):
                load(module)
                self._then(module)

            spec.loader.exec_module = load_and_go_on
        return spec
