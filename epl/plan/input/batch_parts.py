r"""Where batches are made of which several workers read their own rows alone (io.slicing, io.shard_dataset).

Workers that compute one copy of the model together need not read all of its batch: each reads records of its own, and
makes batches of as many as are its part.

    records -> BatchDataset(8)     becomes, in each of two workers,     its records -> BatchDataset(4)

Where they divide a batch by its rows, it computes these rows: together a batch of one device, in another order. Where
they divide tensors, they hand each other their rows (epl.passes.sync.gather_batches).
"""

from dataclasses import dataclass
from typing import Tuple

from epl.graph.types import HANDLES
from epl.partition.values import constant_value
from epl.plan.facts import data_ops
from epl.plan.input.dividing import is_by_element
from epl.rules import datasets, effects

_BY_POSITION = frozenset(["TakeDataset", "SkipDataset", "ZipDataset"])
_IN_ANOTHER_ORDER = datasets.of_kind(datasets.MIXED) - {"ConcatenateDataset"}


@dataclass(frozen=True)
class BatchPart:
    """A data set that makes batches.

    Attributes:
      body: name of the function that holds the node; "" for the main graph.
      node: makes the data set.
      position: of the batch's size among its inputs.
      size: the rows of a worker's part.
      after: names of the data sets that hand its batches on, in the same function.
    """

    body: str
    node: str
    position: int
    size: int
    after: Tuple[str, ...]


class NotInParts(Exception):
    """Why workers read whole batches, as the end of a sentence."""


def find_batch_parts(bodies, mesh, analysis):
    """The data sets that make the batches of a program, in all of its pipelines.

    Args:
      bodies: the Bodies of the user's graph.
      mesh: the Mesh, of which several blocks of workers compute a copy of the model.
      analysis: the Analysis.

    Returns:
      A tuple of BatchPart.

    Raises:
      NotInParts: a worker's rows cannot be read without those of others.
    """
    if mesh.weights:
        raise NotInParts("cluster.device_weights gives them parts of different size")
    _check_sources(bodies, mesh, analysis)
    found = {}
    for body, text in data_ops.pipelines(bodies):
        for node, after in _batches(bodies, body, text):
            known = found.get((body.name, node.name))
            after = after if known is None else known.after + after
            found[body.name, node.name] = _part(body, node, mesh, after)
    return tuple(found.values())


def _check_sources(bodies, mesh, analysis):
    """Raises NotInParts for data that is not read by the model itself with get_next()."""
    for name, node in bodies.main.nodes.items():
        what = "'%s' (%s)" % (name, node.op)
        if name in analysis.cloned and node.op in effects.SOURCES and node.op not in data_ops.GET_NEXT:
            raise NotInParts("%s gives batches that do not come from a data set" % what)
        if bodies.index.calls(node, _gets_next, "gets next"):
            raise NotInParts("a function of %s takes batches" % what)
        if mesh.split and _gets_next(node):
            if name not in analysis.cloned:
                raise NotInParts("%s gives batches that the model does not take" % what)
            if name in analysis.in_control_flow:
                raise NotInParts("%s gives batches in a loop or a branch" % what)
            if not HANDLES.isdisjoint(node.attr["output_types"].list.type):
                raise NotInParts("%s gives something else than tensors" % what)


def _gets_next(node):
    return node.op in data_ops.GET_NEXT


def check_divided(bodies, shares, parts):
    """Raises NotInParts where what makes a batch does not get shares, so that several workers would read the same rows.

    Args:
      bodies: the Bodies of the user's graph.
      shares: the ListShares and RecordShares.
      parts: the BatchParts.
    """
    divided = {(share.body, share.node) for share in shares}
    for body, text in data_ops.pipelines(bodies):
        nodes = data_ops.behind(bodies, body, text)
        if divided.isdisjoint(nodes):
            _, name = next(iter(nodes), ("", text))
            raise NotInParts("nothing is divided of what the data set '%s' reads" % name)
    takers = divided | {(share.body, name) for share in shares for name, _ in getattr(share, "takers", ())}
    for part in parts:
        body = bodies.functions[part.body] if part.body else bodies.main
        behind = set(data_ops.behind(bodies, body, body.nodes[part.node].input[0])) | {(part.body, part.node)}
        if takers.isdisjoint(behind):
            raise NotInParts("what comes after the batches of '%s' depends on their positions" % part.node)


def _batches(bodies, body, text, after=()):
    """A list of (node that puts rows together into batches, names of the data sets behind it, all of which leave rows
    as they are), one for each such node of a pipeline."""
    node = data_ops.behind_identities(body, text)
    inputs = [] if node is None else data_ops.data_sets_of(body, node)
    if node is not None and node.op in data_ops.BATCHES:
        return [(node, after)]
    if not inputs or node.op not in data_ops.WHOLE_BATCHES and not is_by_element(bodies, node):
        what = "its data sets are arguments" if node is None else "of '%s' (%s)" % (node.name, node.op)
        raise NotInParts("it is not known which data set makes their batches: %s" % what)
    counted = next((name for name in after if body.nodes[name].op in _BY_POSITION), None)
    if counted is not None and node.op in _IN_ANOTHER_ORDER:
        raise NotInParts(
            "'%s' (%s) goes by positions of what '%s' (%s) gives, which differ between workers"
            % (counted, body.nodes[counted].op, node.name, node.op)
        )
    return [each for one in inputs for each in _batches(bodies, body, one, after + (node.name,))]


def _part(body, node, mesh, after):
    position = data_ops.BATCHES[node.op]
    if position is None:
        position = 1 + len(node.attr["Targuments"].list.type)
    what = "'%s' (%s)" % (node.name, node.op)
    if not mesh.split and _has_fixed_size(node):
        raise NotInParts("the graph knows the size of the batches of %s" % what)
    constant = data_ops.behind_identities(body, node.input[position])
    value = constant_value(constant.attr["value"].tensor) if constant is not None and constant.op == "Const" else None
    if value is None:
        raise NotInParts("the size of the batches of %s is no constant" % what)
    size, parts = int(value), mesh.pipelines_of_copy if mesh.split else mesh.num_shards
    if size % parts:
        whom = "workers" if mesh.split else "devices"
        raise NotInParts("%d rows, the batch of %s, do not divide over %d %s" % (size, what, parts, whom))
    return BatchPart(body.name, node.name, position, size // mesh.pipelines_of_copy, after)


def _has_fixed_size(node):
    shapes = [shape for shape in node.attr["output_shapes"].list.shape if not shape.unknown_rank and shape.dim]
    return any(shape.dim[0].size >= 0 for shape in shapes)
