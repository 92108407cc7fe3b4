"""What operation types do besides computing outputs from inputs, as far as it matters for copying a model.

One table gives each such type its kind. A type that is in no table, and of which TensorFlow says that it keeps no state
(`OpDef.is_stateful`), is pure; one that keeps some is refused where a model with it would be copied
(epl.plan.facts.unknown).
"""

import functools
import re

# Kinds. Each operation type has one.
VARIABLE = "variable"  # holds a variable; every copy of the model in a device of its own has one
FED = "fed"  # stands for what the user feeds
WRITE = "write"  # changes a variable, its first input
READ = "read"  # tells what a variable, a resource or a file holds and changes nothing
SEEDED = "random by attributes"  # draws numbers, from the seeds among its attributes
KEYED = "random by an input"  # draws numbers, from a seed among its inputs: the same ones for the same seed
DRAWN = "random by a variable"  # draws numbers, from the variable that is its first input, and moves that on
SOURCE = "source"  # each run gives the next piece of data, so every copy of the model needs its own
RESOURCE = "resource"  # all copies of the model in a worker share what it makes (which lives on the host)
EFFECT = "effect"  # changes a shared resource, so one run is one for all copies
RUN = "run"  # its state belongs to one run of the session, so copies have their own (stacks, arrays of tensors)
IMPURE = "impure"  # its result does not follow from its inputs: it may differ from copy to copy
COLLECTIVE = "collective"  # exchanges data with other workers; users build them with epl.ops
SUMMARY = "summary"  # makes the text that an event file gets of a tensor
MERGED_SUMMARY = "merged summary"
SUMMARY_WRITE = "summary write"  # writes to an event file itself, and has no result
SUMMARY_WRITER = "summary writer"  # opens, flushes and closes event files
FILE_WRITE = "file write"
DATA_SET = "data set"  # describes data that an iterator, which copies share, goes through
CALL = "call"  # does what the functions do that it calls
PURE = "pure"  # TensorFlow counts it among those that keep state, but the result follows from the inputs
REFUSED = "refused"  # cannot be copied; `reason` says why

