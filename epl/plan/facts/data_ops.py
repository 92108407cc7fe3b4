"""What operation types do with files and data sets: tables and small questions, and nothing that needs TensorFlow."""

from epl.rules import datasets

# Data sets of the records of files; their first input is the names.
RECORD_READS = frozenset(
    [
        "TFRecordDataset",
        "TFRecordDatasetV2",
        "TextLineDataset",
        "FixedLengthRecordDataset",
        "FixedLengthRecordDatasetV2",
        "CSVDataset",
        "CSVDatasetV2",
        "ExperimentalCSVDataset",
        "LMDBDataset",
        "ExperimentalLMDBDataset",
    ]
)
# A reader takes names from a queue, its second input.
QUEUE_READS = frozenset(["ReaderRead", "ReaderReadV2", "ReaderReadUpTo", "ReaderReadUpToV2"])
# One file at a time.
FILE_READS = frozenset(["ReadFile"])
READS = RECORD_READS | QUEUE_READS | FILE_READS

DEQUEUES = frozenset(
    [
        "QueueDequeue",
        "QueueDequeueV2",
        "QueueDequeueMany",
        "QueueDequeueManyV2",
        "QueueDequeueUpTo",
        "QueueDequeueUpToV2",
    ]
)
ENQUEUES_ONE = frozenset(["QueueEnqueue", "QueueEnqueueV2"])
ENQUEUES = ENQUEUES_ONE | frozenset(["QueueEnqueueMany", "QueueEnqueueManyV2"])
GET_NEXT = frozenset(["IteratorGetNext", "IteratorGetNextSync"])
ITERATORS = frozenset(["MakeIterator", "OneShotIterator"])
# Their first input chooses what is called with the others.
BRANCHES = frozenset(["If", "StatelessIf", "Case", "StatelessCase"])
# Their elements are rows of tensors, or tensors, of the graph itself.
TENSOR_SOURCES = frozenset(["TensorSliceDataset", "TensorDataset"])

# What a get_next() takes its elements from, where that is not a handle that is fed.
ITERATOR_HANDLES = frozenset(["Iterator", "IteratorV2", "OneShotIterator"])

# They make batches; the place of their size among the inputs, None: after what their function takes besides elements.
BATCHES = {
    "BatchDataset": 1,
    "BatchDatasetV2": 1,
    "ParallelBatchDataset": 1,
    "MapAndBatchDataset": None,
    "MapAndBatchDatasetV2": None,
    "ExperimentalMapAndBatchDataset": None,
}
# They give the elements of their data sets as they are: some of them, in some order, side by side.
WHOLE_BATCHES = datasets.of_kind(datasets.SAME, datasets.MIXED, datasets.PAIR) | {"SkipDataset", "TakeDataset"}

# They say of what shapes the elements of an iterator are.
ITERATOR_SHAPES = ITERATOR_HANDLES | GET_NEXT | frozenset(["IteratorFromStringHandle", "IteratorFromStringHandleV2"])

_SHAPING = frozenset(["Reshape", "ExpandDims", "Squeeze"])


def iterator_of(body, text):
    """The name of the iterator that an input stands for; None for one that is fed as a string handle."""
    node = behind_identities(body, text)
    return node.name if node is not None and node.op in ITERATOR_HANDLES else None


def pipelines(bodies):
    """(Body, input) of what iterators iterate over."""
    return [(body, text) for _, body, text in pipelines_of_iterators(bodies)]


def pipelines_of_iterators(bodies):
    """(name of an iterator, None for one that is fed as a handle; Body, input) of what iterators iterate over."""
    for node in bodies.main.nodes.values():
        if node.op == "MakeIterator":
            yield iterator_of(bodies.main, node.input[1]), bodies.main, node.input[0]
        elif node.op == "OneShotIterator":
            factory = bodies.functions[node.attr["dataset_factory"].func.name]
            yield node.name, factory, factory.results[0]


def behind(bodies, body, text):
    """(body name, node name) of all that an input comes from, in functions too."""
    nodes, _ = body.ancestors([text])
    found = [(body.name, node.name) for node in nodes]
    functions, waiting = set(), list(nodes)
    while waiting:
        for name in bodies.index.called_by(waiting.pop()):
            if name not in functions:
                functions.add(name)
                inner = bodies.functions[name].nodes.values()
                found.extend((name, node.name) for node in inner)
                waiting.extend(inner)
    return found


def is_dataset(op):
    return "Dataset" in op


def data_sets_of(body, node):
    """The inputs of a node that are data sets."""
    found = []
    for text in node.input:
        producer = body.producer(text) if text[0] != "^" else None
        if producer is not None and (is_dataset(producer.op) or (producer.op == "Identity" and is_dataset(node.op))):
            if producer.op != "Identity" or is_dataset(getattr(behind_identities(body, text), "op", "")):
                found.append(text)
    return found


def reads_records(bodies, node):
    """True for a data set whose elements are records of files or of a generator: it reads, or a function of it does."""
    test = _reads_or_generates
    return test(node) or (is_dataset(node.op) and bodies.index.calls(node, test, "reads records"))


def _reads_or_generates(node):
    return node.op in RECORD_READS or node.op == "GeneratorDataset"


def behind_identities(body, text, through_shapes=False):
    """The node that an input comes from, looking behind Identity (and reshaping) nodes; None for an argument."""
    node = body.producer(text)
    while node is not None and node.input and (node.op == "Identity" or (through_shapes and node.op in _SHAPING)):
        node = body.producer(node.input[0])
    return node
