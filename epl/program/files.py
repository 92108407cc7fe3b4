"""Programs and plans in files: JSON of plain records, and the graphs as GraphDefs; reading one runs nothing of it.

A file is a zip archive: `records.json` and `graph_0.pb`, `graph_1.pb` and so on. In the JSON, numbers, texts, truth
values and null stand for themselves. All else is a list whose first element says what it is: "list", "tuple", "set",
"frozenset", "dict" (keys and values in turn), "bytes", "fraction", "range", "graph" (its number), "record" (class, then
its fields in order) or "same" (the number of a record that came before).
"""

import base64
import importlib
import io
import json
import os
import zipfile
from dataclasses import fields, is_dataclass
from fractions import Fraction

from epl.errors import PlanError
from epl.graph.index import Graph

_FORMAT = 1
_SEQUENCES = {list: "list", tuple: "tuple"}
_SETS = {set: "set", frozenset: "frozenset"}
_MADE = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_PLAIN = (str, int, float, bool, type(None))


def write(path, value, graph_def):
    """Writes a Program, captured or with its plan, or any value made of records; the file has all of it or is not made.

    Args:
      path: of the file; one that is there is replaced.
      value: what is written.
      graph_def: the class GraphDef (epl.tf_compat.GraphDef).
    """
    writer = _Writer()
    text, data = json.dumps([_FORMAT, writer.encoded(value)], separators=(",", ":")), io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_entry("records.json"), text, zipfile.ZIP_DEFLATED)
        for number, graph in enumerate(writer.graphs):
            content = graph.to_graph_def(graph_def).SerializeToString(deterministic=True)
            archive.writestr(_entry("graph_%d.pb" % number), content, zipfile.ZIP_DEFLATED)
    temporary = "%s.%d.tmp" % (path, os.getpid())
    try:
        with open(temporary, "wb") as file:
            file.write(data.getvalue())
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def read(path, graph_def):
    """What `write` has written.

    Raises:
      PlanError: the file holds no program that this version can read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            version, content = json.loads(archive.read("records.json").decode())
            if version != _FORMAT:
                raise ValueError("its format is %s, and %d is expected" % (version, _FORMAT))
            reader = _RecordReader(lambda number: graph_def.FromString(archive.read("graph_%d.pb" % number)))
            return reader.decoded(content)
    except (ValueError, KeyError, TypeError, AttributeError, ImportError, zipfile.BadZipFile) as error:
        raise PlanError(
            "'%s' holds no program that this version of EPL can read (%s). Write it again, with "
            "`python -m epl.plan --save %s` of this version." % (path, error, path)
        )


def _entry(name):
    """The same bytes whenever it is written."""
    return zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))


class _Writer(object):
    """Attributes: graphs: those that were met, by number."""

    def __init__(self):
        self.graphs, self._numbers, self._records = [], {}, {}

    def encoded(self, value):
        """JSON for a value."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind in _SEQUENCES:
            return [_SEQUENCES[kind]] + [self.encoded(each) for each in value]
        if kind is dict:
            return ["dict"] + [self.encoded(each) for item in value.items() for each in item]
        if kind in _SETS:
            return [_SETS[kind]] + sorted((self.encoded(each) for each in value), key=json.dumps)
        if kind is bytes:
            return ["bytes", base64.b64encode(value).decode()]
        if kind is Fraction:
            return ["fraction", value.numerator, value.denominator]
        if kind is range:
            return ["range", value.start, value.stop, value.step]
        if kind is Graph:
            if id(value) not in self._numbers:
                self._numbers[id(value)] = len(self.graphs)
                self.graphs.append(value)
            return ["graph", self._numbers[id(value)]]
        return self._record(value)

    def _record(self, value):
        if id(value) in self._records:
            return ["same", self._records[id(value)][0]]
        names = _fields_of(type(value))
        content = [self.encoded(getattr(value, name)) for name in names]
        # It is kept with its number, so that no other one gets its address.
        self._records[id(value)] = len(self._records), value
        return ["record", "%s:%s" % (type(value).__module__, type(value).__name__)] + content


class _RecordReader(object):
    """Args: graph: function from a graph's number to its GraphDef."""

    def __init__(self, graph):
        self._graph, self._graphs, self._records, self._classes = graph, {}, [], {}

    def decoded(self, content):
        """The value of some JSON."""
        if type(content) is not list:
            return content
        kind, rest = content[0], content[1:]
        if kind in _MADE:
            return _MADE[kind](map(self.decoded, rest))
        if kind == "dict":
            values = list(map(self.decoded, rest))
            return dict(zip(values[::2], values[1::2]))
        if kind == "bytes":
            return base64.b64decode(rest[0])
        if kind == "fraction":
            return Fraction(*rest)
        if kind == "range":
            return range(*rest)
        if kind == "graph":
            if rest[0] not in self._graphs:
                self._graphs[rest[0]] = Graph.from_graph_def(self._graph(rest[0]))
            return self._graphs[rest[0]]
        if kind == "same":
            return self._records[rest[0]]
        if kind != "record":
            raise ValueError("'%s' is no kind of value" % kind)
        self._records.append(self._class(rest[0])(*map(self.decoded, rest[1:])))
        return self._records[-1]

    def _class(self, text):
        """A record's class, which is one of EPL's own."""
        if text not in self._classes:
            module, name = text.split(":")
            if module.split(".")[0] != "epl":
                raise ValueError("'%s' is no record of EPL" % text)
            made = getattr(importlib.import_module(module), name)
            _fields_of(made)
            self._classes[text] = made
        return self._classes[text]


def _fields_of(kind):
    """Names of a record's fields, in the order in which its class takes them."""
    if is_dataclass(kind):
        return [each.name for each in fields(kind) if each.init]
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind._fields
    raise TypeError("%s.%s is no record" % (kind.__module__, kind.__name__))
