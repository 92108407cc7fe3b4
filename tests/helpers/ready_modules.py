"""A package that was imported before a fork and counts as not imported after it, until somebody imports it."""

import importlib
import importlib.abc
import importlib.machinery
import pkgutil
import sys


class ReadyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """All modules of a package, imported, but for those that `leave_out` names: they change what others import.

    Once they are offered, whoever imports the package gets all of them at once, as they are. A package of the same name
    that the path has at another place first is imported as ever.
    """

    def __init__(self, name, leave_out=()):
        self._name = name
        self._untouched = True
        self._import(importlib.import_module(name), frozenset(leave_out))
        self._modules = {key: sys.modules[key] for key in list(sys.modules) if key.partition(".")[0] == name}

    def _import(self, package, leave_out):
        for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if not found.name.endswith(".__main__") and found.name not in leave_out:
                try:
                    module = importlib.import_module(found.name)
                except ImportError:  # of the other TensorFlow line; who needs it here sees the error when it does
                    continue
                if found.ispkg:
                    self._import(module, leave_out)

    def offer(self):
        """To be called when they are not in sys.modules. Does nothing once they were used, and may have changed."""
        self.withdraw()
        if self._untouched:
            sys.meta_path.insert(0, self)

    def withdraw(self):
        sys.meta_path[:] = [each for each in sys.meta_path if each is not self]

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        self.withdraw()
        found = importlib.machinery.PathFinder.find_spec(name)
        if found is not None and found.origin == self._modules[name].__file__:
            found.loader = self
        return found

    def create_module(self, spec):
        return self._modules[spec.name]

    def exec_module(self, module):
        self._untouched = False
        sys.modules.update(self._modules)