_TYPES = {
    VARIABLE: "Variable VariableV2 VarHandleOp",
    FED: "Placeholder PlaceholderV2 PlaceholderWithDefault",
    READ: """
        ReadVariableOp ResourceGather ResourceGatherNd VariableShape VarIsInitializedOp IsVariableInitialized
        IsResourceHandleRefCounting MakeWeakResourceHandle DisableCopyOnRead
        LookupTableFind LookupTableFindV2 LookupTableSize LookupTableSizeV2 LookupTableExport LookupTableExportV2
        QueueSize QueueSizeV2 QueueIsClosed QueueIsClosedV2 StagePeek StageSize MapPeek MapSize MapIncompleteSize
        OrderedMapPeek OrderedMapSize OrderedMapIncompleteSize IteratorToStringHandle IteratorGetDevice
        ExperimentalIteratorGetDevice MultiDeviceIteratorToStringHandle SerializeIterator
        ReaderNumRecordsProduced ReaderNumRecordsProducedV2 ReaderNumWorkUnitsCompleted ReaderNumWorkUnitsCompletedV2
        ReaderSerializeState ReaderSerializeStateV2 ExperimentalStatsAggregatorSummary StatsAggregatorSummary
        Restore RestoreSlice RestoreV2 LoadAndRemapMatrix ReadFile MutexLock ConsumeMutexLock
        TakeManySparseFromTensorsMap BytesInUse BytesLimit MaxBytesInUse
    """,
    SEEDED: """
        RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal ParameterizedTruncatedNormal RandomShuffle
        RandomGamma RandomPoisson RandomPoissonV2 Multinomial RandomCrop SampleDistortedBoundingBox
        SampleDistortedBoundingBoxV2 FixedUnigramCandidateSampler LearnedUnigramCandidateSampler
        LogUniformCandidateSampler UniformCandidateSampler AllCandidateSampler ThreadUnsafeUnigramCandidateSampler
        RecordInput CudnnRNN CudnnRNNV2 CudnnRNNV3 CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3
        SkipGramGenerateCandidates
    """,
    KEYED: """
        StatelessRandomUniform StatelessRandomUniformV2 StatelessRandomUniformInt StatelessRandomUniformIntV2
        StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomNormal StatelessRandomNormalV2
        StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessParameterizedTruncatedNormal
        StatelessRandomBinomial StatelessRandomPoisson StatelessRandomGammaV2 StatelessRandomGammaV3
        StatelessMultinomial StatelessSampleDistortedBoundingBox StatelessShuffle
    """,
    DRAWN: """
        StatefulUniform StatefulUniformInt StatefulUniformFullInt StatefulStandardNormal StatefulStandardNormalV2
        StatefulTruncatedNormal StatefulRandomBinomial RngSkip RngReadAndSkip
    """,
    SOURCE: """
        IteratorGetNext IteratorGetNextSync IteratorGetNextAsOptional OptionalGetValue
        MultiDeviceIteratorGetNextFromShard
        QueueDequeue QueueDequeueV2 QueueDequeueMany QueueDequeueManyV2 QueueDequeueUpTo QueueDequeueUpToV2
        ReaderRead ReaderReadV2 ReaderReadUpTo ReaderReadUpToV2
        Unstage MapUnstage MapUnstageNoKey OrderedMapUnstage OrderedMapUnstageNoKey
        BarrierTakeMany Skipgram
    """,
    RESOURCE: """
        Iterator IteratorV2 OneShotIterator IteratorFromStringHandle IteratorFromStringHandleV2 AnonymousIterator
        AnonymousIteratorV2 AnonymousIteratorV3 MultiDeviceIterator AnonymousMultiDeviceIterator
        AnonymousMultiDeviceIteratorV3 MultiDeviceIteratorFromStringHandle
        HashTable HashTableV2 MutableHashTable MutableHashTableV2 MutableHashTableOfTensors
        MutableHashTableOfTensorsV2 MutableDenseHashTable MutableDenseHashTableV2 AnonymousHashTable
        AnonymousMutableHashTable AnonymousMutableHashTableOfTensors AnonymousMutableDenseHashTable
        FIFOQueue FIFOQueueV2 RandomShuffleQueue RandomShuffleQueueV2 PaddingFIFOQueue PaddingFIFOQueueV2
        PriorityQueue PriorityQueueV2 FakeQueue Barrier
        TFRecordReader TFRecordReaderV2 TextLineReader TextLineReaderV2 WholeFileReader WholeFileReaderV2
        FixedLengthRecordReader FixedLengthRecordReaderV2 IdentityReader IdentityReaderV2 LMDBReader BigQueryReader
        SummaryWriter MutexV2 AnonymousMemoryCache DummyMemoryCache AnonymousRandomSeedGenerator
        AnonymousSeedGenerator DummySeedGenerator DummyIterationCounter ExperimentalStatsAggregatorHandle
        StatsAggregatorHandle StatsAggregatorHandleV2 ExperimentalThreadPoolHandle ThreadPoolHandle
        BigtableClient BigtableTable
    """,
    EFFECT: """
        MakeIterator DeserializeIterator MultiDeviceIteratorInit DeleteIterator DeleteMultiDeviceIterator
        DeleteMemoryCache DeleteRandomSeedGenerator DeleteSeedGenerator
        InitializeTable InitializeTableV2 InitializeTableFromTextFile InitializeTableFromTextFileV2
        InitializeTableFromDataset LookupTableInsert LookupTableInsertV2 LookupTableImport LookupTableImportV2
        LookupTableRemoveV2
        QueueEnqueue QueueEnqueueV2 QueueEnqueueMany QueueEnqueueManyV2 QueueClose QueueCloseV2
        Stage StageClear MapStage MapClear OrderedMapStage OrderedMapClear BarrierInsertMany BarrierClose
        ReaderReset ReaderResetV2 ReaderRestoreState ReaderRestoreStateV2
        AddSparseToTensorsMap AddManySparseToTensorsMap StatsAggregatorSetSummaryWriter FileSystemSetConfiguration
    """,
    RUN: """
        Stack StackV2 StackPush StackPushV2 StackPop StackPopV2 StackClose StackCloseV2
        TensorArray TensorArrayV2 TensorArrayV3 TensorArrayGrad TensorArrayGradV2 TensorArrayGradV3
        TensorArrayGradWithShape TensorArrayWriteV3 TensorArrayReadV3 TensorArrayGatherV3 TensorArrayScatterV3
        TensorArrayConcatV3 TensorArraySplitV3 TensorArraySizeV3 TensorArrayCloseV3
        TemporaryVariable DestroyTemporaryVariable
    """,
    IMPURE: """
        PyFunc EagerPyFunc Timestamp NonDeterministicInts Rpc TryRpc DatasetToSingleElement ReduceDataset
    """,
    COLLECTIVE: """
        EplAllGather EplAllReduce EplAllToAll EplBarrier EplBroadcast EplRecv EplReduce EplReduceScatter EplSend
    """,
    SUMMARY: """
        ScalarSummary HistogramSummary TensorSummary TensorSummaryV2 ImageSummary AudioSummary AudioSummaryV2
    """,
    MERGED_SUMMARY: "MergeSummary",
    SUMMARY_WRITE: """
        WriteScalarSummary WriteHistogramSummary WriteImageSummary WriteAudioSummary WriteSummary WriteRawProtoSummary
        WriteGraphSummary ImportEvent
    """,
    SUMMARY_WRITER: "CreateSummaryFileWriter CreateSummaryDbWriter FlushSummaryWriter CloseSummaryWriter",
    FILE_WRITE: """
        Save SaveSlices SaveV2 MergeV2Checkpoints WriteFile DatasetToTFRecord ExperimentalDatasetToTFRecord SaveDataset
        SaveDatasetV2 DistributedSave DatasetToBigtable
    """,
    CALL: "If Case While RiscWhile StatefulPartitionedCall RemoteCall",
    PURE: """
        Assert Print PrintV2 CheckNumerics CheckNumericsV2 GuaranteeConst Empty DeepCopy TensorListResize
        GraphDefVersion DeviceIndex IsTensorFloat32Enabled StatelessRandomGetAlg SleepOp SleepIdentityOp SyncDevice
        DevicePlacementOp BipartiteMatch
    """,
}

