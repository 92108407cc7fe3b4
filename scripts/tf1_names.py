"""The names of TensorFlow 1.15's public interface, and a page of those that epl.tf1 does not serve on TensorFlow 2.15.

.venv/tf1/bin/python scripts/tf1_names.py list   writes docs/tf1_names.txt
.venv/tf2/bin/python scripts/tf1_names.py page   prints docs/tf1_names.md
"""

import importlib
import os
import sys
import types
import warnings

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAMES = os.path.join(ROOT, "docs", "tf1_names.txt")
PAGE = os.path.join(ROOT, "docs", "tf1_names.md")
# Not of the interface: the inside, other versions, and what modules of Python's own have.
_LEFT_OUT = ("compat.v1", "compat.v2", "core", "pywrap_tensorflow", "python", "tools", "test.mock", "app.flags.")
_FUTURE = ("absolute_import", "division", "print_function", "unicode_literals")

_ABOUT = """# Names of TensorFlow 1.15 that are not served on 2.15

Made by `scripts/tf1_names.py` of [the names of 1.15's interface](tf1_names.txt): what
[`epl.tf1`](tf1_on_tf2.md) does not serve of them. `python -m epl.tf1 --check` finds those that a program uses.

| | names of 1.15 | served |
|---|---|---|
%s
"""


def listed():
    """Names of functions, classes and constants, sorted, without "tensorflow." in front."""
    warnings.simplefilter("ignore")
    tf = importlib.import_module("tensorflow")
    found, seen = set(), set()
    _walk(tf, "", found, seen, 6)
    _walk(tf.contrib, "contrib.", found, set(seen), 1)
    return sorted(found)


def _walk(module, prefix, found, seen, depth):
    if id(module) in seen:
        return
    seen.add(id(module))
    for name in dir(module):
        full = prefix + name
        left_out = any(full == each or full.startswith(each.rstrip(".") + ".") for each in _LEFT_OUT)
        if name.startswith("_") or name in _FUTURE or left_out or full == "contrib":
            continue
        value = getattr(module, name, None)
        if isinstance(value, types.ModuleType) or type(value).__name__ in ("TFModuleWrapper", "DeprecationWrapper"):
            if depth > 0 and _is_tensorflow(value):
                _walk(value, full + ".", found, seen, depth - 1)
        else:
            found.add(full)


def _is_tensorflow(module):
    return getattr(module, "__name__", "").startswith(("tensorflow", "keras"))


def page():
    """The page, as text."""
    importlib.import_module("epl.tf1")
    problem_of = importlib.import_module("epl.tf1.check").problem_of
    refusal = importlib.import_module("epl.tf1.name_tables").refusal
    with open(NAMES) as source:
        names = source.read().split()
    missing = [name for name in names if problem_of("tensorflow." + name)]
    rows = []
    for what, of_contrib in (("`tf.*`", False), ("`tf.contrib.*`", True)):
        known = [name for name in names if name.startswith("contrib.") == of_contrib]
        absent = [name for name in missing if name.startswith("contrib.") == of_contrib]
        rows.append("| %s | %d | %.1f %% |" % (what, len(known), 100 - 100.0 * len(absent) / len(known)))
    parts = [_ABOUT % "\n".join(rows)]
    refused = [name for name in missing if refusal(name)]
    parts.append("## Refused, with what to do instead\n")
    parts.extend("- `%s`: %s" % item for item in sorted(_by_reason(refused, refusal).items()))
    parts.append("\n## Not there\n")
    parts.extend("- `%s`: %s" % item for item in _by_module([name for name in missing if not refusal(name)]))
    return "\n".join(parts) + "\n"


def _by_reason(names, refusal):
    found = {}
    for name in names:
        module = ".".join(name.split(".")[:2]) if name.startswith("contrib.") else name
        reason = refusal(name).partition(" is not served on TensorFlow 2.15: ")[2]
        found["tf." + module] = reason[: reason.rindex(" See docs/")]
    return found


def _by_module(names):
    found = {}
    for name in names:
        module, _, last = name.rpartition(".")
        found.setdefault("tf.%s" % module if module else "tf", []).append("`%s`" % last)
    return sorted((module, ", ".join(members)) for module, members in found.items())


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if sys.argv[1:] == ["list"]:
        with open(NAMES, "w") as out:
            out.write("\n".join(listed()) + "\n")
    elif sys.argv[1:] == ["page"]:
        sys.stdout.write(page())
    else:
        sys.exit(__doc__)
