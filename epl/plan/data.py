"""Where input data is divided over the workers: which lists of file names, and behind which data sets.

Lists are found from what reads files (data sets of records, queue readers, tf.read_file), back to where the names come
from: through functions of data sets, queues and iterators. They are divided before anything shuffles them.
"""

import hashlib
import logging
from dataclasses import dataclass
from typing import Optional, Tuple

import numpy as np

from epl.errors import PlanError, UnsupportedError
from epl.graph.bodies import Bodies
from epl.plan import data_ops
from epl.plan.batch_parts import BatchPart, NotInParts, check_divided, find_batch_parts
from epl.plan.records import find_records

_LOG = logging.getLogger("epl")

_STRING = 7


@dataclass(frozen=True)
class ListShare:
    """Lists of which each worker gets its share.

    Attributes:
      body: name of the function that holds the node; "" for the main graph.
      node: takes the lists.
      positions: of its inputs that are lists of one length.
      dtypes: their DataType numbers.
      what: for people.
      digest: of the lists' content where it is known; workers must agree on it.
      length: of the lists where it is known, else None.
    """

    body: str
    node: str
    positions: Tuple[int, ...]
    dtypes: Tuple[int, ...]
    what: str
    digest: str = ""
    length: Optional[int] = None


@dataclass(frozen=True)
class RecordShare:
    """A data set of whose elements each worker gets its share.

    Attributes:
      body: name of the function that holds the node; "" for the main graph.
      node: makes the data set.
      what: for people.
    """

    body: str
    node: str
    what: str


@dataclass(frozen=True)
class DataPlan:
    """How data is divided over workers.

    Attributes:
      lists, records: what is divided.
      rule: for lists that do not divide evenly: "even" (an error), "unbalanced" or "drop".
      readers: (number of those who read different data, this worker's place among them).
      parts: the data sets that make batches, where workers that divide the rows of a batch read their own alone; empty
        where each reads whole batches.
    """

    lists: Tuple[ListShare, ...] = ()
    records: Tuple[RecordShare, ...] = ()
    rule: str = "even"
    readers: Tuple[int, int] = (1, 0)
    parts: Tuple[BatchPart, ...] = ()

    def facts(self):
        """What all workers must agree on, as text."""
        # Functions are named after counters of the process, so their names say nothing.
        return ["list %d (%s)" % (i, share.digest) for i, share in enumerate(self.lists) if share.digest]


def plan_data(graph, io, mesh, analysis, training=True):
    """The DataPlan of a user's Graph.

    Args:
      graph: the user's Graph.
      io: the configuration's `io` part.
      mesh: the Mesh.
      analysis: the graph's Analysis.
      training: the graph trains; in one that does not, data that cannot be divided is read by everyone.

    Raises:
      PlanError, UnsupportedError: data cannot be divided; says what to do instead.
    """
    keys = [key for key, chosen in (("io.slicing", io.slicing), ("io.shard_dataset", io.shard_dataset)) if chosen]
    if mesh.num_workers == 1 or not keys:
        return DataPlan(readers=mesh.readers)
    bodies, rule = Bodies(graph), _rule(io)
    if _has_data(bodies):
        _check_copies(mesh, keys)
    if mesh.blocks_of_copy > 1:
        try:
            parts = find_batch_parts(bodies, mesh, analysis)
            lists, records = _shares_of_parts(bodies, io, mesh, training)
            return DataPlan(lists, records, rule, (mesh.num_blocks, mesh.block_index), parts)
        except NotInParts as reason:
            _warn_of_whole_batches(mesh, keys, reason)
    elif mesh.readers[0] == 1:
        _LOG.warning(_ONE_COPY, "=True and ".join(keys), mesh.num_workers, _OF_STAGES)
    if mesh.readers[0] == 1:
        return DataPlan(readers=mesh.readers)
    return DataPlan(*_shares(bodies, io, mesh.readers[0], training), rule, mesh.readers)


def _rule(io):
    unbalanced = io.unbalanced_io_slicing or (io.equal_steps and not io.drop_last_files)
    return "unbalanced" if unbalanced else "drop" if io.drop_last_files else "even"


