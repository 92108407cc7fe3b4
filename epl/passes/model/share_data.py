r"""Gives each worker its share of lists of file names, and of the records of data sets without files.

    names -> TensorSliceDataset      becomes      names -> EplListShare -> TensorSliceDataset
    RangeDataset -> Shuffle                       RangeDataset -> ShardDataset -> Shuffle

The nodes may stand in functions: a one-shot iterator has its whole pipeline in one.
"""

import collections

from epl.errors import UnsupportedError
from epl.graph.build import constant, make_node
from epl.graph.index import format_input, parse_input
from epl.passes.nodes import tagged
from epl.plan.names import PREFIX

_INT64 = 9
_STRING = 7
_RECORDS = frozenset(["TFRecordDataset", "TFRecordDatasetV2", "TextLineDataset"])


def share_data(program, plan):
    """Divides what plan.data says over the workers."""
    graph = program.graph
    data = plan.data
    if not data.lists and not data.records:
        return program
    edit = graph.editor()
    library, changed = type(graph.library)(), {}
    library.CopyFrom(graph.library)
    functions = {function.signature.name: function for function in library.function}
    for share in data.lists + data.records:
        target = changed.get(share.body)
        if target is None:
            target = _Function(functions[share.body]) if share.body else _Main(graph, edit, plan)
            changed[share.body] = target
        if hasattr(share, "positions"):
            _share_lists(target, plan, share)
        else:
            _share_records(target, plan, share)
    edit.set_library(library)
    return program.with_graph(edit.finish())


class _Main(object):
    """Adds nodes to the main graph."""

    def __init__(self, graph, edit, plan):
        self._graph = graph
        self._edit = edit
        self._device = plan.mesh.host_device

    def node(self, name):
        return self._edit.node(name)

    def add(self, node):
        node.device = self._device
        self._edit.add(node)

    def output(self, name, index, argument):
        del argument
        return format_input(name, index)

    def consumers(self, name):
        """(NodeDef, input position) of what takes the only output of a node."""
        return [
            (self._edit.node(consumer), position)
            for consumer, position in self._graph.consumers.get(name, ())
            if parse_input(self._graph.nodes[consumer].input[position]).index >= 0
        ]

    def replace_result(self, old, new):
        pass


class _Function(object):
    """Adds nodes to the body of a function."""

    def __init__(self, function):
        self._function = function
        self._nodes = collections.OrderedDict((node.name, node) for node in function.node_def)

    def node(self, name):
        return self._nodes[name]

    def add(self, node):
        self._function.node_def.add().CopyFrom(node)

    def output(self, name, index, argument):
        return "%s:%s:%d" % (name, argument, index)

    def consumers(self, name):
        return [
            (node, position)
            for node in self._function.node_def
            for position, text in enumerate(node.input)
            if text[0] != "^" and text.split(":")[0] == name
        ]

    def replace_result(self, old, new):
        """What the function returns of node `old` becomes `new`."""
        for key, text in self._function.ret.items():
            if text.split(":")[0] == old:
                self._function.ret[key] = new


def _share_lists(target, plan, share):
    node = target.node(share.node)
    name = "%s_files/%s" % (PREFIX, share.node)
    lists = make_node(
        "EplListShare",
        name,
        [node.input[position] for position in share.positions],
        index=plan.mesh.copies.index,
        num_shares=plan.mesh.copies.num_workers,
        rule=plan.data.rule,
        what=share.what,
    )
    lists.attr["T"].list.type.extend(share.dtypes)
    target.add(tagged(lists, "list_share"))
    for index, position in enumerate(share.positions):
        node.input[position] = target.output(name, index, "shares")
    # The shares have fewer rows than the lists, but for their names' sake shapes say only what holds for each element.


def _share_records(target, plan, share):
    node = target.node(share.node)
    name = "%s_records/%s" % (PREFIX, share.node)
    consumers = target.consumers(share.node)
    constants = []
    for what, value in (("num_shards", plan.mesh.copies.num_workers), ("index", plan.mesh.copies.index)):
        made = constant("%s/%s" % (name, what), value, _INT64)
        target.add(made)
        constants.append(target.output(made.name, 0, "output"))
    text = target.output(share.node, 0, "handle")
    shard = make_node("ShardDataset", name, [text] + constants)
    _copy_types(shard, node)
    target.add(tagged(shard, "record_share"))
    result = target.output(name, 0, "handle")
    for consumer, position in consumers:
        consumer.input[position] = result
    target.replace_result(share.node, result)


def _copy_types(shard, node):
    """The types and shapes of a data set's elements, as attributes of another."""
    if node.op in _RECORDS or node.op.startswith("FixedLengthRecordDataset"):
        shard.attr["output_types"].list.type.append(_STRING)
        shard.attr["output_shapes"].list.shape.add()
        return
    for key in ("output_types", "Toutput_types"):
        if key in node.attr and "output_shapes" in node.attr:
            shard.attr["output_types"].list.type.extend(node.attr[key].list.type)
            shard.attr["output_shapes"].CopyFrom(node.attr["output_shapes"])
            return
    raise UnsupportedError(
        "io.shard_dataset cannot divide the data set '%s' (%s), as it does not say what its elements are. Use the "
        "data set's shard() in the program." % (node.name, node.op)
    )
