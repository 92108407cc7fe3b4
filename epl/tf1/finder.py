"""Catches the import of TensorFlow and of what it no longer has, and nothing else. Needs no TensorFlow itself.

Four kinds of names are caught. `tensorflow` is loaded as it is and then replaced by a module whose attributes are
those of version 1. Names below `tensorflow` that are not there any more come from this package, or from where they have
moved to (epl.tf1.name_tables). Libraries for version 2 (`SEE_VERSION_2`) get the module that TensorFlow made.
Modules of SciPy that have moved are others too (epl.tf1.old_scipy).
"""

import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys

from epl.errors import EplError
from epl.tf1 import old_names, old_scipy
from epl.tf1.name_tables import ALIASES, FOLDERS, SEE_VERSION_2, refusal, unknown

_TENSORFLOW = "tensorflow"
# Modules made of others: what is installed on top of TensorFlow once it is there. By name, as they import TensorFlow.
_NAMESPACE = "epl.tf1.namespace"
_MOVED = "epl.tf_compat.moved"
_INSIDE = "tensorflow.python"
# What messages are that are older than the protobuf that is installed.
_MESSAGES = "epl.tf1.old_messages"
_CONTRIB = "epl.tf1.contrib."
# Below these there is nothing but what is served here.
_OURS = ("tensorflow.contrib", "tensorflow.examples")


def install():
    """Catches imports in this process from now on; does nothing the second time.

    Raises:
      EplError: TensorFlow has been imported already, so that names of version 2 may be in use; this Python is none for
        which TensorFlow 2.15 exists.
    """
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    if sys.version_info < (3, 9):
        raise EplError(
            "epl.tf1 is for TensorFlow 2.15, which needs Python 3.9 to 3.11; this is Python %d.%d. Where TensorFlow "
            "1.15 is installed the program runs as it is: leave epl.tf1 (or --tf1) out." % sys.version_info[:2]
        )
    if _TENSORFLOW in sys.modules:
        raise EplError(
            "epl.tf1 comes too late: TensorFlow has been imported already, as version 2. Make `import epl.tf1` the "
            "first import of the program, or run it by `python -m epl.tf1 script.py`."
        )
    old_names.serve()
    sys.meta_path.insert(0, Finder())


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are served otherwise than by their files."""

    def __init__(self):
        self._original, self._aliases = None, ALIASES

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top == old_scipy.SCIPY:
            return self._of_scipy(name, path, target)
        if name == _TENSORFLOW:
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            return spec and _with_loader(spec, _TensorFlowLoader(spec.loader, self))
        if self._original is None:  # what TensorFlow imports itself is as it is
            return None
        if name.startswith(_CONTRIB):
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec is None:  # `from tensorflow.contrib import name` looks for it here at last
                public = "contrib." + name[len(_CONTRIB) :]
                raise ImportError(refusal(public) or unknown(public), name=name)
            return spec
        if name.endswith("_pb2") and top != _TENSORFLOW:
            return self._found(name, path, target, _MessagesLoader)
        if top in SEE_VERSION_2:
            return self._found(name, path, target, lambda loader: _VersionTwoLoader(loader, self._original))
        alias = self._alias(name)
        if alias is None and name.startswith(_INSIDE + "."):
            return self._found(name, path, target, _InsideLoader)
        return alias

    def _of_scipy(self, name, path, target):
        if name in old_scipy.MODULES:
            return importlib.machinery.ModuleSpec(name, _AliasLoader(old_scipy.MODULES[name]), is_package=True)
        return self._found(name, path, target, _EmptiedLoader) if name == old_scipy.EMPTIED else None

    @staticmethod
    def _found(name, path, target, wrap):
        """The spec of a module by its file, with its loader wrapped; None where there is none."""
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        return spec if spec is None or spec.loader is None else _with_loader(spec, wrap(spec.loader))

    def _alias(self, name):
        """The spec of a module that is another one; None for others.

        Raises:
          ImportError: it is known not to be served; says what to do instead.
        """
        for prefix, replacement in self._aliases:
            if name == prefix or name.startswith(prefix + "."):
                actual = _there(replacement + name[len(prefix) :], replacement)
                if actual:
                    return importlib.machinery.ModuleSpec(name, _AliasLoader(actual), is_package=True)
                if prefix in _OURS:
                    public = name[len(_TENSORFLOW) + 1 :]
                    raise ImportError(refusal(public) or unknown(public), name=name)
        package, _, public = name.partition(".")
        if package == _TENSORFLOW and public.partition(".")[0] not in FOLDERS and _public_module(public) is not None:
            return importlib.machinery.ModuleSpec(name, _PublicLoader(public), is_package=True)
        return None

    def replaced(self, original, replacement, aliases):
        """Notes that `import tensorflow` gives another module than the one that TensorFlow has made.

        Args:
          original, replacement: the modules.
          aliases: more ALIASES.
        """
        self._original, self._aliases = original, aliases + ALIASES
        sys.modules[_TENSORFLOW] = replacement


def _there(name, package):
    """The module that serves a name: it, or the one that has what was below a folder `python`; "" if there is none."""
    if _exists(name):
        return name
    whole, folder, _ = name.partition(".python")
    return whole if folder and whole != package and _exists(whole) else ""


def _exists(name):
    """Whether there is a module of a name; its parents are imported for that."""
    if name in sys.modules:
        return True
    parent = name.rpartition(".")[0]
    if parent and not _exists(parent):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError):
        return False


def _public_module(path):
    """The module of version 1's interface at a path of attributes, such as "nn.rnn_cell"; None where there is none."""
    value = sys.modules[_TENSORFLOW]
    for name in path.split("."):
        value = getattr(value, name, None)
    return value if hasattr(value, "__name__") and not isinstance(value, type) and not callable(value) else None


