r"""Lets TensorFlow choose how parallel the program's data sets are, and how much they prefetch (io.autotune).

    Prefetch(data, 2)   becomes   Prefetch(data, -1)

The nodes may stand in functions: a one-shot iterator has its whole pipeline in one.
"""

from epl.graph.node_defs import constant
from epl.graph.types import INT32, INT64
from epl.plan.facts.names import PREFIX

_AUTOTUNE = -1
# Which of their data inputs, counted from the end, is a number of parallel calls or the size of a buffer.
_LAST, _BEFORE_LAST = 1, 2
_TUNED = {
    "ParallelInterleaveDatasetV2": _LAST,
    "ParallelInterleaveDatasetV3": _LAST,
    "ParallelInterleaveDatasetV4": _LAST,
    "ParallelMapDataset": _LAST,
    "ParallelMapDatasetV2": _LAST,
    "PrefetchDataset": _LAST,
    "MapAndBatchDataset": _BEFORE_LAST,
    "ExperimentalMapAndBatchDataset": _BEFORE_LAST,
    "ParallelBatchDataset": _BEFORE_LAST,
}
_OF_INT32 = frozenset(["ParallelMapDataset"])


def autotune_data(program, plan):
    """Gives each such data set a constant that stands for TensorFlow's choice."""
    if not plan.io_autotune:
        return program
    graph = program.graph
    edit = graph.editor()
    for name in graph.find(_TUNED.__contains__):
        node = edit.node(name)
        node.input[_position(node)] = edit.add(_chosen(node, plan.mesh.host_device)).name
    library = type(graph.library)()
    library.CopyFrom(graph.library)
    for function in library.function:
        for node in [node for node in function.node_def if node.op in _TUNED]:
            made = _chosen(node, "")
            function.node_def.add().CopyFrom(made)
            node.input[_position(node)] = made.name + ":output:0"
    edit.set_library(library)
    return program.with_graph(edit.finish())


def _position(node):
    data = [position for position, text in enumerate(node.input) if text[0] != "^"]
    return data[-_TUNED[node.op]]


def _chosen(node, device):
    dtype = INT32 if node.op in _OF_INT32 else INT64
    return constant("%s_autotune/%s" % (PREFIX, node.name), _AUTOTUNE, dtype, device)
