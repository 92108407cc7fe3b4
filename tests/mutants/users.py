"""Which functions of EPL use what a file makes when it is imported, a constant or a table."""

import ast
import os

from tests.mutants.cover import scopes


class Users(object):
    """Of the files of the repository at `root`, by their paths from there."""

    def __init__(self, root, paths):
        self._sources = {}
        for path in paths:
            with open(os.path.join(root, path), "rb") as file:
                self._sources[path] = file.read()

    def of(self, path, line):
        """(path, function) of all that mention a name that the statement at this line of a file gives a value to.

        Files that do not mention the name are not looked at; what is bound by no statement at the top has no users.
        """
        names = _bound(self._sources[path], line)
        found = set()
        for other, source in self._sources.items():
            if any(name.encode("utf-8") in source for name in names):
                lines = scopes(source)
                for node in ast.walk(ast.parse(source)):
                    name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", None)
                    if name in names:
                        found.add((other, lines[node.lineno][0]))
        return sorted(pair for pair in found if pair[1])


def _bound(source, line):
    for node in ast.parse(source).body:
        if node.lineno <= line <= node.end_lineno:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                inside = [each for each in ast.walk(node) if isinstance(each, (ast.Name, ast.FunctionDef))]
                fields = [each for each in inside if each.lineno <= line <= each.end_lineno]
                names = {getattr(each, "id", None) or getattr(each, "name", None) for each in fields} | {node.name}
                return names
            return {
                each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            }
    return set()
