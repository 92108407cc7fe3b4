"""Imports point one way: session > capture, compiler > passes > plan > program > graph > rules, tf_compat, errors.

The test reads the source with `ast`; it imports nothing of epl, so it says the same on both TensorFlow lines.
"""

import ast
import os
import textwrap

import pytest

pytestmark = pytest.mark.once

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# A part may import itself and parts of a lower level. Parts of one level do not import each other, but for `BESIDE`.
LEVELS = {
    "epl": 7,  # epl/__init__.py: the public names
    "api": 6,
    "verify": 6,
    "session": 5,
    "tf1": 5,  # for programs; they may know nothing of the rest
    "profiler": 5.5,  # session hooks for users
    "calibrate": 6.5,  # a command that starts workers, which are programs
    "doctor": 6.5,  # the same
    "report": 6.5,  # a command, too, in no process that trains
    "capture": 4,
    "compiler": 4.5,
    "audit": 3.75,  # it looks at what passes made, and knows none of them
    "search": 4.75,  # makes plans with the compiler, for sessions and commands
    "passes": 4,
    "optimizers": 3.5,  # for users, and in the place of their own
    "ops": 4,  # epl.ops: collectives for users
    "program": 2.5,  # plain data, above the graph that it is about
    "partition": 2.75,  # below `plan`, which prints what it decides
    "plan": 3,
    "communicators": 3,
    "launch": 3,
    "env": 3,
    "graph": 2,  # below `plan`, which reads the index of a graph
    "cluster": 2,
    "config": 1,
    "tf_compat": 1,
    "rules": 0.5,
    "logs": 0.5,
    "own_folders": 0.5,  # of a process, which the launcher removes too
    "errors": 0,
    "version": 0,
}
BESIDE = {}
# The rooms of parts with many modules, lowest first: a room imports itself, and rooms of lower levels. What lies beside
# the rooms, at the part's root, stands where `""` is; all rooms of a part may use what `BELOW_ROOMS` has of its root.
ROOMS = {
    "plan": {
        "facts": 0,
        "cost": 1,
        "precision": 1,
        "input": 1,
        "layout": 2,
        "sync": 3,
        "memory": 4,
        "pipeline": 4,
        "zero": 5,
        "exchange": 6,
        "estimate": 6.5,
        "report": 7,
        "": 8,
    },
    "passes": {"": 0, "promises": 0.5, "model": 1, "copies": 2, "sync": 3, "worker": 4},
    "session": {"endings": 0, "": 1, "front_ends": 2},
}
BELOW_ROOMS = {"epl.plan.text"}
# These run where no TensorFlow is (or before it may be loaded: the launcher sets the environment of the workers).
WITHOUT_TENSORFLOW = {
    "plan",
    "rules",
    "program",
    "launch",
    "env",
    "cluster",
    "config",
    "logs",
    "own_folders",
    "errors",
    "version",
}
# Imports inside a function, (module, imported): the reason.
LAZY = {}


def module_name(path):
    """epl/plan/report/plan_table.py -> epl.plan.report.plan_table; a package's __init__.py is the package."""
    name = os.path.relpath(path, ROOT)[: -len(".py")].replace(os.sep, ".")
    return name[: -len(".__init__")] if name.endswith(".__init__") else name


def part_of(module):
    """epl.plan.report.plan_table -> plan; epl -> epl; modules of others -> None. Commands (`__main__`) stand on top."""
    names = module.split(".")
    if names[0] != "epl":
        return None
    if names[-1] == "__main__":
        return "epl"
    part = names[1] if len(names) > 1 else "epl"
    return "tf_compat" if part.startswith("tf_compat") else part


def room_of(module):
    """epl.plan.zero.zero_rows -> zero; epl.plan.plan -> "", which is what lies beside the rooms."""
    names = module.split(".")
    return names[2] if len(names) > 2 and names[2] in ROOMS.get(names[1], ()) else ""


