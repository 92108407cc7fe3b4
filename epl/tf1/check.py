"""`python -m epl.tf1 --check FOLDER`: what of a program is not served, with what to write instead."""

import ast
import difflib
import importlib
import inspect
import os
import sys

from epl.tf1.finder import install
from epl.tf1.name_tables import PAGE, refusal
from epl.tf1.names_used import uses_of

# What later versions of NumPy and SciPy do not have and is not served (epl.tf1.old_names, old_scipy).
_OTHERS = {
    "numpy.asscalar": "use array.item()",
    "numpy.msort": "use numpy.sort(a, axis=0)",
    "scipy.misc.imfilter": "use PIL.ImageFilter",
    "scipy.misc.imshow": "use matplotlib.pyplot.imshow",
}

_MISSING = object()


def check(path):
    """Prints what of a folder's Python files, or of one file, is not served.

    Returns:
      0 if all is served, 1 if not, 2 if there is nothing to read.
    """
    files = _python_files(path)
    if not files:
        print("epl: '%s' has no Python files." % path, file=sys.stderr)
        return 2
    install()
    missing, problems = {}, []
    for name in files:
        try:
            with open(name, "rb") as source:
                tree = ast.parse(source.read(), name)
        except (SyntaxError, ValueError) as error:
            problems.append(
                "%s:%s: Python 3 cannot read it (%s)%s"
                % (name, getattr(error, "lineno", None) or 1, getattr(error, "msg", error), _hint(name))
            )
            continue
        for use in uses_of(tree):
            why = problem_of(use.name)
            if why:
                missing.setdefault(why, []).append("%s:%d" % (name, use.line))
    for line in problems:
        print(line)
    for why, places in sorted(missing.items()):
        more = " and %d more" % (len(places) - 3) if len(places) > 3 else ""
        print("%s\n    %s%s" % (why, ", ".join(places[:3]), more))
    total = len(problems) + len(missing)
    print(
        "%d files read: %s"
        % (
            len(files),
            "all that they use is served."
            if not total
            else "%d things are not served. %s has what is." % (total, PAGE),
        )
    )
    return 1 if total else 0


def _python_files(path):
    if os.path.isfile(path):
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        found.extend(os.path.join(folder, name) for name in sorted(names) if name.endswith(".py"))
    return found


def _hint(name):
    """What a file that Python 3 cannot read may be."""
    with open(name, "rb") as source:
        text = source.read()
    old = (
        any(line.lstrip().startswith(b"print ") for line in text.splitlines()) or b"except " in text and b", e:" in text
    )
    return "; it looks like Python 2, which is not served: 2to3 converts it" if old else ""


def problem_of(name):
    """Why a dotted name is not served, with the nearest that is; "" if it is served."""
    top = name.partition(".")[0]
    if top in ("numpy", "scipy"):
        found = [known for known in _OTHERS if name == known or name.startswith(known + ".")]
        return "%s is not there any more: %s" % (found[0], _OTHERS[found[0]]) if found else ""
    if top == "tensorflow_core":
        name = "tensorflow" + name[len(top) :]
    known = refusal(name)
    if known:
        return known
    owner, path = importlib.import_module("tensorflow"), "tensorflow"
    for part in name.split(".")[1:]:
        # Attributes of objects are the program's business: what class it has is not known before it runs.
        if not (inspect.ismodule(owner) or inspect.isclass(owner) or _is_lazy(owner)):
            return ""
        following = _member(owner, path, part)
        if following is _MISSING:
            if inspect.isclass(owner):
                return ""
            return "%s.%s is not served%s" % (path, part, _nearest(owner, part))
        owner, path = following, "%s.%s" % (path, part)
    return ""


def _is_lazy(owner):
    return "Lazy" in type(owner).__name__ or "Wrapper" in type(owner).__name__


def _member(owner, path, part):
    """An attribute or a module below; _MISSING where there is none."""
    found = getattr(owner, part, _MISSING)
    if found is _MISSING and not inspect.isclass(owner):
        try:
            return importlib.import_module("%s.%s" % (path, part))
        except ImportError:
            return _MISSING
    return found


def _nearest(owner, part):
    near = difflib.get_close_matches(part, [name for name in dir(owner) if not name.startswith("_")], 1, 0.8)
    return "; did it mean %s?" % near[0] if near else ""
