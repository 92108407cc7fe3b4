"""io.autotune: which numbers of the program's data sets TensorFlow chooses."""

import pytest
import tensorflow.compat.v1 as tf

from tests.helpers import planning


def numbers(program):
    """The constants that data sets of the graph and of its functions take, by the type of what takes them."""
    bodies = [list(program.graph.nodes.values())] + [list(f.node_def) for f in program.graph.library.function]
    found = {}
    for body in bodies:
        nodes = {node.name: node for node in body}
        for node in body:
            if node.op.endswith(("Dataset", "DatasetV2", "DatasetV3", "DatasetV4")):
                taken = [nodes.get(text.split(":")[0]) for text in node.input]
                values = [tf.make_ndarray(n.attr["value"].tensor) for n in taken if n is not None and n.op == "Const"]
                found[node.op.split("Dataset")[0]] = [int(value) for value in values if value.ndim == 0]
    return found


@pytest.mark.parametrize("one_shot", [False, True])
def test_parallel_calls_and_buffers(one_shot):
    with planning.capture() as graph:
        data = tf.data.Dataset.from_tensors(tf.ones([4, 3])).map(lambda x: x * 2.0, num_parallel_calls=3)
        data = data.interleave(tf.data.Dataset.from_tensors, 5, 6, num_parallel_calls=4).repeat(7).prefetch(8)
        make = tf.data.make_one_shot_iterator if one_shot else tf.data.make_initializable_iterator
        planning.sgd(planning.layers(x=make(data).get_next() @ tf.ones([3, 4])))
    want = numbers(planning.compiled(graph))
    got = numbers(planning.compiled(graph, io__autotune=True))
    assert (want["ParallelMap"], want["Prefetch"], want["ParallelInterleave"][-1]) == ([3], [8], 4)
    assert (got["ParallelMap"], got["Prefetch"], got["ParallelInterleave"][-1]) == ([-1], [-1], -1)
    assert got["Repeat"] == want["Repeat"] == [7]
    assert got["ParallelInterleave"][:2] == [5, 6]
