"""Checks rules of this repository that no linter knows: length of files and lines, notes, links, names of tests, and
where tables belong."""

import ast
import glob
import importlib.util
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAX_FILE_LINES = 600
MAX_LINE_LENGTH = 120
CODE = (".py", ".cc", ".h", ".sh")
LEFT_OVER = re.compile(r"\b(TO" "DO|FIX" "ME|X" "XX)\\b")  # in two halves, or this line would find itself
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def project_files():
    """Every file that git tracks or would track, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], stdout=subprocess.PIPE, check=True, universal_newlines=True
    )
    return [name for name in sorted(set(listed.stdout.splitlines())) if os.path.isfile(name)]


def code_problems(name, text):
    """Yields the problems of one source file."""
    lines = text.splitlines()
    if len(lines) >= MAX_FILE_LINES:
        yield "%s: %d lines; split it, a file has fewer than %d" % (name, len(lines), MAX_FILE_LINES)
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_LENGTH:
            yield "%s:%d: %d characters, at most %d" % (name, number, len(line), MAX_LINE_LENGTH)
        if line != line.rstrip():
            yield "%s:%d: blanks at the end of the line" % (name, number)
        if LEFT_OVER.search(line):
            yield "%s:%d: a note that belongs into an issue: %s" % (name, number, line.strip())


# Where DataType numbers have their names; they are used by these.
DATA_TYPES = "epl/graph/types.py"
_DATA_TYPE_NAME = re.compile(r"_?(B?FLOAT|DOUBLE|HALF|U?INT|COMPLEX|STRING|BOOL|RESOURCE|VARIANT)(8|16|32|64|128)?$")


# Where tables of operation types are that several parts go by; and those that say what types there are in a matter of
# one part alone: how each is divided, what a pass may add.
RULES = "epl/rules"
OPERATION_TABLES = (RULES, "epl/partition/", "epl/passes/promises/")


def tables():
    """{operation types: name} of the tables of `RULES`."""
    found = {}
    for path in sorted(glob.glob(os.path.join(ROOT, RULES, "[a-z]*.py"))):
        spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, value in vars(module).items():
            if isinstance(value, frozenset) and len(value) > 1 and name[0] != "_":
                found.setdefault(value, "%s.%s" % (module.__name__, name))
    return found


def _operation_types(node):
    """The texts of a collection that is written out, also as one text that is split; an empty set for others."""
    split = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "split" and not node.args
    if split:
        words = _text(node.func.value)
        return frozenset(words.split() if words else ())
    texts = [_text(each) for each in getattr(node, "elts", ())]
    return frozenset(texts) if texts and all(texts) else frozenset()


def _text(node):
    value = getattr(node, "value", getattr(node, "s", None))  # `s` is Python 3.7's
    return value if isinstance(value, str) else None


def table_problems(name, text, known):
    """Yields what a module of the library says that has its one place elsewhere; `known`: what `tables` gives."""
    if not name.startswith("epl/") or not name.endswith(".py") or name == DATA_TYPES:
        return
    for node in ast.walk(ast.parse(text)):
        if _has_data_type_number(node):
            yield "%s:%d: a DataType number; use its name of %s" % (name, node.lineno, DATA_TYPES)
        types = () if name.startswith(OPERATION_TABLES) else _operation_types(node)
        if types in known:
            yield "%s:%d: the operation types of %s of %s; use that" % (name, node.lineno, known[types], RULES)
        elif len(types) > 1 and "Identity" in types:
            yield "%s:%d: a table of what hands tensors on; it belongs into %s" % (name, node.lineno, RULES)


# Where what is known of a node is a tag of it, or follows from the plan; its name says nothing but to people.
_BY_TAGS = ("epl/plan/", "epl/passes/", "epl/compiler.py")
_NAMES = ("epl/plan/facts/names.py", "epl/plan/report/")


def fact_problems(name, text):
    """Yields where a module of the library reads a fact about a node off its name."""
    if not name.startswith(_BY_TAGS) or name.startswith(_NAMES):
        return
    for node in ast.walk(ast.parse(text)):
        asked = getattr(getattr(node, "func", None), "attr", "") in ("startswith", "endswith")
        if asked and getattr(node.func.value, "attr", getattr(node.func.value, "id", "")) in ("name", "text", "tensor"):
            yield "%s:%d: a fact that is read off a name; make it a tag of the node" % (name, node.lineno)


def _has_data_type_number(node):
    if isinstance(node, ast.Assign):
        pairs = zip(_each(node.targets[0]), _each(node.value))
        return any(_DATA_TYPE_NAME.match(getattr(n, "id", "")) and _is_number(v) for n, v in pairs)
    if isinstance(node, ast.Compare):
        sides = [node.left] + node.comparators
        return any(map(_is_data_type, sides)) and any(_is_number(v) for side in sides for v in _each(side))
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") == "Type" and any(map(_is_number, node.args))
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod) and _is_data_type(node.left) and _is_number(node.right)
    return False


def _each(node):
    """The elements of a tuple, list or set that is written out; else the expression itself."""
    return getattr(node, "elts", None) or [node]


def _is_number(node):
    return type(getattr(node, "value", getattr(node, "n", None))) is int  # `n` is Python 3.7's


def _is_data_type(node):
    """Whether an expression ends in `dtype`, or is a call of what does."""
    node = node.func if isinstance(node, ast.Call) else node
    return re.search(r"dtype$", getattr(node, "attr", getattr(node, "id", ""))) is not None


def link_problems(name, text):
    """Yields links of a Markdown page to files that do not exist."""
    for target in LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        if not os.path.exists(os.path.join(os.path.dirname(name), target)):
            yield "%s: the link %s leads nowhere" % (name, target)


def name_problems(names):
    """Yields test modules of one name, of which pytest takes the first only."""
    places = {}
    for name in names:
        folder, base = os.path.split(name)
        if base.startswith("test_") and base.endswith(".py"):
            places.setdefault(base, []).append(folder)
    for base, folders in sorted(places.items()):
        if len(folders) > 1:
            yield "%s: is in %s; test modules need names of their own" % (base, " and in ".join(folders))


def main():
    problems, known = list(name_problems(project_files())), tables()
    for name in project_files():
        if not name.endswith(CODE + (".md",)):
            continue
        with open(name, encoding="utf-8") as source:
            text = source.read()
        if text and not text.endswith("\n"):
            problems.append("%s: no line end at the end" % name)
        problems.extend(table_problems(name, text, known))
        problems.extend(fact_problems(name, text) if name.endswith(".py") else ())
        problems.extend(link_problems(name, text) if name.endswith(".md") else code_problems(name, text))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