# Kinds of whole families of types, and why these are refused; asked where the table does not have a type.
_WRITES = (
    r"Assign(Add|Sub)?(VariableOp)?"
    r"|(Resource)?(Sparse)?Apply[A-Z]\w*"
    r"|(Resource)?Scatter(Nd)?(Add|Sub|Update|Mul|Div|Min|Max)"
    r"|(Resource)?CountUpTo|ResourceStridedSliceAssign|StridedSliceAssign|ZeroVarInitializer"
)
_TREES = (
    r"\w*(BoostedTrees|TreeEnsemble|GradientTrees|DecisionTree|FertileStats|StatsAccumulator|QuantileAccumulator)\w*"
    r"|QuantileStream\w+|TensorForest\w+|FeatureUsageCounts|CreateTreeVariable|(Grow|Finalize|Traverse)Tree(V\d+)?"
    r"|Tree(Size|Serialize|Deserialize|IsInitializedOp|PredictionsV\d+)|(ProcessInput|UpdateModel)V\d+"
)
# Of libraries: TFRA>CuckooHashTableOfTensors, KvVariable, ... Those of TensorFlow itself stand in the table one by one.
_TABLES = r"(\w+>)?\w*(HashTable|KvVariable|KvResource|EmbeddingVariable|DynamicEmbedding)\w*"
_INTERNAL = "TensorFlow makes it by itself while it runs a graph"
_FAMILIES = tuple(
    (re.compile("(%s)$" % pattern), kind, reason)
    for pattern, kind, reason in (
        (_WRITES, WRITE, ""),
        (r"\w*Dataset(V\d+)?", DATA_SET, ""),
        (r"_\w+|Send|Recv", REFUSED, _INTERNAL),
        (
            r"\w*TPU\w*|(In|Out)feed\w+|WorkerHeartbeat|AllToAll|CollectivePermute|CrossReplicaSum"
            r"|ComputeDedupDataTupleMask|DTensorRestoreV2",
            REFUSED,
            "it is for TPUs",
        ),
        (r"Xla\w+|\w+Xla(Concat|Split)ND", REFUSED, "TensorFlow's compiler (XLA) makes it by itself"),
        (r"(Nccl|Collective)\w+", REFUSED, "it exchanges data with other devices; use epl.ops"),
        (r"Epl\w+", REFUSED, "it is one that EPL adds by itself"),
        (
            _TABLES,
            REFUSED,
            "it is a table of a library, whose rows training adds and changes, and which each copy of the model would "
            "have with rows of its own; a variable for as many rows as there can be (tf.get_variable, tf.nn."
            "embedding_lookup) is one for all copies",
        ),
        (_TREES, REFUSED, "it keeps trees that copies of a model cannot have in common"),
        (
            r"(Resource|Sparse)?(Conditional)?Accumulator\w*",
            REFUSED,
            "it gathers gradients of workers that parameter servers have; set pipeline.num_micro_batch instead",
        ),
        (r"(Get|Delete)Session(Handle|HandleV2|Tensor)", REFUSED, "it keeps tensors in the session of one process"),
        (r"\w*TRT\w*|CustomAggregator|GetCalibrationDataOp", REFUSED, "it prepares a model for inference"),
        (r"Debug\w+|DumpTensor", REFUSED, "TensorFlow's debugger adds it, which runs one session's own graph"),
        (r"(Delete)?Rpc\w+", REFUSED, "it keeps a connection that copies of a model cannot have in common"),
        (r"NegTrain", REFUSED, "it trains two variables by itself; use tf.nn.nce_loss and an optimizer"),
        (r"DestroyResourceOp", REFUSED, "it ends a variable that other copies still use"),
        (
            r"(Stub)?Resource(Handle|Create|Initialized|Using)Op|RequiresOlderGraphVersion|TestAttr"
            r"|DtypeWithDefaultOp",
            REFUSED,
            "it is one of TensorFlow's own tests",
        ),
    )
)


