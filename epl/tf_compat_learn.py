"""tf.contrib.learn, a part of TensorFlow 1.15 that is wrapped when a program imports it: loading it takes seconds."""

import importlib.abc
import importlib.util
import sys

from epl import tf_compat

_RUN_CONFIG = "tensorflow.contrib.learn.python.learn.estimators.run_config"


def set_chief(chief):
    """Makes each RunConfig made from here on say that its process is the chief if `chief()`.

    By itself it knows of no task type "chief".
    """
    if tf_compat.line() == "tf1":
        _when_imported(_RUN_CONFIG, lambda module: _wrap(module.ClusterConfig, chief))


def _wrap(config_class, chief):
    original = getattr(config_class.__init__, "_epl_original", config_class.__init__)

    def init(config, *args, **kwargs):
        original(config, *args, **kwargs)
        config._is_chief = chief()

    init._epl_original = original
    config_class.__init__ = init


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
