"""Which names of TensorFlow, NumPy and SciPy a Python file uses, by its syntax tree; nothing of it is run."""

import ast
from dataclasses import dataclass

_PACKAGES = ("tensorflow", "tensorflow_core", "numpy", "scipy")


@dataclass(frozen=True)
class Use:
    """A name in a file.

    Attributes:
      name: dotted, from the package on: "tensorflow.contrib.rnn.GRUCell".
      line: from 1.
    """

    name: str
    line: int


def uses_of(tree):
    """The Uses of a module's syntax tree, in order; of "tf.a.b" the longest."""
    finder = _Finder()
    finder.visit(tree)
    return sorted(finder.found, key=lambda use: (use.line, use.name))


class _Finder(ast.NodeVisitor):
    """Follows names that imports give. Where a name is bound otherwise too, it is taken for the import's."""

    def __init__(self):
        self.found, self._bound = set(), {}

    def visit_Import(self, node):
        for alias in node.names:
            if alias.name.partition(".")[0] in _PACKAGES:
                if alias.asname is None:
                    top = alias.name.partition(".")[0]
                    self._bound[top] = top
                else:
                    self._bound[alias.asname] = alias.name
                self._use(alias.name, node)

    def visit_ImportFrom(self, node):
        if node.level or (node.module or "").partition(".")[0] not in _PACKAGES:
            return
        for alias in node.names:
            if alias.name == "*":
                self._use(node.module, node)
                continue
            name = "%s.%s" % (node.module, alias.name)
            self._bound[alias.asname or alias.name] = name
            self._use(name, node)

    def visit_Attribute(self, node):
        path = []
        value = node
        while isinstance(value, ast.Attribute):
            path.append(value.attr)
            value = value.value
        if isinstance(value, ast.Name) and value.id in self._bound:
            self._use(".".join([self._bound[value.id]] + path[::-1]), node)
        else:
            self.generic_visit(node)

    def _use(self, name, node):
        self.found.add(Use(name, node.lineno))
