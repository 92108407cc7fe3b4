"""Small functions of the partition by themselves, on graphs of a few nodes."""

import pytest
import tensorflow.compat.v1 as tf

from epl.capture.record import make_program
from epl.graph.index import NodeInput
from epl.partition import checkpoints, sparse_batches, table
from epl.partition.facts import Facts
from epl.program.placement import WHOLE, sharded
from tests.helpers.planning import capture

pytestmark = pytest.mark.either_line


def facts_of(graph):
    program = make_program(graph)
    return Facts(program.graph, program.spec_of)


class Placed(object):
    """Choices that are given: the placement of each node's output."""

    def __init__(self, **placements):
        self._placements = placements

    def of(self, tensor):
        return self._placements[tensor.node]


def test_shards_save_their_parts_of_what_is_large_and_divided():
    rows = checkpoints.LEAST_BYTES // 4 // 8
    shapes = {"divided": [rows, 8], "whole": [rows, 8], "few": [rows - 1, 8], "unknown": [None, 8], "slice": [rows, 8]}
    with capture() as graph:
        tensors = [tf.placeholder(tf.float32, shape, name=name) for name, shape in shapes.items()]
        slices = ["", "", "", "", "%d 8 0,%d:-" % (2 * rows, rows)]
        tf.raw_ops.SaveV2(prefix="p", tensor_names=list(shapes), shape_and_slices=slices, tensors=tensors, name="save")
    placed = Placed(**dict(dict.fromkeys(shapes, sharded(0)), whole=WHOLE))
    facts = facts_of(graph)
    found = checkpoints.saved_by_shard(facts, placed, facts.graph.nodes["save"])
    assert [facts.inputs("save")[i].node for i in sorted(found)] == ["divided"]
    assert not checkpoints.saved_by_shard(facts, placed, facts.graph.nodes["divided"])


SLICES = {  # begin, end, strides; whether all rows are there, without masks
    "to_the_end": ((0, 1), (4, 3), (1, 1), True),
    "to_beyond_the_end": ((0, 0), (9, 5), (1, 1), True),
    "every_other": ((0, 1), (4, 3), (2, 1), False),
    "before_the_end": ((0, 0), (3, 5), (1, 1), False),
    "behind_the_beginning": ((1, 0), (4, 5), (1, 1), False),
    "of_rows_alone": ((0,), (4,), (1,), True),
}


@pytest.mark.parametrize("masks", [{}, {"begin_mask": 1}, {"end_mask": 1}, {"shrink_axis_mask": 2}])
@pytest.mark.parametrize("name", sorted(SLICES))
def test_what_a_slice_leaves_whole_its_gradient_does_too(name, masks):
    begin, end, strides, is_whole = SLICES[name]
    with capture() as graph:
        x = tf.placeholder(tf.float32, [4, 5])
        part = tf.strided_slice(x, begin, end, strides, name="part", **masks)
        tf.raw_ops.StridedSliceGrad(
            shape=[4, 5], begin=begin, end=end, strides=strides, dy=part, name="gradient", **masks
        )
    facts = facts_of(graph)
    forward, backward = (
        table.notation_of(facts.graph.nodes[each], facts.inputs(each), facts) for each in ("part", "gradient")
    )
    whole, part = forward.text.replace(",*", "").split("->")
    assert backward.text.replace("*,", "") == "%s->%s" % (part, whole)
    is_whole |= name == "before_the_end" and "end_mask" in masks
    is_whole |= name == "behind_the_beginning" and "begin_mask" in masks
    assert (whole[0] != "-") == is_whole


def test_nothing_is_a_size_too():
    with capture() as graph:
        tf.placeholder(tf.float32, [0, 3], name="none")
        tf.placeholder(tf.float32, [None, 3], name="some")
        tf.placeholder(tf.float32, name="any")
    facts = facts_of(graph)
    assert [facts.shape(NodeInput(name, 0)) for name in ("none", "some", "any")] == [(0, 3), (None, 3), None]


@pytest.mark.parametrize("select", [tf.raw_ops.Select, tf.raw_ops.SelectV2])
def test_lists_of_entries_are_made_of_lists(select):
    """Of what is chosen entry by entry both sides are lists, and of a table's results its keys."""
    with capture() as graph:
        entries = tf.placeholder(tf.int64, [None, 2], name="entries")
        known, others = (tf.placeholder(tf.int64, [None], name=name) for name in ("known", "others"))
        chosen = tf.placeholder(tf.bool, [None], name="chosen")
        if select is tf.raw_ops.Select:
            values = select(condition=chosen, x=known, y=others)
        else:
            values = select(condition=chosen, t=known, e=others)
        shape = tf.placeholder(tf.int64, [2], name="shape")
        tf.raw_ops.SparseFillEmptyRows(
            indices=entries, values=values, dense_shape=shape, default_value=tf.constant(0, tf.int64), name="filled"
        )
    found = {tensor.node for tensor in sparse_batches.lists_before(facts_of(graph), ["filled"])}
    assert {"entries", "known", "others", "shape"} <= found and "chosen" not in found
