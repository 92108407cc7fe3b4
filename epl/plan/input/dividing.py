r"""Where in a pipeline of data sets the workers' shares are taken: as near to its source as is right.

    range -> shuffle -> take(8) -> map -> batch    becomes    range -> shuffle -> take(8) -> share -> map -> batch

What is asked for goes from the end of a pipeline to its beginning: together the workers get the same elements ("free"),
or, for what is put together with others by position, worker i gets the elements i, i + n, i + 2n ("aligned"). Where an
operation cannot give what is asked for from shares (epl.rules.datasets), the share is taken behind it, and all before
it is read whole by every worker. So it is too with what something else takes whole.
"""

import collections
from dataclasses import dataclass
from typing import Optional, Tuple

from epl.partition.table import ELEMENT_BY_ELEMENT
from epl.partition.values import constant_value
from epl.plan.facts import data_ops
from epl.rules import datasets, effects

# What it matters which rows are together in an element that is a batch: it does; not, though the last rows may be left
# out, as it is the model's; not, and each row counts.
_TOGETHER, _OF_MODEL, _EACH_ROW = "together", "of the model", "each"

# The place of what a function returns among those that take elements: ("", its number).
RESULT = ""


@dataclass(frozen=True)
class Demand:
    """What is asked of shares.

    Attributes:
      pair: name of what puts elements together by their positions, where that asks for aligned shares; else None.
      rows: whether it matters which rows are together in an element that is a batch, one of the above.
    """

    pair: Optional[str] = None
    rows: str = _OF_MODEL


@dataclass(frozen=True)
class Place:
    """Where shares are taken.

    Attributes:
      node: name of the data set whose elements are divided.
      takers: (name, input position) of what takes the shares.
      pair: see Demand.
      after: operation type of what keeps the place from being nearer to the source; "" where that is the source.
    """

    node: str
    takers: Tuple[Tuple[str, int], ...]
    pair: Optional[str]
    after: str


@dataclass(frozen=True)
class BodyPlaces:
    """The places in one body.

    Attributes:
      found: tuple of Place, from the sources on.
      whole: dict of the data sets that all workers read whole to the name of what needs them so.
      aligned: dict of the files' readers of which aligned shares are asked to the name of what pairs their records.
    """

    found: Tuple[Place, ...]
    whole: dict
    aligned: dict


def find_places(bodies, body, ends, readers=frozenset(), forced=frozenset(), in_order=False):
    """Where the elements of the data sets in a body are divided.

    Args:
      bodies: the Bodies of the user's graph.
      body: the Body.
      ends: (name, input position) of what takes what has been divided.
      readers: names of data sets whose records come out of files that are divided, so that they are shares already.
      forced: names of data sets that are to give shares as if they were ends, whatever takes their elements.
      in_order: shares are taken behind all but what makes one of each element, or batches of them, in order.
    """
    return _BodySearch(bodies, body, frozenset(readers), frozenset(forced), in_order).run(ends)


def ends_of(bodies):
    """dict of a body's name to the ends of all pipelines in it."""
    found = collections.OrderedDict()
    for name, node in bodies.main.nodes.items():
        if node.op == "MakeIterator":
            found.setdefault("", []).append((name, 0))
        elif node.op == "OneShotIterator":
            found[node.attr["dataset_factory"].func.name] = [(RESULT, 0)]
    return found


def taken(body, end):
    """The input that an end takes."""
    name, position = end
    return body.results[position] if name == RESULT else body.nodes[name].input[position]


