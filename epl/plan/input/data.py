"""Where input data is divided over the workers: which lists of file names, and behind which data sets."""

import logging
from dataclasses import dataclass
from typing import Tuple

from epl.errors import PlanError, UnsupportedError
from epl.graph.bodies import Bodies
from epl.plan.facts import data_ops
from epl.plan.input.batch_parts import BatchPart, NotInParts, check_divided, find_batch_parts
from epl.plan.input.data_shares import ListShare, RecordShare
from epl.plan.input.file_lists import Files
from epl.plan.input.read_alike import Alike, read_alike
from epl.plan.input.records import find_records

_LOG = logging.getLogger("epl")


@dataclass(frozen=True)
class DataPlan:
    """How data is divided over workers.

    Attributes:
      lists, records: what is divided.
      rule: for lists that do not divide evenly: "even" (an error), "unbalanced" or "drop".
      readers: (number of those who read different data, this worker's place among them).
      parts: the data sets that make batches, where workers that divide the rows of a batch read their own alone; empty
        where each reads whole batches.
      alike: what makes the order in which all workers read the same, where they take their shares behind it.
      undivided: why nothing is divided although a key says so; "" where something is, or no key says so.
    """

    lists: Tuple[ListShare, ...] = ()
    records: Tuple[RecordShare, ...] = ()
    rule: str = "even"
    readers: Tuple[int, int] = (1, 0)
    parts: Tuple[BatchPart, ...] = ()
    alike: Alike = Alike()
    undivided: str = ""

    def facts(self):
        """What all workers must agree on, as text."""
        # Functions are named after counters of the process, so their names say nothing.
        lists = ["files of list %d (%s)" % (i, share.digest) for i, share in enumerate(self.lists) if share.digest]
        return lists + list(self.alike.facts)

    def told(self):
        """Lines for people: what is divided, and how."""
        count = self.readers[0]
        lines = ["files '%s': each of %d readers has its share" % (share.what, count) for share in self.lists]
        for share in self.records:
            where = "behind %s" % share.after if share.after else "at their source"
            lines.append(
                "records of '%s': each of %d readers takes every %s, %s" % (share.what, count, _nth(count), where)
            )
        if self.alike.seeded:
            lines.append(
                "%d shuffles or random numbers before shares have a seed that all workers share"
                % len(self.alike.seeded)
            )
        return lines + ([self.undivided] if self.undivided else [])


def _nth(number):
    return "%d%s" % (number, {2: "nd", 3: "rd"}.get(number, "th"))


_READ_WHOLE = "nothing: this graph neither trains nor evaluates, so every worker reads everything"


