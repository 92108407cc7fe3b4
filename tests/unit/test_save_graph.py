"""What is taken from a session for a checkpoint that is written beside training, and what writes it."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.errors import UnsupportedError
from epl.graph.index import Graph
from epl.session import save_graph


def saved(dtype=None, version=tf.train.SaverDef.V2):
    """(Graph, fetch) of a program with two variables that a Saver saves, after an operation that is to run first."""
    with tf.Graph().as_default() as graph:
        for name in "ab":
            tf.get_variable(name, [2], use_resource=False)
        saver = tf.train.Saver(sharded=True, write_version=version)
        graph_def = graph.as_graph_def()
    for node in graph_def.node:
        if node.op == "SaveV2":
            node.input.append("^a/Assign")
            if dtype is not None:
                node.attr["dtypes"].list.type[1] = dtype.as_datatype_enum
    return Graph.from_graph_def(graph_def), saver.saver_def.save_tensor_name


def test_the_cut_is_where_tensors_are_taken():
    cut = save_graph.cut_of(*saved())
    assert list(cut.taken) == ["a", "b"] and cut.waits == ("a/Assign",)
    nodes = {node.name: node for node in cut.graph_def.node}
    assert "MergeV2Checkpoints" in {node.op for node in nodes.values()} and not {"a", "b", "a/Assign"} & set(nodes)
    (save,) = (node for node in nodes.values() if node.op == "SaveV2")
    assert save.input[3:] == list(cut.taken.values()) and all(
        nodes[name].op == "Placeholder" for name in save.input[3:]
    )


def test_what_has_no_value_outside_of_its_session_is_refused():
    with pytest.raises(UnsupportedError, match="cannot save 'b', which is a variant and has no value outside"):
        save_graph.cut_of(*saved(tf.variant))


def test_other_operations_that_write_are_refused():
    with pytest.raises(UnsupportedError, match=r"of which '.*' \(SaveSlices\) is a part: it writes what SaveV2"):
        save_graph.cut_of(*saved(version=tf.train.SaverDef.V1))


def test_copies_lie_in_the_memory_of_those_before():
    value = np.arange(6.0).reshape(2, 3)
    first = save_graph._copied(value, None)
    assert first.ctypes.data % save_graph._ALIGNED == 0 and not np.shares_memory(first, value)
    second = save_graph._copied(value + 1, first)
    assert second is first and second.tolist() == (value + 1).tolist()
    assert save_graph._copied(np.zeros(2), first) is not first
    texts = np.array([b"one", b"another"], object)
    assert save_graph._copied(texts, None).tolist() == texts.tolist()