class _BodySearch(object):
    """Goes through a body from the ends to the sources; see find_places."""

    def __init__(self, bodies, body, readers, forced, in_order):
        self._bodies = bodies
        self._body = body
        self._readers = readers
        self._forced = forced
        self._in_one_order = in_order
        self._found = []
        self._whole = {}
        self._aligned = {}
        self._asked = {}  # (name, position) of a taker -> Demand
        self._with_files = {}

    def run(self, ends):
        self._asked.update((end, Demand()) for end in ends)
        starts = [taken(self._body, end) for end in ends] + list(self._forced)
        order = self._in_order(starts)
        takers = _takers(self._body, order)
        for name in reversed(order):
            self._visit(self._body.nodes[name], takers[name])
        return BodyPlaces(tuple(reversed(self._found)), self._whole, self._aligned)

    def _in_order(self, texts):
        """Names of the data sets that inputs come from, each after those that it takes elements from."""
        order, done = [], set()
        stack = [(self._name(text), False) for text in texts]
        while stack:
            name, entered = stack.pop()
            if entered:
                order.append(name)
            elif name is not None and name not in done:
                done.add(name)
                stack.append((name, True))
                stack.extend((self._name(text), False) for text in data_ops.data_sets_of(self._body, self._node(name)))
        return order

    def _node(self, name):
        return self._body.nodes[name]

    def _name(self, text):
        producer = self._body.producer(text)
        return None if producer is None else producer.name

    def _visit(self, node, takers):
        asked = {taker: self._asked.get(taker) for taker in takers}
        whole = next((taker for taker, demand in asked.items() if demand is None), None)
        if node.name in self._forced:
            asked, whole = {taker: Demand() for taker in takers}, None
        shares = [taker for taker, demand in asked.items() if demand is not None]
        if whole is not None:
            self._read_whole(node, self._whole.get(whole[0], whole[0]), self._whole_places(node, asked, shares))
            return
        pair = next((demand.pair for demand in asked.values() if demand.pair), None)
        rows = {demand.rows for demand in asked.values()}
        demand = Demand(pair, next(each for each in (_TOGETHER, _EACH_ROW, _OF_MODEL) if each in rows))
        if node.name in self._readers:
            if pair:
                self._aligned[node.name] = pair
            return
        inputs = self._through(node, demand)
        if inputs is None:
            is_source = not datasets.num_data_sets(node) or data_ops.reads_records(self._bodies, node)
            place = Place(node.name, tuple(shares), pair, "" if is_source else node.op)
            self._read_whole(node, node.name, [place], itself=False)
            return
        for position, each in enumerate(inputs):
            if each is not None:
                self._asked[node.name, position] = each

    def _whole_places(self, node, asked, shares):
        """Where some of what takes a data set's elements takes shares, and something else takes all of them."""
        pair = next((asked[taker].pair for taker in shares if asked[taker].pair), None)
        return [Place(node.name, tuple(shares), pair, node.op)] if shares else []

    def _read_whole(self, node, cause, places, itself=True):
        if itself:
            self._whole[node.name] = cause
        else:
            self._whole.setdefault(node.name, cause)
        self._found.extend(places)

    def _through(self, node, demand):
        """What is asked of a data set's inputs, a list; None where its own elements have to be divided."""
        kind = datasets.kind_of(node.op)
        if data_ops.reads_records(self._bodies, node) or kind in (datasets.SOURCE, datasets.SINGLE):
            return None
        if self._in_one_order and kind not in (datasets.SAME, datasets.EACH, datasets.BATCH):
            return None
        if kind == datasets.PAIR:
            return self._pair(node, demand)
        if kind == datasets.SAME:
            return None if _is_file_cache(self._body, node) else [demand]
        if kind == datasets.POSITION:
            return [demand] if _is_without_effect(self._body, node) else None
        if self._calls(node, _changes_state):
            return None
        if kind == datasets.EACH:
            # Who takes shares of files anyway computes something of the batches that they give.
            keeps = self._has_files(node.name) or is_by_element(self._bodies, node)
            return [Demand(demand.pair, demand.rows if keeps else _TOGETHER)]
        if demand.pair is not None:
            return None
        return getattr(self, _FREE[kind])(node, demand)

    def _some(self, node, demand):
        if self._gives_rows(node):
            return self._unbatch(node, demand)
        return None if self._is_single(node.input[0]) else [Demand(rows=_TOGETHER)]

    def _gives_rows(self, node):
        """Whether a function makes data sets of the rows of its arguments, from_tensor_slices, and nothing else."""
        functions = [self._bodies.functions[name] for name in self._bodies.index.called_by(node)]
        if len(functions) != 1:
            return False
        (function,) = functions
        result = function.producer(function.results[0])
        while result is not None and result.op == "Identity":
            result = function.producer(result.input[0])
        return result is not None and result.op == "TensorSliceDataset" and function.arguments == tuple(result.input)

    def _kept(self, node, demand):
        del demand
        return None if self._calls(node, _is_python) else [Demand(rows=_TOGETHER)]

    def _mixed(self, node, demand):
        if node.op in datasets.REPEATS and self._is_single(node.input[0]):
            return None
        return [demand] * datasets.num_data_sets(node)

    def _batch(self, node, demand):
        # What is no batch of the model's, a sequence perhaps, has to have neighbouring elements.
        if demand.rows == _TOGETHER or (demand.rows == _EACH_ROW and self._drops_rows(node)):
            return None
        return [Demand(rows=_TOGETHER)]

    def _drops_rows(self, node):
        """Whether the last rows may be left out, where they are no whole batch."""
        if node.op not in _MAY_DROP:
            return False
        flag = data_ops.behind_identities(self._body, node.input[-1])
        return flag is None or flag.op != "Const" or any(flag.attr["value"].tensor.bool_val)

    def _unbatch(self, node, demand):
        del demand
        return None if self._is_single(node.input[0]) else [Demand(rows=_EACH_ROW)]

    def _groups(self, node, demand):
        if demand.rows != _OF_MODEL or not self._has_files(node.name) or not self._only_batches(node):
            return None
        return [Demand(rows=_TOGETHER)]

    def _choice(self, node, demand):
        endless = self._is_endless(node.input[0])
        stops = "stop_on_empty_dataset" in node.attr and node.attr["stop_on_empty_dataset"].b
        return [None] + [demand] * node.attr["N"].i if endless and not stops else None

    def _pair(self, node, demand):
        count = datasets.num_data_sets(node)
        varying = [place for place in range(count) if not self._is_constant(node.input[place])]
        roots = {self._root(node.input[place]) for place in varying}
        if len(roots) > 1 and demand.pair is None:
            demand = Demand(node.name, demand.rows)
        return [demand if place in varying or not varying else None for place in range(count)]

    def _root(self, text):
        """The data set of whose elements another has one for each, in order."""
        producer = self._body.producer(text)
        while producer is not None and datasets.kind_of(producer.op) in (datasets.SAME, datasets.EACH):
            if data_ops.reads_records(self._bodies, producer):
                break
            producer = self._body.producer(producer.input[0])
        return None if producer is None else producer.name

    def _is_single(self, text):
        """Whether a data set has one element, which `from_tensors` has made."""
        root = self._root(text)
        return root is not None and self._node(root).op == "TensorDataset"

    def _is_constant(self, text):
        """Whether a data set gives one element for ever."""
        root = self._root(text)
        node = self._node(root) if root is not None else None
        if node is None or node.op != "RepeatDataset" or not self._is_single(node.input[0]):
            return False
        count = constant_of(self._body, node.input[datasets.REPEATS[node.op]])
        return count is not None and count < 0

    def _is_endless(self, text):
        """Whether a data set certainly never ends."""
        node = self._body.producer(text)
        while node is not None:
            if node.op in datasets.REPEATS:
                count = constant_of(self._body, node.input[datasets.REPEATS[node.op]])
                if count is not None and count < 0:
                    return True
            if node.op.startswith(("RandomDataset", "ExperimentalRandomDataset")):
                return True
            kind = datasets.kind_of(node.op)
            if kind not in (datasets.SAME, datasets.EACH, datasets.BATCH):
                return False
            node = self._body.producer(node.input[0])
        return False

    def _only_batches(self, node):
        """Whether groups become batches of all of their elements."""
        reduced = self._bodies.functions[node.attr["reduce_func"].func.name]
        result = reduced.producer(reduced.results[0])
        while result is not None and datasets.kind_of(result.op) in (datasets.SAME, datasets.BATCH):
            text = result.input[0]
            if text in reduced.arguments:
                return True
            result = reduced.producer(text)
        return False

    def _has_files(self, name):
        """Whether a data set's elements come out of files that are divided."""
        if name not in self._with_files:
            inputs = data_ops.data_sets_of(self._body, self._node(name))
            self._with_files[name] = name in self._readers or any(self._has_files(self._name(each)) for each in inputs)
        return self._with_files[name]

    def _calls(self, node, test):
        return self._bodies.index.calls(node, test, test.__name__)