def plan_data(graph, io, mesh, analysis, training=True, evaluates=True, in_order=False):
    """The DataPlan of a user's Graph.

    Args:
      graph: the user's Graph.
      io: the configuration's `io` part.
      mesh: the Mesh.
      analysis: the graph's Analysis.
      training: the graph trains; in one that only evaluates, data that cannot be divided is read by everyone.
      evaluates: it merges something over all workers; one that does neither reads everything.
      in_order: shares are taken where the number of elements that were read tells how far all workers are together.

    Raises:
      PlanError, UnsupportedError: data cannot be divided; says what to do instead.
    """
    keys = [key for key, chosen in (("io.slicing", io.slicing), ("io.shard_dataset", io.shard_dataset)) if chosen]
    if mesh.num_workers == 1 or not keys:
        return DataPlan(readers=_readers(mesh))
    bodies, rule = Bodies(graph), _rule(io)
    if not training and not evaluates:
        return DataPlan(readers=_readers(mesh), undivided=_READ_WHOLE if _has_data(bodies) else "")
    if _has_data(bodies):
        _check_copies(mesh, keys)
    undivided = ""
    if mesh.pipelines_of_copy > 1:
        try:
            parts = find_batch_parts(bodies, mesh, analysis)
            lists, records, alike = _shares_of_parts(bodies, io, mesh, training, parts, in_order)
            return DataPlan(
                lists, records, rule, (mesh.num_pipelines, mesh.worker_index // mesh.pipeline_workers), parts, alike
            )
        except NotInParts as reason:
            undivided = _warn_of_whole_batches(mesh, keys, reason)
    elif _readers(mesh)[0] == 1:
        undivided = _warn(_ONE_COPY, "=True and ".join(keys), mesh.num_workers, _OF_STAGES)
    if _readers(mesh)[0] == 1:
        return DataPlan(readers=_readers(mesh), undivided=undivided)
    lists, records, alike = _shares(bodies, io, _readers(mesh)[0], training, in_order=in_order)
    return DataPlan(lists, records, rule, _readers(mesh), (), alike, undivided)


def _rule(io):
    unbalanced = io.unbalanced_io_slicing or (io.equal_steps and not io.drop_last_files)
    return "unbalanced" if unbalanced else "drop" if io.drop_last_files else "even"


def _shares(bodies, io, number, training, batches=(), in_order=False):
    """(ListShares, RecordShares, Alike) for a number of readers; `batches` and `in_order` as for find_records."""
    files = Files(bodies, _rule(io), number)
    if io.slicing:
        files.find()
    records = list(files.records)
    if io.shard_dataset or files.readers:
        records.extend(find_records(bodies, number, files.readers, batches, not io.shard_dataset, in_order))
    if not files.lists and not records and _has_data(bodies):
        _nothing_found(io, training)
    return tuple(files.lists.values()), tuple(records), read_alike(bodies, records)


def _shares_of_parts(bodies, io, mesh, training, parts, in_order):
    """The same for all workers of the copies of the model; raises NotInParts where only the copies may have shares."""
    try:
        # Where there is but one copy, what comes after its batches depends on no positions that workers see otherwise.
        lists, records, alike = _shares(
            bodies, io, mesh.num_pipelines, training, parts if _readers(mesh)[0] == 1 else (), in_order
        )
    except (PlanError, UnsupportedError) as error:
        if _readers(mesh)[0] > 1:
            raise
        raise NotInParts(str(error).rstrip(".")) from error
    _check_lengths(lists, _rule(io), mesh.num_pipelines)
    check_divided(bodies, lists + records, parts)
    return lists, records, alike


def _check_lengths(lists, rule, number):
    """Raises NotInParts for lists that a number of workers cannot divide, where the copies of the model might."""
    for share in lists:
        if share.length is not None and (share.length < number or (rule == "even" and share.length % number)):
            raise NotInParts("the %d files of '%s' do not divide over %d workers" % (share.length, share.what, number))


def _warn_of_whole_batches(mesh, keys, reason):
    """Of workers that could read the rows alone that are their part, but for a reason; returns the text."""
    who = (_OF_SHARDS if mesh.split else _OF_ROWS) + ": %s" % reason
    if _readers(mesh)[0] == 1:
        return _warn(_ONE_COPY, "=True and ".join(keys), mesh.num_workers, who)
    return _warn(_SEVERAL_COPIES, "=True and ".join(keys), mesh.pipelines_of_copy * mesh.pipeline_workers, who)


def _warn(text, *values):
    _LOG.warning(text, *values)
    return text % values


_ONE_COPY = "%s=True divides nothing here: all %d workers compute one copy of the model together, and %s."
_SEVERAL_COPIES = "%s=True divides data over the copies of the model alone: of the %d workers of a copy %s."
_OF_SHARDS = "each reads all of its data, in the same order"
_OF_ROWS = "each reads all of its data, in the same order (shuffle with a seed), and takes its rows of each batch"
_OF_STAGES = "the worker of the first stage that uses data reads all of it"


def _check_copies(mesh, keys):
    """Raises UnsupportedError where a worker has some devices of a copy of the model and another worker the others."""
    shards, own = mesh.num_shards, len(mesh.instances)
    if mesh.num_pipelines > 1 and not mesh.split and shards % own and own % shards:
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


def _readers(mesh):
    """(number of those who read different batches, this worker's place among them)."""
    return (
        mesh.num_pipelines // mesh.pipelines_of_copy,
        mesh.worker_index // mesh.pipeline_workers // mesh.pipelines_of_copy,
    )