def _with_loader(spec, loader):
    spec.loader = loader
    return spec


class _Around(importlib.abc.Loader):
    """Makes a module as the loader does that it has; subclasses say how it is run."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)


class _TensorFlowLoader(_Around):
    """Loads TensorFlow as it is, then puts the module of version 1 in its place."""

    def __init__(self, loader, finder):
        super().__init__(loader)
        self._finder = finder

    def exec_module(self, module):
        self._loader.exec_module(module)
        namespace = importlib.import_module(_NAMESPACE)
        self._finder.replaced(module, *namespace.of_version_1(module))


class _InsideLoader(_Around):
    """Loads a module of TensorFlow's inside, which then gives what has moved away from it too."""

    def exec_module(self, module):
        self._loader.exec_module(module)
        importlib.import_module(_MOVED).serve_moved(sys.modules, [module.__name__])


class _AliasLoader(importlib.abc.Loader):
    """Gives a module under a second name."""

    def __init__(self, actual):
        self._actual = actual

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        actual = importlib.import_module(self._actual)
        if not hasattr(actual, "__path__"):
            actual.__path__ = []  # Python looks for what is below packages only
        sys.modules[module.__name__] = actual


class _PublicLoader(importlib.abc.Loader):
    """Gives the module that is an attribute of `tensorflow`."""

    def __init__(self, path):
        self._path = path

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        sys.modules[module.__name__] = _public_module(self._path)


class _MessagesLoader(_Around):
    """Runs a module of messages that an old protoc may have written."""

    def exec_module(self, module):
        importlib.import_module(_MESSAGES).run(self._loader, module)


class _EmptiedLoader(_Around):
    """Loads a module of SciPy's, which then gives what has gone from it too."""

    def exec_module(self, module):
        self._loader.exec_module(module)
        old_scipy.serve_gone(module)


class _VersionTwoLoader(_Around):
    """Runs a library's module with an `import` of its own, which gives the TensorFlow that it is written for."""

    def __init__(self, loader, original):
        super().__init__(loader)
        self._original = original

    def exec_module(self, module):
        # Python takes the functions that are always there, `__import__` too, from this entry of a module's names.
        module.__dict__["__builtins__"] = dict(vars(builtins), __import__=self._import)
        self._loader.exec_module(module)

    def _import(self, name, globals=None, locals=None, fromlist=(), level=0):
        module = builtins.__import__(name, globals, locals, fromlist, level)
        return self._original if module is sys.modules[_TENSORFLOW] and not level else module
