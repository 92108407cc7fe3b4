"""The operations that divide lists, and those that give tensors, strings and scalars a form for collectives."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from epl.communicators.library import load
from epl.graph.node_defs import Type, make_node
from epl.passes.vectors import padded, parts


def run(build, *values):
    with tf.Graph().as_default(), tf.Session() as session:
        placeholders = [tf.placeholder(tf.as_dtype(np.asarray(value).dtype), None) for value in values]
        return session.run(build(*placeholders), dict(zip(placeholders, values)))


def shares(rows, count, rule):
    """What each of `count` workers gets of two lists that belong together."""
    names = np.array(["file %d" % row for row in range(rows)], object)
    pairs = np.arange(2 * rows).reshape([rows, 2])

    def build(*lists):
        return [load().epl_list_share(lists, index=i, num_shares=count, rule=rule, what="x") for i in range(count)]

    return run(build, names, pairs)


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 7), per_share=st.integers(1, 5), left_over=st.integers(0, 6))
def test_shares_are_disjoint_and_as_large_as_the_rule_says(count, per_share, left_over):
    rows = count * per_share + left_over % count
    for rule, taken in (("unbalanced", rows), ("drop", count * per_share)):
        found = shares(rows, count, rule)
        numbers = [[int(name.split()[1]) for name in names] for names, _ in found]
        assert sorted(sum(numbers, [])) == list(range(taken))
        sizes = [len(share) for share in numbers]
        assert max(sizes) - min(sizes) <= (rule == "unbalanced") and sizes == sorted(sizes, reverse=True)
        for share, (_, pairs) in zip(numbers, found):
            assert share == sorted(share) and pairs.tolist() == [[2 * n, 2 * n + 1] for n in share]


@pytest.mark.parametrize("rows, count, text", [
    (7, 3, r"7 files, which do not divide evenly over 3 workers \(7 = 3 \* 2 \+ 1\).*leave out the last 1"),
    (2, 3, "2 files for 3 workers, so worker 2 would have no data"),
    (1, 3, "1 file for 3 workers, so worker 1 and those after it would have no data"),
    (0, 2, "0 files for 2 workers"),
])  # fmt: skip
def test_what_does_not_divide(rows, count, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        shares(rows, count, "even")


def test_lists_of_different_lengths():
    def build(*lists):
        return load().epl_list_share(lists, index=0, num_shares=1, rule="even", what="names and labels")

    with pytest.raises(tf.errors.InvalidArgumentError, match="'names and labels' has lists of 2 and of 3 entries"):
        run(build, np.zeros(2), np.zeros(3))


def test_a_scalar_is_a_list_of_one():
    assert run(lambda x: load().epl_list_share([x], index=0, num_shares=1, rule="even", what="x"), 5)[0].tolist() == [5]


@pytest.mark.parametrize("parts", [
    [["a", "", "long " * 50]],
    [["a"], [], ["b", "c"]],
    [[["a", "b"]], [["c", "d"], ["e", "f"]]],
    ["scalar", "another"],
    [[], []],
])  # fmt: skip
def test_strings_come_out_of_packs_as_they_went_in(parts):
    arrays = [np.array(part, object) for part in parts]
    packs = [run(lambda x: load().epl_pack_strings(x), array) for array in arrays]
    got = run(lambda x: load().epl_unpack_strings(x, what="x"), np.concatenate(packs))
    want = np.concatenate([np.atleast_1d(array) for array in arrays])
    assert got.shape == want.shape and [text.decode() for text in got.ravel()] == want.ravel().tolist()


def test_packs_that_do_not_fit_or_are_broken():
    one = run(lambda x: load().epl_pack_strings(x), np.array([["a", "b"]], object))
    other = run(lambda x: load().epl_pack_strings(x), np.array([["c"]], object))
    with pytest.raises(tf.errors.InvalidArgumentError, match="'x': strings of shape .* cannot be concatenated"):
        run(lambda x: load().epl_unpack_strings(x, what="x"), np.concatenate([one, other]))
    for broken in (one[:-1], one[:12], np.zeros([0], np.uint8), np.full([40], 255, np.uint8)):
        with pytest.raises(tf.errors.DataLossError, match="not what EplPackStrings has made"):
            run(lambda x: load().epl_unpack_strings(x, what="x"), broken)


@pytest.mark.parametrize("value", [5, [1, 2], [[1], [2]], "text"])
def test_rows(value):
    array = np.array(value, object) if isinstance(value, str) else np.array(value)
    got = run(lambda x: load().epl_rows(x), array)
    assert got.shape == np.atleast_1d(array).shape and got.ravel()[0] in (array.ravel()[0], b"text")


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=5),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
)
def test_tensors_come_out_of_a_vector_as_they_went_in(shapes, dtype):
    load()
    tensors = [np.random.RandomState(place).normal(size=shape).astype(dtype) for place, shape in enumerate(shapes)]
    nodes, number = {}, Type(tf.as_dtype(dtype).as_datatype_enum)

    def add(edit, node):
        edit[node.name] = node
        return node.name

    for place, tensor in enumerate(tensors):
        value = add(nodes, make_node("Const", "x_%d" % place, dtype=number))
        nodes[value].attr["value"].tensor.CopyFrom(tf.make_tensor_proto(tensor.ravel()))
    sizes = [tensor.size for tensor in tensors]
    vectors = padded(nodes, "of", list(nodes), sizes, number, "", add)
    joined = make_node("EplAllGather", "joined", vectors, R=len(vectors), T=number, workers=1)
    found = parts(nodes, "parts", add(nodes, joined), shapes, number, "", add)
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.import_graph_def(tf.GraphDef(node=nodes.values()), name="")
        outputs = [graph.get_tensor_by_name(name if ":" in name else name + ":0") for name in found]
        assert [output.shape.as_list() for output in outputs] == shapes
        for got, want in zip(session.run(outputs), tensors):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("size, start, shape, text", [
    (40, 16, [25], "part 0 is of elements 16 to 41, and the vector has 40"),
    (40, -16, [2], "part 0 is of elements -16 to -14"),
    (40, 1, [2, 2], "part 0 begins at element 1, where TensorFlow lets no tensor begin"),
    ((2, 20), 0, [2], "has 2 dimensions instead of 1"),
])  # fmt: skip
def test_what_is_no_part_of_a_vector(size, start, shape, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        run(lambda x: load().epl_parts(x, N=1, starts=[start], shapes=[shape]), np.zeros(size))
