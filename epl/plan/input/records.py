"""Behind which data sets records are divided over the workers (io.shard_dataset)."""

from epl.errors import PlanError
from epl.plan.input.cardinality import Cardinality
from epl.plan.input.data_shares import RecordShare, label
from epl.plan.input.dividing import ends_of, find_places, taken
from epl.rules import datasets


def find_records(bodies, worker_num, readers, batches=(), beside_files=False, in_order=False):
    """The data sets whose elements are to be divided, in every iterator's pipeline as near to its source as is right.

    Args:
      bodies: the Bodies of the user's graph.
      worker_num: number of workers.
      readers: dict of a body's name to the data sets in it whose records come out of files that are divided otherwise.
      batches: the BatchParts of batches of which each worker reads its rows, and all workers rows of the same.
      beside_files: divide only what comes together with records of these files.
      in_order: as for `find_places`.

    Returns:
      List of RecordShare.

    Raises:
      PlanError: a data set has too few records.
    """
    found = []
    for name, ends in ends_of(bodies).items():
        body = bodies.functions[name] if name else bodies.main
        own = readers.get(name, frozenset())
        if beside_files:
            ends = [end for end in ends if any(node.name in own for node in _sources(body, taken(body, end), own))]
        forced = [part.node for part in batches if part.body == name]
        for end in ends:
            _check_single(body, taken(body, end), own, worker_num)
        places = find_places(bodies, body, [] if forced else ends, own, forced, in_order).found
        for end in ends:
            _check_size(body, end, places, worker_num)
        found.extend(
            RecordShare(name, place.node, place.takers, label(name, place.node), place.after) for place in places
        )
    return found


def _check_single(body, text, readers, worker_num):
    """Raises PlanError for a pipeline in which there is but one element, made by from_tensors."""
    sources = _sources(body, text, readers)
    spread = any(datasets.kind_of(node.op) in _SPREAD for node in body.ancestors([text])[0])
    if sources and not spread and all(node.op == "TensorDataset" for node in sources):
        raise PlanError(
            "io.shard_dataset: the data set '%s' has one element (from_tensors), which cannot be divided over %d "
            "workers. Use from_tensor_slices, so that every record is an element, or io.shard_dataset=False if "
            "every worker is to read the same." % (sources[0].name, worker_num)
        )


# They make several elements of one.
_SPREAD = (datasets.SOME, datasets.UNBATCH)


def _sources(body, text, readers=()):
    """The data sets that a pipeline begins with; those of `readers` stand for what they read."""
    nodes, waiting = {}, [text]
    while waiting:
        node = body.producer(waiting.pop())
        if node is not None and node.name not in nodes:
            nodes[node.name] = node
            if node.name not in readers:
                waiting.extend(node.input[: datasets.num_data_sets(node)])
    return [node for node in nodes.values() if node.name in readers or not datasets.num_data_sets(node)]


def _check_size(body, end, places, worker_num):
    """Raises PlanError where the graph tells that the last worker has nothing to read."""
    if Cardinality(body, places, worker_num).of_end(end) != 0:
        return
    whole, behind = Cardinality(body), {node.name for node in body.ancestors([taken(body, end)])[0]}
    for place in places:
        count = whole.of_node(place.node)
        if place.node in behind and count is not None and count < worker_num:
            raise PlanError(
                "io.shard_dataset: the data set '%s' has %d %s for %d workers, so worker %d%s would have no data. Give "
                "it at least %d records, or start fewer workers."
                % (
                    place.node,
                    count,
                    "record" if count == 1 else "records",
                    worker_num,
                    count,
                    " and those after it" if count + 1 < worker_num else "",
                    worker_num,
                )
            )