# Batches whose last input says whether a last short one is left out.
_MAY_DROP = datasets.of_kind(datasets.BATCH) - {
    "BatchDataset",
    "DenseToSparseBatchDataset",
    "ExperimentalDenseToSparseBatchDataset",
    "PaddedBatchDataset",
}
_FREE = {
    datasets.SOME: "_some",
    datasets.KEPT: "_kept",
    datasets.MIXED: "_mixed",
    datasets.BATCH: "_batch",
    datasets.UNBATCH: "_unbatch",
    datasets.GROUPS: "_groups",
    datasets.CHOICE: "_choice",
}


def _takers(body, names):
    """dict of data sets to all that takes their elements: (name, input position)."""
    found = {name: [] for name in names}
    for node in body.nodes.values():
        for position, text in enumerate(node.input):
            producer = body.producer(text) if text[0] != "^" else None
            if producer is not None and producer.name in found:
                found[producer.name].append((node.name, position))
    for position, text in enumerate(body.results):
        producer = body.producer(text)
        if producer is not None and producer.name in found:
            found[producer.name].append((RESULT, position))
    return found


def constant_of(body, text):
    """The whole number that an input is, or None."""
    node = data_ops.behind_identities(body, text)
    value = constant_value(node.attr["value"].tensor) if node is not None and node.op == "Const" else None
    return int(value) if value is not None and value.ndim == 0 else None


