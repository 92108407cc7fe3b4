"""What is written down while a graph is built, and the Program that comes out of it.

One Record hangs on each tf.Graph. Besides the tags on operations it holds what no operation can carry: which tensors
are the gradients of which variables.
"""

from dataclasses import replace

import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture.inferred_specs import specs_of
from epl.capture.merge_keys import GraphKeys
from epl.errors import CaptureError
from epl.graph import tags
from epl.graph.index import Graph
from epl.plan.facts.by_hand import updates_by_hand
from epl.program.program import ApplyCall, Gradient, Program, TaskGraph, Variable
from epl.rules import effects

_ATTRIBUTE = "_epl_record"
# Where programs put the tensors that recomputation keeps; other libraries call it so too.
_CHECKPOINTS = "checkpoints"


class Record(object):
    """What capture has seen of one tf.Graph."""

    def __init__(self):
        self.taskgraphs = []
        self._strategies = []
        self.taskgraph_of = {}
        self.phase = tags.FORWARD
        self.depth = {tags.BACKWARD: 0, tags.APPLY: 0}
        self.awaits_seeds = False  # whether a call of tf.gradients is about to make what it starts with
        self.apply_calls = []
        self.computed = []
        self.gradient_calls = []
        self.merges = {}
        self.role = None
        self.local_variables = set()
        self.block = None  # number of the block marked with epl.recompute() that is open
        self.num_pipelines = 0
        self.shapes = {}  # operation -> the shapes of its outputs, see specs_of
        self.forward_of = {}  # operation -> the one for whose gradient it was made
        self._equal_shapes = {}  # equal ones are one object
        self.hints = {}  # operation -> {number of an output: (where it is to lie, the call that says so)}

    def note(self, op):
        """Writes down what TensorFlow knows of an operation by now, but no GraphDef has."""
        name, shapes = op.name, tf_compat.output_shapes(op)
        self.shapes[name] = self._equal_shapes.setdefault(shapes, shapes)
        forward = tf_compat.original_op_name(op)
        if forward is not None:
            self.forward_of[name] = forward

    @property
    def next_gradient_call(self):
        """The number of the call of tf.gradients that is under way, or the next one."""
        return self.gradient_calls[-1] + 1 if self.gradient_calls else 0

    def taskgraph(self, strategy):
        """The index of the TaskGraph that a strategy stands for; made at its first use."""
        for index, known in enumerate(self._strategies):
            if known is strategy:
                return index
        index = len(self._strategies)
        self._strategies.append(strategy)
        self.taskgraphs.append(TaskGraph(index, strategy.kind, strategy.device_count, strategy.name, strategy.where))
        return index


def has_record(graph):
    """True when anything was written down for a graph."""
    return getattr(graph, _ATTRIBUTE, None) is not None


def record_of(graph):
    """The Record of a graph; made when there is none yet."""
    record = getattr(graph, _ATTRIBUTE, None)
    if record is None:
        record = Record()
        setattr(graph, _ATTRIBUTE, record)
    return record


def default_graph():
    return tf.get_default_graph()


def gradient_of(value):
    """The Gradient that a tensor or IndexedSlices is, or None for anything else."""
    if isinstance(value, tf.IndexedSlices):
        return Gradient(value.values.name, value.indices.name)
    if isinstance(value, tf.Tensor):
        return Gradient(value.name, None)
    return None


def merges_of(tf_graph):
    """dict of collection (epl.GraphKeys) to names of its tensors: those of epl.add_to_collection, and what
    tf.add_to_collection put into a collection of that name.

    Raises:
      CaptureError: there is something else than a tensor in it, or a tensor is in two of them.
    """
    merges = {key: list(names) for key, names in record_of(tf_graph).merges.items()}
    for key in GraphKeys.ALL:
        for tensor in tf_graph.get_collection(key):
            if not isinstance(tensor, tf.Tensor):
                raise CaptureError("the collection '%s' (epl.GraphKeys) takes tensors, not %r" % (key, tensor))
            known = [other for other, names in merges.items() if tensor.name in names]
            if known not in ([], [key]):
                raise CaptureError(
                    "tensor '%s' is in the collections '%s' and '%s'; a fetched value can be merged in one way only. "
                    "Put tf.identity of it into one of them." % (tensor.name, known[0], key)
                )
            if not known:
                merges.setdefault(key, []).append(tensor.name)
    return merges


def version_of(tf_graph):
    """What differs once a graph has grown, or once the program has said of more values that they are merged."""
    merged = sum(map(len, record_of(tf_graph).merges.values()))
    return tf_compat.graph_version(tf_graph), merged + sum(len(tf_graph.get_collection_ref(k)) for k in GraphKeys.ALL)


def make_program(tf_graph):
    """The Program of the graph as it stands now."""
    record = record_of(tf_graph)
    graph = Graph.from_graph_def(tf_compat.tagged_graph_def(tf_graph))
    for name in graph.nodes.keys() - record.shapes.keys():  # made before capture began
        record.note(tf_graph.get_operation_by_name(name))
    with tf_graph.as_default():  # outside of it eager execution may be on, in which variables do not tell everything
        variables = _variables(tf_graph, graph, record.local_variables)
    program = Program(
        graph=graph,
        taskgraphs=list(record.taskgraphs),
        variables=variables,
        apply_calls=[ApplyCall(*call) for call in record.apply_calls],
        computed=list(record.computed),
        gradient_calls=list(record.gradient_calls),
        merges=merges_of(tf_graph),
        role=record.role,
        specs=specs_of(graph, record.shapes),
        forward_of=dict(record.forward_of),
        checkpoints=[t.name for t in tf_graph.get_collection(_CHECKPOINTS) if isinstance(t, tf.Tensor)],
        stateful=tf_compat.stateful_types(_types(graph)),
    )
    return replace(program, apply_calls=program.apply_calls + list(updates_by_hand(program)))


def _types(graph):
    """The types of all operations, those in functions included."""
    bodies = (node.op for function in graph.library.function for node in function.node_def)
    return {node.op for node in graph.nodes.values()}.union(bodies)


def _variables(tf_graph, graph, local):
    initializers, trainable = {}, set()
    local, metric = set(local), set(local)
    for key in tf_graph.get_all_collection_keys():
        for item in tf_graph.get_collection_ref(key):
            initializer = getattr(item, "initializer", None)
            if (
                not isinstance(initializer, tf.Operation)
                or not hasattr(item, "op")
                or not hasattr(item, "initial_value")
            ):
                continue
            name = tf_compat.variable_op_name(item)
            initializers.setdefault(name, set()).add(initializer.name)
            if key in (tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES):
                local.add(name)
            if key == tf.GraphKeys.METRIC_VARIABLES:
                metric.add(name)
            if key == tf.GraphKeys.TRAINABLE_VARIABLES:
                trainable.add(name)
    found = {}
    for node in graph.nodes.values():
        if node.op not in effects.VARIABLES:
            continue
        shape = node.attr["shape"].shape
        dims = None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)
        names = initializers.get(node.name, set())
        # A variable that is in no collection: TensorFlow names its initializer after it.
        if node.name + "/Assign" in graph.nodes:
            names = names | {node.name + "/Assign"}
        found[node.name] = Variable(
            name=node.name,
            dtype=node.attr["dtype"].type,
            shape=dims,
            initializers=tuple(sorted(names)),
            is_local=node.name in local,
            is_metric=node.name in metric,
            is_trainable=node.name in trainable,
        )
    return found