def imports_of(source, module, is_package, known):
    """Returns [(imported module, line, inside a function)] of one file.

    `known` are the modules of epl: `from epl import plan` means the module epl.plan, `from epl.plan import Plan` not.
    """
    found = []

    def visit(node, in_function):
        if isinstance(node, ast.Import):
            found.extend((alias.name, node.lineno, in_function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join(package + ([node.module] if node.module else []))
            for alias in node.names:
                whole = "%s.%s" % (base, alias.name)
                found.append((whole if whole in known or base == "tensorflow" else base, node.lineno, in_function))
        inner = in_function or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(ast.parse(source), False)
    return found


def problems_of(source, module, is_package=False, known=frozenset()):
    """Returns what is wrong with the imports of one file, one line of text each."""
    part = part_of(module)
    if part not in LEVELS:
        return ["%s: say in %s on which level `%s` stands" % (module, os.path.basename(__file__), part)]
    problems = []
    for imported, line, in_function in imports_of(source, module, is_package, known):
        where = "%s line %d imports %s" % (module, line, imported)
        target = part_of(imported)
        if target is not None and target != part:
            if target not in LEVELS:
                problems.append("%s, which has no level" % where)
            elif LEVELS[target] >= LEVELS[part] and (part, target) not in BESIDE:
                problems.append("%s: an upward arrow, %s is not below %s" % (where, target, part))
        elif target in ROOMS and imported not in BELOW_ROOMS:
            levels, room, other = ROOMS[part], room_of(module), room_of(imported)
            if room != other and levels[other] >= levels[room]:
                problems.append("%s: an upward arrow, %s is not below %s" % (where, other or imported, room or module))
        top = imported.split(".")[0]
        if part in WITHOUT_TENSORFLOW and (top in ("tensorflow", "keras") or target == "tf_compat"):
            problems.append("%s: `%s` works without TensorFlow" % (where, part))
        if imported.startswith(("tensorflow.python", "tensorflow_core")) and part != "tf_compat":
            problems.append("%s: TensorFlow's inside is for epl/tf_compat only" % where)
        if in_function and (module, imported) not in LAZY:
            problems.append("%s inside a function" % where)
    return problems


def source_files():
    paths = []
    for folder, _, names in os.walk(os.path.join(ROOT, "epl")):
        paths.extend(os.path.join(folder, name) for name in names if name.endswith(".py"))
    return sorted(paths)


def test_imports_point_down():
    paths = source_files()
    known = frozenset(module_name(path) for path in paths)
    assert "epl.errors" in known
    problems = []
    for path in paths:
        with open(path, encoding="utf-8") as source:
            text = source.read()
        problems.extend(problems_of(text, module_name(path), path.endswith("__init__.py"), known))
    assert not problems, "\n".join(problems)


def test_every_exception_is_still_needed():
    seen = set()
    for module, found in modules_and_imports().items():
        seen.update(("lazy", module, imported) for imported, _, in_function in found if in_function)
        seen.update(("beside", part_of(module), part_of(imported)) for imported, _, _ in found)
    unused = [key for key in LAZY if ("lazy",) + key not in seen]
    unused += [key for key in BESIDE if ("beside",) + key not in seen]
    assert not unused


def modules_and_imports():
    """Returns {module of epl: [(imported, line, inside a function)]}."""
    paths = source_files()
    known = frozenset(module_name(path) for path in paths)
    found = {}
    for path in paths:
        with open(path, encoding="utf-8") as source:
            module = module_name(path)
            found[module] = imports_of(source.read(), module, path.endswith("__init__.py"), known)
    return found


def test_no_import_cycles():
    found = modules_and_imports()
    assert not cycle_in({module: {name for name, _, _ in found[module]} & found.keys() - {module} for module in found})


def test_tensorflow_does_not_come_in_by_a_detour():
    found = modules_and_imports()
    for module in found:
        if part_of(module) in WITHOUT_TENSORFLOW:
            way = way_to_tensorflow(module, found)
            assert not way, "`%s` works without TensorFlow, but: %s" % (part_of(module), " imports ".join(way))


def way_to_tensorflow(module, found):
    """Returns the chain of modules from `module` to TensorFlow, or an empty tuple. epl/__init__.py does not count."""
    ways = [(module,)]
    reached = {module, "", "epl"}
    for way in ways:
        for imported, _, _ in found.get(way[-1], ()):
            if imported.split(".")[0] in ("tensorflow", "keras"):
                return way + (imported,)
            for step in (imported, imported.rpartition(".")[0]):  # a module's package runs before the module
                if step not in reached:
                    reached.add(step)
                    ways.append(way + (step,))
    return ()


def test_detours_are_found():
    found = {
        "epl.plan.a": [("epl.graph.b", 1, False)],
        "epl.graph": [("epl.graph.c", 1, False)],
        "epl.graph.b": [],
        "epl.graph.c": [("tensorflow", 1, False)],
    }
    assert way_to_tensorflow("epl.plan.a", found) == ("epl.plan.a", "epl.graph", "epl.graph.c", "tensorflow")
    assert way_to_tensorflow("epl.graph.b", found) == ()


def cycle_in(needs):
    """Returns the modules that remain when those that need no other are taken away, again and again."""
    left = dict(needs)
    while True:
        free = [module for module, others in left.items() if not others & left.keys()]
        if not free:
            return sorted(left)
        for module in free:
            del left[module]


def test_cycles_are_found():
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "module, source, problem",
    [
        ("epl.plan.report.plan_table", "from epl.passes import promises", "upward arrow"),
        ("epl.plan.report.plan_table", "from ..passes.promises import run", "upward arrow"),
        ("epl.passes.copies.clone", "from epl.capture import scope", "upward arrow"),
        ("epl.plan.facts.names", "from epl.plan.layout import mesh", "upward arrow"),
        ("epl.plan.zero.zero", "from epl.plan.plan import Plan", "upward arrow"),
        ("epl.config", "import epl", "upward arrow"),
        ("epl.errors", "from epl import config", "upward arrow"),
        ("epl.plan.report.plan_table", "import tensorflow.compat.v1 as tf", "works without TensorFlow"),
        ("epl.launch.main", "from epl.tf_compat import tf", "works without TensorFlow"),
        ("epl.graph.index", "from tensorflow.python.framework import ops", "inside is for epl/tf_compat"),
        ("epl.graph.index", "from tensorflow import python", "inside is for epl/tf_compat"),
        ("epl.session.run", "def f():\n    from epl.plan import plan", "inside a function"),
        ("epl.session.run", "class A:\n    def f(self):\n        import json", "inside a function"),
        ("epl.helpers", "import os", "on which level"),
    ],
)
def test_bad_imports_are_found(module, source, problem):
    known = frozenset(["epl", "epl.config", "epl.passes", "epl.passes.promises", "epl.plan", "epl.plan.plan"])
    assert any(problem in line for line in problems_of(textwrap.dedent(source), module, known=known))


@pytest.mark.parametrize(
    "module, source",
    [
        ("epl.session.run", "from epl.passes import promises\nfrom epl.plan import plan\nfrom . import fetches"),
        ("epl.tf_compat", "from tensorflow.python.framework import ops"),
        ("epl.graph.index", "import tensorflow.compat.v1 as tf\nfrom epl import errors"),
        ("epl", "from epl.session import run"),
        ("epl.plan.__main__", "from epl.session import run"),
    ],
)
def test_good_imports_pass(module, source):
    known = frozenset(["epl", "epl.errors", "epl.passes", "epl.passes.promises", "epl.plan", "epl.plan.plan"])
    assert problems_of(source, module, known=known) == []
