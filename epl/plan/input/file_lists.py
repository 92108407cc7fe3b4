"""Which lists of file names are divided over the workers (io.slicing).

They are found from what reads files (data sets of records, queue readers, tf.read_file), back to where the names come
from: through functions of data sets, queues and iterators. They are divided before anything shuffles them, but behind
what chooses some of them by position.
"""

import collections
import hashlib

import numpy as np

from epl.errors import PlanError, UnsupportedError
from epl.graph.types import STRING
from epl.plan.facts import data_ops
from epl.plan.input.cardinality import ENDLESS, Cardinality
from epl.plan.input.data_shares import ListShare, RecordShare, label
from epl.plan.input.dividing import RESULT, ends_of, find_places
from epl.rules import datasets


class Files(object):
    """The lists of file names of a program.

    Args:
      bodies: the Bodies of the user's graph.
      rule: for lists that do not divide evenly, as in a DataPlan.
      number: of those who read different files.

    Attributes:
      lists: dict of (body, node) to ListShares.
      records: list of RecordShares, of data sets of names.
      readers: dict of a body's name to the names of the data sets in it that give records of files that are divided.
    """

    def __init__(self, bodies, rule, number):
        self._bodies = bodies
        self._rule = rule
        self._number = number
        self._start()

    def _start(self):
        self._seen = set()
        self._ends = collections.OrderedDict()  # body -> (name, input position) of what takes names
        self.lists = collections.OrderedDict()
        self.records = []
        self.readers = collections.OrderedDict()

    def find(self):
        """Fills the attributes.

        Raises:
          PlanError, UnsupportedError: files cannot be divided; says what to do instead.
        """
        readers = [
            (body, node) for body in self._bodies.all() for node in body.nodes.values() if node.op in data_ops.READS
        ]
        self._search(readers)
        # Files that hold names of files are read whole by every worker: their own lists are not divided.
        named = set()
        for share in self.records:
            body = self._body(share.body)
            named.update(data_ops.behind(self._bodies, body, share.node))
        if any((body.name, node.name) in named for body, node in readers):
            self._start()
            self._search([(body, node) for body, node in readers if (body.name, node.name) not in named])
        self._check_positions()

    def _search(self, readers):
        for body, node in readers:
            self._reader(body, node)
        for name, ends in list(self._ends.items()):
            self._divide(self._body(name), ends)

    def _body(self, name):
        return self._bodies.functions[name] if name else self._bodies.main

    def _reader(self, body, node):
        if node.op in data_ops.QUEUE_READS:
            self._queue(body, node.input[1])
        else:
            self._names(body, node, 0, node.op not in data_ops.FILE_READS, ())

    def _names(self, body, node, position, whole, path):
        """File names come into a node.

        Args:
          whole: they are a list, unless an outer data set hands them in one by one.
          path: (Body, NodeDef) of the data sets that the records have come through so far.
        """
        path = path + ((body, node),) if data_ops.is_dataset(node.op) else path
        nodes, arguments = body.ancestors([node.input[position]])
        if arguments:
            self._arguments(body, arguments, whole, path)
        elif not self._through_resources(body, nodes) and whole:
            self._list(body, node, (position,))
            self._read_here(path)

    def _through_resources(self, body, nodes):
        """Follows names through queues and iterators. True when they come from there."""
        found = False
        for node in nodes:
            if node.op in data_ops.DEQUEUES:
                self._queue(body, node.input[0])
                found = True
            elif node.op in data_ops.GET_NEXT:
                self._iterator(body, node.input[0])
                found = True
        return found

    def _arguments(self, body, arguments, whole, path):
        """Names come from outside of a function."""
        for call in self._bodies.calls_of(body.name):
            key = (call.body.name, call.node.name, body.name, tuple(arguments))
            if key in self._seen:
                continue
            self._seen.add(key)
            if "Targuments" not in call.node.attr and not data_ops.is_dataset(call.node.op):
                for index in arguments:
                    self._names(call.body, call.node, index + (call.node.op in data_ops.BRANCHES), whole, path)
                continue
            captured = len(call.node.attr["Targuments"].list.type)
            elements = len(body.arguments) - captured
            if any(index < elements for index in arguments):
                self._elements(call.body, (call.node.name, 0), path + ((call.body, call.node),))
            else:
                for index in arguments:
                    self._names(call.body, call.node, 1 + index - elements, whole, path)

    def _elements(self, body, taker, path):
        """The elements of a data set are, or hold, file names."""
        name, position = taker
        sources = list(self._sources(body, body.results[position] if name == RESULT else _input(body, taker)))
        single = all(node.op == "TensorDataset" for node in sources)
        tensors = [node for node in sources if node.op in data_ops.TENSOR_SOURCES]
        outside = [node for node in tensors if body.ancestors(node.input)[1]]
        for node in tensors if single else outside:
            self._tensors(body, node, path)
        if not single and not outside:
            self._ends.setdefault(body.name, []).append(taker)
            self._read_here(path[-1:])

    def _sources(self, body, text):
        """The data sets that the elements of another begin with."""
        node = body.producer(text)
        if node is None:
            raise UnsupportedError(
                "io.slicing cannot find where the file names of function '%s' come from: a data set is handed to it as "
                "an argument. Set io.slicing=False and divide the files in the program, with tf.data's shard()."
                % body.name
            )
        count = datasets.num_data_sets(node)
        if not count:
            yield node
        for each in node.input[:count]:
            for source in self._sources(body, each):
                yield source

    def _tensors(self, body, node, path):
        dtypes = node.attr["Toutput_types"].list.type
        positions = [i for i in range(len(dtypes)) if node.op != "TensorDataset" or dtypes[i] == STRING]
        nodes, arguments = body.ancestors([node.input[i] for i in positions])
        if arguments:
            self._arguments(body, arguments, True, path)
        elif not self._through_resources(body, nodes):
            self._list(body, node, tuple(positions))
            self._read_here(path)

    def _read_here(self, path):
        """Records that come through some data sets are those of shares, and so are those of what calls them."""
        for body, node in path:
            self.readers.setdefault(body.name, set()).add(node.name)
        for call in self._bodies.calls_of(path[-1][0].name) if path and path[-1][0].name else ():
            if data_ops.is_dataset(call.node.op):
                self._read_here(((call.body, call.node),))

    def _queue(self, body, text):
        queue = data_ops.behind_identities(body, text)
        key = ("queue", body.name, queue.name)
        if key in self._seen:
            return
        self._seen.add(key)
        for node in list(body.nodes.values()):
            if node.op in data_ops.ENQUEUES and data_ops.behind_identities(body, node.input[0]) is queue:
                values = [i for i in range(1, len(node.input)) if node.input[i][0] != "^"]
                nodes, _ = body.ancestors([node.input[i] for i in values])
                if self._through_resources(body, nodes):
                    continue
                if node.op in data_ops.ENQUEUES_ONE:
                    raise UnsupportedError(
                        "io.slicing cannot divide the queue '%s', to which '%s' adds file names one by one. Add the "
                        "whole list with enqueue_many, as tf.train.string_input_producer does."
                        % (queue.name, node.name)
                    )
                self._list(body, node, tuple(values))

    def _iterator(self, body, text):
        iterator = data_ops.behind_identities(body, text)
        for node in list(body.nodes.values()):
            if node.op == "MakeIterator" and data_ops.behind_identities(body, node.input[1]) is iterator:
                self._elements(body, (node.name, 0), ())
        if iterator.op == "OneShotIterator":
            factory = self._bodies.functions[iterator.attr["dataset_factory"].func.name]
            self._elements(factory, (RESULT, 0), ())

    def _list(self, body, node, positions):
        nodes, _ = body.ancestors([node.input[i] for i in positions])
        shuffles = [n for n in nodes if n.op == "RandomShuffle"]
        if len(shuffles) == 1 and len(positions) == 1:
            node, positions = shuffles[0], (0,)  # before it: each worker shuffles in its own way
        elif shuffles:
            raise UnsupportedError(
                "io.slicing: '%s' takes lists that '%s' has shuffled; workers shuffle differently, so their shares "
                "would overlap. Shuffle with the data set's shuffle() instead." % (node.name, shuffles[0].name)
            )
        what = data_ops.behind_identities(body, node.input[positions[0]], through_shapes=True)
        constants = _constants(body, node, positions)
        self.lists[body.name, node.name] = ListShare(
            body.name,
            node.name,
            positions,
            _dtypes(node, positions),
            label(body.name, what.name if what is not None else node.name),
            _digest(constants),
            min((int(np.prod([dim.size for dim in each.tensor_shape.dim])) for each in constants), default=None),
        )

    def _divide(self, body, ends):
        """Divides the data sets of names of a body, which some of its data sets take."""
        ends = list(dict.fromkeys(ends))
        places = find_places(self._bodies, body, ends).found
        lists = [place for place in places if not place.after and body.nodes[place.node].op == "TensorSliceDataset"]
        for place in lists:
            self._tensors(body, body.nodes[place.node], ())
        listed = {place.pair for place in lists if place.pair}
        for place in places:
            if place not in lists:
                self._check_number(body, place, ends, place.pair in listed)
                what = label(body.name, place.node)
                self.records.append(RecordShare(body.name, place.node, place.takers, what, place.after))

    def _check_number(self, body, place, ends, listed):
        """Raises PlanError for names of which the workers would not get equally many, where they have to."""
        if self._rule == "unbalanced":
            return
        numbers, number = Cardinality(body), self._number
        known = all(numbers.of_end(end) is not None for end in ends)
        count = numbers.of_node(place.pair or place.node) if known else None
        if (listed and count is None) or (count and count != ENDLESS and not count % number):
            return
        what = label(body.name, place.pair or place.node)
        if count in (None, ENDLESS):
            raise PlanError(
                "io.slicing: the file names of '%s' come out of a data set, so their number is not known before they "
                "are read and cannot be divided evenly. Set io.unbalanced_io_slicing=True, or give the names as a list."
                % what
            )
        raise PlanError(
            "io.slicing: '%s' has %d files, which do not divide evenly over %d workers. Set "
            "io.unbalanced_io_slicing=True to let some workers have one more." % (what, count, number)
        )

    def _check_positions(self):
        """Raises UnsupportedError where it matters in which order one device sees the records of all files."""
        ends = ends_of(self._bodies)
        for name, readers in self.readers.items():
            body = self._body(name)
            results = [(RESULT, position) for position in range(len(body.results))]
            places = find_places(self._bodies, body, ends.get(name, results), readers)
            causes = dict(places.whole, **places.aligned)
            for reader in sorted(readers & causes.keys()):
                cause = body.nodes[causes[reader]]
                raise UnsupportedError(
                    "io.slicing: what '%s' (%s) makes of the records of '%s' depends on their positions, or on all of "
                    "them, and each worker reads other files, so that together they would read something else than "
                    "one device. Set io.shard_dataset=True instead of io.slicing, which divides the records behind "
                    "it; or do it for each file by itself, in the function of flat_map or interleave."
                    % (cause.name, cause.op, label(name, reader))
                )


def _input(body, taker):
    return body.nodes[taker[0]].input[taker[1]]


def _dtypes(node, positions):
    for key, first in (("Toutput_types", 0), ("Tcomponents", 1)):
        if key in node.attr:
            return tuple(node.attr[key].list.type[i - first] for i in positions)
    if node.op == "RandomShuffle":
        return (node.attr["T"].type,)
    return (STRING,) * len(positions)


def _constants(body, node, positions):
    """The TensorProtos of lists that are constants; none where any of them is not."""
    found = [data_ops.behind_identities(body, node.input[position], through_shapes=True) for position in positions]
    if any(constant is None or constant.op != "Const" for constant in found):
        return []
    return [constant.attr["value"].tensor for constant in found]


def _digest(constants):
    """Of their content; "" of none."""
    digest = hashlib.sha256()
    for constant in constants:
        digest.update(constant.SerializeToString())
    return digest.hexdigest()[:12] if constants else ""