def _kinds():
    found = {}
    for kind, types in _TYPES.items():
        for op in types.split():
            assert op not in found, "%s is both '%s' and '%s'" % (op, found.get(op), kind)
            found[op] = kind
    return found


_KIND_OF = _kinds()
KINDS = tuple(_TYPES)


@functools.lru_cache(maxsize=4096)  # the same few are asked for of every node
def kind_of(op):
    """The kind of an operation type, one of the above; None for a type that is in no table."""
    return _KIND_OF[op] if op in _KIND_OF else _family(op)[0]


def reason(op):
    """Why a type of the kind REFUSED is refused; "" for others."""
    return _family(op)[1]


def _family(op):
    return next(((kind, why) for pattern, kind, why in _FAMILIES if pattern.match(op)), (None, ""))


def of_kind(*kinds):
    """The types of some kinds, as far as they are in the table one by one."""
    return frozenset(op for op, kind in _KIND_OF.items() if kind in kinds)


def is_write(op):
    """True for operations that change a variable; their first input is the variable."""
    return kind_of(op) == WRITE


VARIABLES = of_kind(VARIABLE)
# Those of which other operations take the memory itself.
REFERENCE_VARIABLES = VARIABLES - {"VarHandleOp"}
# They tell whether a variable has a value.
TELL_INITIALIZED = frozenset(["VarIsInitializedOp", "IsVariableInitialized"])
# They read tensors from checkpoints.
RESTORES = frozenset(["RestoreV2", "Restore", "RestoreSlice"])
PLACEHOLDERS = of_kind(FED)
SOURCES = of_kind(SOURCE)
SHARED_RESOURCES = of_kind(RESOURCE)
SHARED_EFFECTS = of_kind(EFFECT)
RANDOM = of_kind(SEEDED, KEYED, DRAWN)
COLLECTIVES = of_kind(COLLECTIVE)
SUMMARIES = of_kind(SUMMARY)
MERGED_SUMMARIES = of_kind(MERGED_SUMMARY)
SUMMARY_WRITES = of_kind(SUMMARY_WRITE)
# They take one number; rows of all copies do not fit.
SCALAR_SUMMARIES = frozenset(["ScalarSummary", "WriteScalarSummary"])
SUMMARY_WRITERS = of_kind(SUMMARY_WRITER)
FILE_WRITES = of_kind(FILE_WRITE)
# They may give each copy of the model something else for the same inputs.
DIFFERING = of_kind(SOURCE, SEEDED, KEYED, DRAWN, IMPURE, COLLECTIVE) | frozenset(
    ["RandomDataset", "RandomDatasetV2", "ExperimentalRandomDataset"]
)


# Where the seed, or the key that is made of one, is among the inputs of a type of the kind KEYED.
SEED_INPUT = {op: 1 for op in of_kind(KEYED)}
SEED_INPUT.update(StatelessMultinomial=2, StatelessSampleDistortedBoundingBox=3)

# Take a batch from a staging area, which the program fills.
STAGED = frozenset(["Unstage", "MapUnstage", "MapUnstageNoKey", "OrderedMapUnstage", "OrderedMapUnstageNoKey"])

# They hand a variable on into a loop or a branch. (An Identity of a reference variable gives its value.)
HANDS_ON = frozenset(["Identity", "Switch", "RefSwitch", "Enter", "RefEnter"])

ENTERS, EXITS = frozenset(["Enter", "RefEnter"]), frozenset(["Exit", "RefExit"])
SWITCHES, MERGES = frozenset(["Switch", "RefSwitch"]), frozenset(["Merge", "RefMerge"])
# What they give goes back to the start of a loop.
LOOP_EDGES = frozenset(["NextIteration", "RefNextIteration"])
CONTROL_FLOW_OPENS = ENTERS | SWITCHES
CONTROL_FLOW_CLOSES = EXITS | MERGES
# They hand a tensor on within a loop, into it and out of it.
LOOP_HANDS_ON = frozenset(["Identity", "Enter", "Exit", "Merge", "NextIteration", "Switch"])
# What a loop takes comes by these from outside.
ENTERED = frozenset(["Enter", "Identity"])

# Writes of the value at this position among their inputs.
ADDS = frozenset(["AssignAdd", "AssignSub", "AssignAddVariableOp", "AssignSubVariableOp"])
SETS = frozenset(["Assign", "AssignVariableOp"])
VALUE_INPUT = 1
# They add to some rows of a variable: (variable, indices, updates).
SCATTER_ADDS = frozenset(
    prefix + "Scatter" + kind for prefix in ("", "Resource") for kind in ("Add", "Sub", "NdAdd", "NdSub")
)
