"""Behind which data sets records are divided over the workers (io.shard_dataset)."""

from epl.errors import PlanError, UnsupportedError
from epl.plan import data_ops


def find_records(bodies, worker_num, with_files):
    """The data sets whose elements are to be divided: what every iterator's pipeline begins with.

    Args:
      bodies: the Bodies of the user's graph.
      worker_num: number of workers.
      with_files: divide the records of files too; else only those of data sets without files.

    Returns:
      List of (body name, node name).

    Raises:
      PlanError: a data set has too few records.
      UnsupportedError: workers would see the records in different orders.
    """
    found = []
    for body, text in data_ops.pipelines(bodies):
        walk = _Walk(bodies, with_files)
        walk.follow(body, text)
        if walk.single and not walk.sources and not walk.skipped:
            raise PlanError(
                "io.shard_dataset: the data set '%s' has one element (from_tensors), which cannot be divided over %d "
                "workers. Use from_tensor_slices, so that every record is an element, or io.shard_dataset=False if "
                "every worker is to read the same." % (walk.single[0], worker_num)
            )
        found.extend((each.name, node.name) for each, node in walk.sources)
    for name, node in found:
        _check_size(bodies.functions[name] if name else bodies.main, node, worker_num)
    return sorted(set(found), key=found.index)


class _Walk(object):
    """Goes from an iterator back to where its records come from.

    Attributes:
      sources: (Body, NodeDef) of the data sets to divide.
      single: names of data sets of one element, which every worker keeps.
      skipped: True when there are files that are divided otherwise.
    """

    def __init__(self, bodies, with_files):
        self._bodies = bodies
        self._with_files = with_files
        self.sources = []
        self.single = []
        self.skipped = False

    def follow(self, body, text):
        node = data_ops.behind_identities(body, text)
        if node is None:
            return
        inputs = data_ops.data_sets_of(body, node)
        if data_ops.reads_records(self._bodies, node):
            self._reading(body, node, inputs)
        elif node.op == "TensorDataset":
            self.single.append(node.name)
        elif not inputs:
            self.sources.append((body, node))
        else:
            # The first input of this one chooses between the others.
            for each in inputs[1:] if "DirectedInterleave" in node.op else inputs:
                self.follow(body, each)

    def _reading(self, body, node, inputs):
        files = self._bodies.index.calls(node, _reads_files, "reads files") or _reads_files(node)
        if files and not self._with_files:
            self.skipped = True
            return
        unordered = None
        if files:
            unordered = node if _is_unordered(body, node) else _unordered(body, inputs)
        if unordered is not None:
            raise UnsupportedError(
                "io.shard_dataset: the records of '%s' come in an order that differs between workers ('%s', %s, comes "
                "before), so their shares would overlap. Divide the files instead (io.slicing=True), or shuffle after "
                "reading." % (node.name, unordered.name, unordered.op)
            )
        self.sources.append((body, node))


# Where the flag "in any order" stands among the inputs, counted from the end.
_SLOPPY_INPUT = {"ParallelInterleaveDataset": -3, "ExperimentalParallelInterleaveDataset": -3}


def _reads_files(node):
    return node.op in data_ops.RECORD_READS


def _unordered(body, texts):
    """A node upstream that gives its elements in an order of each worker's own, or None."""
    nodes, _ = body.ancestors(texts)
    return next((node for node in nodes if _is_unordered(body, node)), None)


def _is_unordered(body, node):
    if node.op in _SLOPPY_INPUT:
        sloppy = data_ops.behind_identities(body, node.input[_SLOPPY_INPUT[node.op]])
        # A flag that is not a constant may be on.
        return sloppy is None or sloppy.op != "Const" or list(sloppy.attr["value"].tensor.bool_val) != [False]
    return (
        "Shuffle" in node.op
        or ("deterministic" in node.attr and node.attr["deterministic"].s == b"false")
        or ("sloppy" in node.attr and node.attr["sloppy"].b)
    )


def _check_size(body, name, worker_num):
    count = _size(body, body.nodes[name])
    if count is not None and count < worker_num:
        raise PlanError(
            "io.shard_dataset: the data set '%s' has %d %s for %d workers, so worker %d%s would have no data. Give it "
            "at least %d records, or start fewer workers."
            % (
                name,
                count,
                "record" if count == 1 else "records",
                worker_num,
                count,
                " and those after it" if count + 1 < worker_num else "",
                worker_num,
            )
        )


def _size(body, node):
    """The number of elements where it can be seen, else None."""
    if node.op != "TensorSliceDataset":
        return None
    constant = data_ops.behind_identities(body, node.input[0])
    if constant is None or constant.op != "Const":
        return None
    return constant.attr["value"].tensor.tensor_shape.dim[0].size