def _is_file_cache(body, node):
    """A cache in files, which all workers share, if not one in memory."""
    if node.op not in ("CacheDataset", "CacheDatasetV2"):
        return False
    name = data_ops.behind_identities(body, node.input[1])
    return name is None or name.op != "Const" or list(name.attr["value"].tensor.string_val) != [b""]


def _is_without_effect(body, node):
    count = constant_of(body, node.input[1]) if node.op in ("TakeDataset", "SkipDataset") else None
    return count is not None and (count == 0 if node.op == "SkipDataset" else count < 0)


def _changes_state(node):
    return effects.kind_of(node.op) in (effects.WRITE, effects.EFFECT, effects.DRAWN)


def _is_python(node):
    """What may remember what it has seen."""
    return node.op in ("PyFunc", "PyFuncStateless", "EagerPyFunc")


# Functions of rows that are not among those of the partition's table, as no model computes with them.
_BY_ROW = frozenset(
    """
    AsString DecodeRaw LookupTableFind LookupTableFindV2 ParseExample ParseExampleV2 StringLower StringStrip
    StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper
    """.split()
)


def is_by_element(bodies, node):
    """Whether a data set maps its elements, batches perhaps, by a function that computes each row by itself."""
    if node.op.startswith(("ParseExampleDataset", "ExperimentalParseExampleDataset")):
        return True
    if datasets.kind_of(node.op) != datasets.EACH or node.attr["Targuments"].list.type:
        return False
    return all(map(_computes_by_element, (bodies.functions[name] for name in bodies.index.called_by(node))))


def _computes_by_element(body):
    for node in body.nodes.values():
        if node.op == "Const":
            continue
        if node.op not in ELEMENT_BY_ELEMENT and node.op not in _BY_ROW:
            return False
        producers = [body.producer(text) for text in node.input if text[0] != "^"]
        constants = [each for each in producers if each is not None and each.op == "Const"]
        if len(constants) != len(producers) - 1:
            return False  # rows of one may meet columns of another
        if node.op in ELEMENT_BY_ELEMENT and any(each.attr["value"].tensor.tensor_shape.dim for each in constants):
            return False  # it may be as long as the batch
    return True
