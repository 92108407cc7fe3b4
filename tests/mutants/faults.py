"""Faults that can be planted in a source file: a comparison turned round, a condition negated, a call left out.

Each has a name that stays as it is when other functions change: FILE:FUNCTION:KIND:NUMBER, for example
epl/plan/exchange/order.py:settle:compare:0 for the first comparison of `settle`.
"""

import ast
import collections
import copy
import hashlib
import os

_COMPARE = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_CALLS = {"any": "all", "all": "any", "min": "max", "max": "min", "sorted": "list"}
# No condition of theirs, and nothing that is computed for them, is a fault of more than words.
_WORDS = (ast.Raise, ast.Assert)


class Fault(collections.namedtuple("Fault", "name path function line start end text inside")):
    """One fault.

    Attributes:
      name: as above.
      path: the file, from the root of the repository.
      function: qualified name; "" where it stands in none.
      line: where it stands.
      start, end: which bytes of the file it takes the place of.
      text: what stands there instead.
      inside: whether it changes what a function does when it is called, and not what happens when the file is imported.
    """

    __slots__ = ()

    def planted_in(self, source):
        """The file's bytes with the fault."""
        return source[: self.start] + self.text.encode("utf-8") + source[self.end :]

    def change_in(self, source):
        """The line before and after, of the file's bytes."""
        texts = source, self.planted_in(source)
        return tuple(text.decode("utf-8").splitlines()[self.line - 1].strip() for text in texts)


def planted_under(name, root):
    """The Fault of that name in the repository at `root`, and its file's bytes."""
    path = name.partition(":")[0]
    with open(os.path.join(root, path), "rb") as file:
        source = file.read()
    return next(fault for fault in faults_of(path, source) if fault.name == name), source


def faults_of(path, source):
    """All faults that can be planted in the file `path`, whose bytes are `source`, in their order."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return finder.found


def chosen(root, folders, count):
    """Faults of all files under `folders` of the repository at `root`: `count` of them, or all (None).

    Which they are follows from their names, so that few of them change from one state of the code to the next.
    """
    found = []
    for folder in folders:
        for place, _, files in sorted(os.walk(os.path.join(root, folder))):
            for name in sorted(files):
                if name.endswith(".py"):
                    path = os.path.relpath(os.path.join(place, name), root)
                    with open(os.path.join(root, path), "rb") as file:
                        found.extend(faults_of(path, file.read()))
    found.sort(key=lambda fault: hashlib.sha1(fault.name.encode("utf-8")).hexdigest())
    return found[:count]


class _Finder(ast.NodeVisitor):
    def __init__(self, path, source):
        self.found = []
        self._path = path
        self._starts = [0]
        for line in source.splitlines(True):
            self._starts.append(self._starts[-1] + len(line))
        self._scope, self._depth = [], 0
        self._numbers = collections.Counter()

    def visit(self, node):
        if isinstance(node, _WORDS):
            return
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            deeper = isinstance(node, ast.FunctionDef)
            self._scope.append(node.name)
            self._depth += deeper
            for part in node.body:
                self.visit(part)
            self._depth -= deeper
            for part in node.args.defaults if deeper else ():
                self.visit(part)
            self._scope.pop()
            return
        if isinstance(node, ast.AnnAssign):
            self.visit(node.value) if node.value is not None else None
            return
        find = getattr(self, "_of_" + type(node).__name__.lower(), None)
        if find is not None:
            find(node)
        self.generic_visit(node)

    def _of_compare(self, node):
        for place, op in enumerate(node.ops):
            if type(op) in _COMPARE:
                ops = list(node.ops)
                ops[place] = _COMPARE[type(op)]()
                self._add("compare", node, ops=ops)

    def _of_boolop(self, node):
        self._add("boolean", node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())

    def _of_unaryop(self, node):
        if isinstance(node.op, ast.Not):
            self._put("not", node, ast.unparse(node.operand))

    def _of_binop(self, node):
        sequences = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
        texts = [
            n for n in (node.left, node.right) if isinstance(n, ast.Constant) and isinstance(n.value, (str, bytes))
        ]
        if type(node.op) in _ARITHMETIC and not texts and not isinstance(node.left, sequences):
            if not isinstance(node.right, sequences):
                self._add("arithmetic", node, op=_ARITHMETIC[type(node.op)]())

    def _of_constant(self, node):
        if isinstance(node.value, bool):
            self._put("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            self._put("constant", node, str(node.value + 1))

    def _of_if(self, node):
        self._put("condition", node.test, "not (%s)" % ast.unparse(node.test))

    def _of_ifexp(self, node):
        self._put("condition", node.test, "not (%s)" % ast.unparse(node.test))

    def _of_comprehension(self, node):
        for test in node.ifs:
            self._put("condition", test, "not (%s)" % ast.unparse(test))

    def _of_call(self, node):
        if isinstance(node.func, ast.Name) and node.func.id in _CALLS:
            self._put("call", node.func, _CALLS[node.func.id])

    def _of_continue(self, node):
        self._put("continue", node, "break")

    def _of_expr(self, node):
        if isinstance(node.value, ast.Call) and not ast.unparse(node.value.func).startswith("_LOG."):
            self._put("left_out", node, "pass")

    def _add(self, kind, node, **changes):
        other = copy.deepcopy(node)
        for key, value in changes.items():
            setattr(other, key, value)
        self._put(kind, node, "(%s)" % ast.unparse(other))

    def _put(self, kind, node, text):
        function = ".".join(self._scope)
        number = self._numbers[function, kind]
        self._numbers[function, kind] += 1
        start, end = (
            self._starts[line - 1] + column
            for line, column in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        )
        name = "%s:%s:%s:%d" % (self._path, function, kind, number)
        self.found.append(Fault(name, self._path, function, node.lineno, start, end, text, self._depth > 0))
