"""Modules of `tf.contrib` that are gathered from others, each name when it is first used."""

import importlib
import sys

from epl.tf1.name_tables import refusal, unknown

_CONTRIB = "epl.tf1.contrib."
# Packages that users install besides, and the extra of this project that brings them.
_PACKAGES = {"tf_slim": "tf1"}


def gathered(module, modules=(), names=None):
    """The `__getattr__` and `__dir__` of a module below `epl.tf1.contrib` (PEP 562).

    Args:
      module: its name.
      modules: "module" or "module:attribute" of which it has all public attributes; the first that has a name serves
        it.
      names: dict of further names to such.

    Returns:
      (`__getattr__`, `__dir__`).
    """
    names = names or {}

    def serve(name):
        if name.startswith("__"):
            raise AttributeError("module '%s' has no attribute '%s'" % (module, name))
        value = _find(module, name, modules, names)
        setattr(sys.modules[module], name, value)
        return value

    def listed():
        own = set(vars(sys.modules[module])) | set(names)
        for source in modules:
            own.update(dir(_source(source, module)))
        return sorted(name for name in own if not name.startswith("_"))

    return serve, listed


def _find(module, name, modules, names):
    if name in names:
        return _source(names[name], module)
    for source in modules:
        found = _source(source, module)
        if hasattr(found, name):
            return getattr(found, name)
    public = "contrib.%s.%s" % (module[len(_CONTRIB) :], name)
    try:
        return importlib.import_module("tensorflow." + public)
    except ImportError:
        raise AttributeError(refusal(public) or unknown(public)) from None


def _source(text, wanted_by):
    """What "module" or "module:attribute" stands for."""
    name, _, path = text.partition(":")
    value = _module(name, wanted_by)
    for attribute in path.split(".") if path else ():
        value = getattr(value, attribute)
    return value


def _module(name, wanted_by):
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != package or package not in _PACKAGES:
            raise
        raise ModuleNotFoundError(
            "tf.contrib.%s comes from the package %s, which is not installed: pip install %s, or epl-tf[%s]."
            % (wanted_by[len(_CONTRIB) :], package, package, _PACKAGES[package]),
            name=package,
        ) from None