def _shares(bodies, io, number, training):
    """(ListShares, RecordShares) for a number of readers."""
    files = _Files(bodies)
    if io.slicing:
        files.find()
        if files.records and _rule(io) != "unbalanced":
            raise PlanError(
                "io.slicing: the file names of '%s' come out of a data set, so their number is not known before they "
                "are read and cannot be divided evenly. Set io.unbalanced_io_slicing=True, or give the names as a list."
                % next(iter(files.records.values())).what
            )
    records = dict(files.records)
    if io.shard_dataset:
        for body, node in find_records(bodies, number, with_files=not io.slicing):
            records.setdefault((body, node), RecordShare(body, node, _label(body, node)))
    if not files.lists and not records and _has_data(bodies):
        _nothing_found(io, training)
    return tuple(files.lists.values()), tuple(records.values())


def _shares_of_parts(bodies, io, mesh, training):
    """The same for all workers of the copies of the model; raises NotInParts where only the copies may have shares."""
    try:
        lists, records = _shares(bodies, io, mesh.num_blocks, training)
    except (PlanError, UnsupportedError) as error:
        if mesh.readers[0] > 1:
            raise
        raise NotInParts(str(error).rstrip(".")) from error
    _check_lengths(lists, _rule(io), mesh.num_blocks)
    check_divided(bodies, [(share.body, share.node) for share in lists + records])
    return lists, records


def _check_lengths(lists, rule, number):
    """Raises NotInParts for lists that a number of workers cannot divide, where the copies of the model might."""
    for share in lists:
        if share.length is not None and (share.length < number or (rule == "even" and share.length % number)):
            raise NotInParts("the %d files of '%s' do not divide over %d workers" % (share.length, share.what, number))


def _warn_of_whole_batches(mesh, keys, reason):
    """Of workers that could read the rows alone that are their part, but for a reason."""
    who = (_OF_SHARDS if mesh.split else _OF_ROWS) + ": %s" % reason
    if mesh.readers[0] == 1:
        _LOG.warning(_ONE_COPY, "=True and ".join(keys), mesh.num_workers, who)
    else:
        _LOG.warning(_SEVERAL_COPIES, "=True and ".join(keys), mesh.blocks_of_copy * mesh.block, who)


_ONE_COPY = "%s=True divides nothing here: all %d workers compute one copy of the model together, and %s."
_SEVERAL_COPIES = "%s=True divides data over the copies of the model alone: of the %d workers of a copy %s."
_OF_SHARDS = "each reads all of its data, in the same order"
_OF_ROWS = "each reads all of its data, in the same order (shuffle with a seed), and takes its rows of each batch"
_OF_STAGES = "the worker of the first stage that uses data reads all of it"


def _check_copies(mesh, keys):
    """Raises UnsupportedError where a worker has some devices of a copy of the model and another worker the others."""
    shards, own = mesh.num_shards, len(mesh.instances)
    if mesh.num_blocks > 1 and not mesh.split and shards % own and own % shards:
        raise UnsupportedError(
            "%s=True: %d devices divide the batch of a copy of the model, and a worker has %d such devices, so that a "
            "copy ends in the middle of a worker and no worker has whole batches, or parts of one, to read. Start "
            "workers whose number of devices is a divisor or a multiple of %d, or divide the data in the program and "
            "set neither io.slicing nor io.shard_dataset." % ("=True and ".join(keys), shards, own, shards)
        )


def _has_data(bodies):
    return any(node.op in data_ops.ITERATORS | data_ops.DEQUEUES for node in bodies.main.nodes.values())


def _nothing_found(io, training):
    """A training that would read everything on every worker is refused; an evaluation may do so."""
    wanted = [
        (io.slicing, "io.slicing=True", "no list of file names"),
        (io.shard_dataset, "io.shard_dataset=True", "no data set"),
    ]
    text = (
        "%s, but %s was found in the input of this program that could be divided, so every worker reads all data."
        % (
            " and ".join(key for chosen, key, _ in wanted if chosen),
            " and ".join(what for chosen, _, what in wanted if chosen),
        )
    )
    if not training:
        _LOG.warning("%s", text)
        return
    raise PlanError(
        text + " io.slicing divides lists of file names, also those of queues; io.shard_dataset divides data sets "
        "(tf.data). Use what fits, or divide the data in the program and set neither."
    )


def _label(body, node):
    return "%s of function %s" % (node, body) if body else node


