"""What types of data sets do with positions: one table, from which follows where records may be divided over workers.

A worker's share of a data set is its elements i, i + n, i + 2n and so on. A share may be taken before an operation
instead of behind it where all workers together get the same from it (FREE), or even each the same (ALIGNED):

    records -> share -> filter       gives together what      records -> filter -> share      gives, but
    records -> share -> take(4)      gives 4 elements to each worker.

A type that is in no table is like `take`: the share is taken behind it, which is always right.
"""

# What the operation makes of its elements.
SOURCE = "makes elements"
SINGLE = "makes one element"
SAME = "gives each element as it is, in order"
EACH = "gives one for each element, in order"
SOME = "gives none, one or several for each element, in order"
KEPT = "keeps some elements, each by a function of it alone"
MIXED = "gives the elements in another order, or several times"
BATCH = "puts elements together that follow one another, as rows of a tensor"
UNBATCH = "gives the rows of tensors"
PAIR = "puts elements of the same position together"
CHOICE = "takes elements of several data sets in turn, as one of them says"
GROUPS = "puts elements with the same key together"
POSITION = "depends on positions"

_TYPES = {
    SOURCE: """
        BigtablePrefixKeyDataset BigtableRangeKeyDataset BigtableSampleKeyPairsDataset BigtableSampleKeysDataset
        BigtableScanDataset CSVDataset CSVDatasetV2 DataServiceDataset DataServiceDatasetV2
        DataServiceDatasetV3 DataServiceDatasetV4
        DatasetFromGraph ExperimentalCSVDataset ExperimentalLMDBDataset ExperimentalMatchingFilesDataset
        ExperimentalRandomDataset ExperimentalSqlDataset FixedLengthRecordDataset FixedLengthRecordDatasetV2
        GeneratorDataset LMDBDataset ListDataset LoadDataset MatchingFilesDataset RandomDataset RandomDatasetV2
        RangeDataset SnapshotChunkDataset SnapshotDatasetReader SnapshotNestedDatasetReader SparseTensorSliceDataset
        SqlDataset TFRecordDataset TFRecordDatasetV2 TensorSliceDataset TextLineDataset
    """,
    SINGLE: "TensorDataset",
    SAME: """
        BytesProducedStatsDataset ExperimentalBytesProducedStatsDataset ExperimentalLatencyStatsDataset
        ExperimentalMaxIntraOpParallelismDataset ExperimentalNonSerializableDataset
        ExperimentalPrivateThreadPoolDataset ExperimentalSetStatsAggregatorDataset ExperimentalSleepDataset
        ExperimentalThreadPoolDataset FinalizeDataset Identity LatencyStatsDataset MaxIntraOpParallelismDataset
        ModelDataset NonSerializableDataset OptimizeDataset OptimizeDatasetV2 OptionsDataset PrefetchDataset
        PrivateThreadPoolDataset SetStatsAggregatorDataset SleepDataset ThreadPoolDataset
        CacheDataset CacheDatasetV2
    """,
    EACH: """
        ExperimentalMapDataset ExperimentalParseExampleDataset MapDataset ParallelMapDataset ParallelMapDatasetV2
        ParseExampleDataset ParseExampleDatasetV2
    """,
    SOME: """
        BigtableLookupDataset ExperimentalIgnoreErrorsDataset ExperimentalParallelInterleaveDataset
        FlatMapDataset IgnoreErrorsDataset
        InterleaveDataset LegacyParallelInterleaveDatasetV2 ParallelInterleaveDataset ParallelInterleaveDatasetV2
        ParallelInterleaveDatasetV3 ParallelInterleaveDatasetV4
    """,
    KEPT: "FilterByLastComponentDataset FilterDataset ParallelFilterDataset SamplingDataset",
    MIXED: """
        ConcatenateDataset RepeatDataset ShuffleAndRepeatDataset ShuffleAndRepeatDatasetV2 ShuffleDataset
        ShuffleDatasetV2 ShuffleDatasetV3
    """,
    BATCH: """
        BatchDataset BatchDatasetV2 DenseToSparseBatchDataset ExperimentalDenseToSparseBatchDataset
        ExperimentalMapAndBatchDataset MapAndBatchDataset PaddedBatchDataset PaddedBatchDatasetV2 ParallelBatchDataset
    """,
    UNBATCH: "ExperimentalUnbatchDataset UnbatchDataset",
    PAIR: "ZipDataset",
    CHOICE: "DirectedInterleaveDataset ExperimentalDirectedInterleaveDataset",
    GROUPS: "ExperimentalGroupByWindowDataset GroupByWindowDataset",
    POSITION: """
        AssertCardinalityDataset AssertNextDataset AssertPrevDataset AutoShardDataset ChooseFastestBranchDataset
        ChooseFastestDataset ExperimentalAssertNextDataset ExperimentalAutoShardDataset
        ExperimentalChooseFastestDataset ExperimentalGroupByReducerDataset ExperimentalRebatchDataset
        ExperimentalScanDataset ExperimentalSlidingWindowDataset ExperimentalTakeWhileDataset
        ExperimentalUniqueDataset GroupByReducerDataset RebatchDataset RebatchDatasetV2 RewriteDataset SaveDatasetV2
        ScanDataset ShardDataset SkipDataset SlidingWindowDataset SnapshotDataset SnapshotDatasetV2 TakeDataset
        TakeWhileDataset UniqueDataset WindowDataset
    """,
}
_KIND_OF = {op: kind for kind, ops in _TYPES.items() for op in ops.split()}


TYPES = frozenset(_KIND_OF)


def kind_of(op):
    """The kind of a type, one of the above."""
    return _KIND_OF.get(op, POSITION)


def of_kind(*kinds):
    """The types of some kinds."""
    return frozenset(op for op, kind in _KIND_OF.items() if kind in kinds)


def num_data_sets(node):
    """How many of a node's inputs, its first ones, are the data sets whose elements it takes; others it hands on to
    functions."""
    if node.op in ("ZipDataset", "ChooseFastestDataset", "ExperimentalChooseFastestDataset"):
        return node.attr["N"].i
    if kind_of(node.op) == CHOICE:
        return 1 + node.attr["N"].i
    return 2 if node.op == "ConcatenateDataset" else 0 if kind_of(node.op) in (SOURCE, SINGLE) else 1


# Their files are read, and elements made, in an order of each worker's own, unless seeds at these inputs say otherwise.
SEEDS = {
    "ShuffleDataset": 2,
    "ShuffleDatasetV3": 2,
    "ShuffleAndRepeatDataset": 2,
    "ShuffleAndRepeatDatasetV2": 2,
    "SamplingDataset": 2,
    "RandomDataset": 0,
    "RandomDatasetV2": 0,
    "ExperimentalRandomDataset": 0,
}
# How often they give all elements; -1 for ever.
REPEATS = {"RepeatDataset": 1, "ShuffleAndRepeatDataset": 4, "ShuffleAndRepeatDatasetV2": 4}
