"""What operation types do, as far as it matters for copying a model: tables, and nothing that needs TensorFlow."""

import functools
import re

VARIABLES = frozenset(["Variable", "VariableV2", "VarHandleOp"])
PLACEHOLDERS = frozenset(["Placeholder", "PlaceholderV2", "PlaceholderWithDefault"])

# Each run of one of these gives the next piece of data, so every copy of the model needs its own.
SOURCES = frozenset(
    [
        "IteratorGetNext",
        "IteratorGetNextSync",
        "IteratorGetNextAsOptional",
        "OptionalGetValue",
        "QueueDequeue",
        "QueueDequeueV2",
        "QueueDequeueMany",
        "QueueDequeueManyV2",
        "QueueDequeueUpTo",
        "QueueDequeueUpToV2",
        "ReaderRead",
        "ReaderReadV2",
        "ReaderReadUpTo",
        "ReaderReadUpToV2",
        "Unstage",
    ]
)

STAGED = frozenset(["Unstage", "MapUnstage", "MapUnstageNoKey", "OrderedMapUnstage", "OrderedMapUnstageNoKey"])

# What they make is shared by all copies of the model in a worker (and lives on the host).
SHARED_RESOURCES = frozenset(
    [
        "Iterator",
        "IteratorV2",
        "OneShotIterator",
        "IteratorFromStringHandle",
        "IteratorFromStringHandleV2",
        "AnonymousIterator",
        "AnonymousIteratorV2",
        "AnonymousIteratorV3",
        "MultiDeviceIterator",
        "HashTable",
        "HashTableV2",
        "MutableHashTable",
        "MutableHashTableV2",
        "MutableHashTableOfTensors",
        "MutableHashTableOfTensorsV2",
        "MutableDenseHashTable",
        "MutableDenseHashTableV2",
        "AnonymousHashTable",
        "FIFOQueue",
        "FIFOQueueV2",
        "RandomShuffleQueue",
        "RandomShuffleQueueV2",
        "PaddingFIFOQueue",
        "PaddingFIFOQueueV2",
        "PriorityQueue",
        "PriorityQueueV2",
        "Barrier",
        "TFRecordReader",
        "TFRecordReaderV2",
        "TextLineReader",
        "TextLineReaderV2",
        "WholeFileReader",
        "WholeFileReaderV2",
        "FixedLengthRecordReader",
        "FixedLengthRecordReaderV2",
        "IdentityReader",
        "IdentityReaderV2",
        "LMDBReader",
        "SummaryWriter",
        "MutexV2",
    ]
)

# They change a shared resource, so one run of them is one for all copies.
SHARED_EFFECTS = frozenset(
    [
        "MakeIterator",
        "InitializeTable",
        "InitializeTableV2",
        "InitializeTableFromTextFile",
        "InitializeTableFromTextFileV2",
        "InitializeTableFromDataset",
        "LookupTableInsert",
        "LookupTableInsertV2",
        "LookupTableImport",
        "LookupTableImportV2",
        "QueueEnqueue",
        "QueueEnqueueV2",
        "QueueEnqueueMany",
        "QueueEnqueueManyV2",
        "QueueClose",
        "QueueCloseV2",
    ]
)

RANDOM = frozenset(
    [
        "RandomUniform",
        "RandomUniformInt",
        "RandomStandardNormal",
        "TruncatedNormal",
        "ParameterizedTruncatedNormal",
        "RandomShuffle",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "Multinomial",
        "RandomCrop",
        "StatelessRandomUniform",
        "FixedUnigramCandidateSampler",
        "LearnedUnigramCandidateSampler",
        "LogUniformCandidateSampler",
        "UniformCandidateSampler",
        "AllCandidateSampler",
        "ThreadUnsafeUnigramCandidateSampler",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
    ]
)

# Collectives that users build with epl.ops.
COLLECTIVES = frozenset(
    [
        "EplAllGather",
        "EplAllReduce",
        "EplAllToAll",
        "EplBarrier",
        "EplBroadcast",
        "EplRecv",
        "EplReduce",
        "EplReduceScatter",
        "EplSend",
    ]
)

# Their result does not follow from their inputs: it may differ from copy to copy.
IMPURE = frozenset(["PyFunc", "EagerPyFunc", "RandomDataset", "Timestamp"]) | COLLECTIVES

# They hand a variable on into a loop or a branch. (An Identity of a reference variable gives its value.)
HANDS_ON = frozenset(["Identity", "Switch", "RefSwitch", "Enter", "RefEnter"])

CONTROL_FLOW_OPENS = frozenset(["Enter", "RefEnter", "Switch", "RefSwitch"])
CONTROL_FLOW_CLOSES = frozenset(["Exit", "RefExit", "Merge", "RefMerge"])

ADDS = frozenset(["AssignAdd", "AssignSub", "AssignAddVariableOp", "AssignSubVariableOp"])
SETS = frozenset(["Assign", "AssignVariableOp"])
# They add to some rows of a variable: (variable, indices, updates).
SCATTER_ADDS = frozenset(
    prefix + "Scatter" + kind for prefix in ("", "Resource") for kind in ("Add", "Sub", "NdAdd", "NdSub")
)
_WRITES = re.compile(
    r"^(Assign(Add|Sub)?(VariableOp)?"
    r"|(Resource)?(Sparse)?Apply[A-Z]\w*"
    r"|(Resource)?Scatter(Nd)?(Add|Sub|Update|Mul|Div|Min|Max)"
    r"|(Resource)?CountUpTo|ResourceStridedSliceAssign|StridedSliceAssign)$"
)


@functools.lru_cache(maxsize=4096)  # the same few are asked for of every node
def is_write(op):
    """True for operations that change a variable; their first input is the variable."""
    return _WRITES.match(op) is not None


# They make the text that an event file gets of a tensor.
SUMMARIES = frozenset(
    [
        "ScalarSummary",
        "HistogramSummary",
        "TensorSummary",
        "TensorSummaryV2",
        "ImageSummary",
        "AudioSummary",
        "AudioSummaryV2",
    ]
)
# They write to an event file themselves, and have no result.
SUMMARY_WRITES = frozenset(
    [
        "WriteScalarSummary",
        "WriteHistogramSummary",
        "WriteImageSummary",
        "WriteAudioSummary",
        "WriteSummary",
        "WriteRawProtoSummary",
        "WriteGraphSummary",
        "ImportEvent",
    ]
)
SUMMARY_WRITERS = frozenset(
    ["CreateSummaryFileWriter", "CreateSummaryDbWriter", "FlushSummaryWriter", "CloseSummaryWriter"]
)
MERGED_SUMMARIES = frozenset(["MergeSummary"])
FILE_WRITES = frozenset(["SaveV2", "Save", "SaveSlices", "MergeV2Checkpoints", "WriteFile"])

FUSED_NORMS = frozenset(["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"])
FUSED_NORM_GRADIENTS = frozenset(["FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"])

# Positions of the value in the inputs of ADDS and SETS.
VALUE_INPUT = 1

# Size in bytes of DataType numbers; only types that gradients and state can have.
DTYPE_BYTES = {1: 4, 2: 8, 3: 4, 4: 1, 5: 2, 6: 1, 9: 8, 10: 1, 14: 2, 17: 2, 19: 2, 22: 4, 23: 8}
FLOAT_TYPES = frozenset([1, 2, 14, 19])  # float32, float64, bfloat16, float16
SUMMED_TYPES = FLOAT_TYPES | frozenset([3, 9])  # and int32, int64: what all-reduces take
INTEGER_TYPES = frozenset([3, 4, 5, 6, 9, 17, 22, 23])