class _Files(object):
    """Finds the lists of file names. `lists` and `records`: dicts of (body, node) to the shares."""

    def __init__(self, bodies):
        self._bodies = bodies
        self._seen = set()
        self.lists = {}
        self.records = {}

    def find(self):
        readers = [
            (body, node) for body in self._bodies.all() for node in body.nodes.values() if node.op in data_ops.READS
        ]
        for body, node in readers:
            self._reader(body, node)
        # Files that hold names of files are read whole by every worker: their own lists are not divided.
        inside = self._functions_behind(self.records)
        if inside or self.records:
            self._seen, self.lists = set(), {}
            for body, node in readers:
                if body.name not in inside and (body.name, node.name) not in self.records:
                    self._reader(body, node)

    def _functions_behind(self, records):
        names, stack = set(), []
        for body, node in records:
            holder = self._bodies.functions[body] if body else self._bodies.main
            stack.extend(self._bodies.index.called_by(holder.nodes[node]))
        while stack:
            name = stack.pop()
            if name not in names:
                names.add(name)
                for node in self._bodies.functions[name].nodes.values():
                    stack.extend(self._bodies.index.called_by(node))
        return names

    def _reader(self, body, node):
        if node.op in data_ops.QUEUE_READS:
            self._queue(body, node.input[1])
        else:
            self._names(body, node, 0, whole=node.op not in data_ops.FILE_READS)

    def _names(self, body, node, position, whole=True):
        """File names come into a node. `whole`: they are a list, unless an outer data set hands them in one by one."""
        nodes, arguments = body.ancestors([node.input[position]])
        if arguments:
            self._arguments(body, arguments, whole)
        elif not self._through_resources(body, nodes) and whole:
            self._list(body, node, (position,))

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

    def _arguments(self, body, arguments, whole):
        """Names come from outside of a function."""
        for call in self._bodies.calls_of(body.name):
            key = (call.body.name, call.node.name, body.name, tuple(arguments))
            if key in self._seen:
                continue
            self._seen.add(key)
            if "Targuments" not in call.node.attr and not data_ops.is_dataset(call.node.op):
                for index in arguments:
                    self._names(call.body, call.node, index + (call.node.op in data_ops.BRANCHES), whole)
                continue
            captured = len(call.node.attr["Targuments"].list.type)
            elements = len(body.arguments) - captured
            if any(index < elements for index in arguments):
                self._elements(call.body, call.node.input[0])
            else:
                for index in arguments:
                    self._names(call.body, call.node, 1 + index - elements, whole)

    def _elements(self, body, text):
        """The elements of a data set are, or hold, file names."""
        node = body.producer(text)
        if node is None:
            raise UnsupportedError(
                "io.slicing cannot find where the file names of function '%s' come from: a data set is handed to it as "
                "an argument. Set io.slicing=False and divide the files in the program, with tf.data's shard()."
                % body.name
            )
        if node.op in data_ops.TENSOR_SOURCES:
            self._tensors(body, node)
            return
        inputs = [t for t in data_ops.data_sets_of(body, node)]
        if data_ops.reads_records(self._bodies, node) or not inputs:
            self.records.setdefault(
                (body.name, node.name), RecordShare(body.name, node.name, _label(body.name, node.name))
            )
            return
        for each in inputs:
            self._elements(body, each)

    def _tensors(self, body, node):
        dtypes = node.attr["Toutput_types"].list.type
        positions = [i for i in range(len(dtypes)) if node.op != "TensorDataset" or dtypes[i] == _STRING]
        nodes, arguments = body.ancestors([node.input[i] for i in positions])
        if arguments:
            self._arguments(body, arguments, whole=True)
        elif not self._through_resources(body, nodes):
            self._list(body, node, tuple(positions))

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
                self._elements(body, node.input[0])
        if iterator.op == "OneShotIterator":
            factory = self._bodies.functions[iterator.attr["dataset_factory"].func.name]
            self._elements(factory, factory.results[0])

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
            _label(body.name, what.name if what is not None else node.name),
            _digest(constants),
            min((int(np.prod([dim.size for dim in each.tensor_shape.dim])) for each in constants), default=None),
        )


def _dtypes(node, positions):
    for key, first in (("Toutput_types", 0), ("Tcomponents", 1)):
        if key in node.attr:
            return tuple(node.attr[key].list.type[i - first] for i in positions)
    if node.op == "RandomShuffle":
        return (node.attr["T"].type,)
    return (_STRING,) * len(positions)


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
