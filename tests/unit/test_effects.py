"""The table of what operation types do: complete for the TensorFlow line that runs, each type in one kind."""

import glob
import os

import pytest
import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.rules import effects


@pytest.fixture(scope="module", autouse=True)
def operations_of_contrib():
    """TensorFlow 1.15 knows an operation of `tf.contrib` once the library that holds it was loaded, and not before."""
    for library in glob.glob(os.path.join(tf.sysconfig.get_lib(), "contrib", "**", "_*.so"), recursive=True):
        tf.load_op_library(library)


def test_every_stateful_operation_of_tensorflow_has_a_kind():
    stateful = [
        name for name, op_def in tf_compat.op_defs().items() if op_def.is_stateful and not name.startswith("Epl")
    ]
    assert len(stateful) > 400
    assert [name for name in stateful if effects.kind_of(name) is None] == []


def test_every_type_of_the_table_is_one_of_tensorflows():
    """A slip of the pen in the table would leave the type that was meant in no table."""
    only_tf1 = {"BigQueryReader", "Rpc", "TryRpc", "BytesInUse", "BytesLimit", "MaxBytesInUse", "BipartiteMatch"}
    only_tf1 |= {"SkipGramGenerateCandidates", "BigtableClient", "BigtableTable", "DatasetToBigtable"}
    known = set(tf_compat.op_defs())
    table = {op for op in effects.of_kind(*effects.KINDS) if not op.startswith("Epl")}
    if tf_compat.line() == "tf2":
        assert table - known == only_tf1
    else:
        assert only_tf1 <= known and len(table & known) > 250


@pytest.mark.parametrize(
    "op, kind",
    [
        ("StatelessRandomUniformV2", effects.KEYED),
        ("StatefulUniform", effects.DRAWN),
        ("RandomGamma", effects.SEEDED),
        ("CudnnRNNV3", effects.SEEDED),
        ("RecordInput", effects.SEEDED),
        ("ResourceSparseApplyAdagradV2", effects.WRITE),
        ("ScatterNdMax", effects.WRITE),
        ("ParallelInterleaveDatasetV4", effects.DATA_SET),
        ("GrowTreeV4", effects.REFUSED),
        ("StatsAccumulatorScalarAdd", effects.REFUSED),
        ("EnqueueTPUEmbeddingBatch", effects.REFUSED),
        ("MatMul", None),
        ("MyAssign", None),
    ],
)
def test_kinds(op, kind):
    assert effects.kind_of(op) == kind


def test_what_is_refused_has_a_reason():
    assert effects.reason("BoostedTreesPredict") == "it keeps trees that copies of a model cannot have in common"
    refused = [name for name in tf_compat.op_defs() if effects.kind_of(name) == effects.REFUSED]
    assert refused and all(effects.reason(name) for name in refused)


def test_random_types_are_found_by_their_names():
    """Whatever TensorFlow calls random is in the table of random types, or is told here to be none."""
    pure = {"RandomGammaGrad", "RandomIndexShuffle"}  # a derivative; a permutation that is asked for one place of it
    named = {op for op in tf_compat.op_defs() if op.startswith(("Random", "Stateless", "Stateful"))}
    calls = {"StatefulPartitionedCall", "StatelessCase", "StatelessIf", "StatelessWhile"}
    seeds = {op for op in named if op.startswith("StatelessRandomGet")}
    data = {op for op in named if "Dataset" in op or "Queue" in op}
    assert named - effects.RANDOM == (pure & named) | (calls & named) | seeds | data
