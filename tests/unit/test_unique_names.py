"""Modules and classes have names of their own: a name alone says which one is meant."""

import ast
import collections
import os

import pytest

pytestmark = pytest.mark.once

ROOT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "epl")
# Their names are those of the modules of tf.contrib.
GIVEN = os.path.join("tf1", "contrib")


def modules():
    for folder, _, names in os.walk(ROOT):
        if GIVEN not in folder:
            yield from (os.path.join(folder, name) for name in names if name.endswith(".py") and name[:2] != "__")


def twice(pairs):
    found = collections.defaultdict(list)
    for name, path in pairs:
        found[name].append(os.path.relpath(path, ROOT))
    return {name: sorted(paths) for name, paths in found.items() if len(paths) > 1}


def classes_of(path):
    with open(path, encoding="utf-8") as stream:
        tree = ast.parse(stream.read())
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_files():
    assert len(list(modules())) > 400
    assert twice((os.path.basename(path), path) for path in modules()) == {}


def test_classes():
    found = [(name, path) for path in modules() for name in classes_of(path)]
    assert len(found) > 300
    assert twice(found) == {}


def test_a_second_one_would_be_found():
    assert twice([("a.py", ROOT + "/x/a.py"), ("b.py", ROOT + "/b.py"), ("a.py", ROOT + "/a.py")]) == {
        "a.py": ["a.py", "x/a.py"]
    }
