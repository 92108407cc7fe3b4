"""Where TensorFlow's graph building is caught. The hooks tag operations and write things down; they change nothing
else, but for the optimizers that the configuration replaces (epl.capture.switched), and the order in which a loop takes
in what its operations wait for: TensorFlow 1.15 has it from a set, so that each process would name other nodes."""

import functools

import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture import refusals
from epl.capture.record import default_graph, gradient_of, has_record, record_of
from epl.capture.strategy import scopes
from epl.capture.switched import in_place_of
from epl.errors import CaptureError
from epl.graph import tags
from epl.rules import effects

INNER = "_epl_inner"  # marks the graphs that EPL itself runs


def begin():
    """What is built in the default graph from here on is one model, of which nothing has been captured before.

    Raises:
      CaptureError: there is a model in it already.
    """
    record = record_of(default_graph())
    parts = record.taskgraphs
    if parts or record.apply_calls:
        there = "parts of a model (epl.%s at %s)" % (parts[0].kind, parts[0].where) if parts else "a model's training"
        raise CaptureError(
            "epl.init() is called again, but the default graph has %s from before, to which a second model would be "
            "added. Call tf.reset_default_graph() before epl.init(), or build each model in a tf.Graph() of its own."
            % there
        )


def install():
    """Hooks TensorFlow. Calling it again changes nothing."""
    tf_compat.wrap_create_op(_create_op)
    tf_compat.wrap_set_shape(_set_shape)
    tf_compat.wrap_external_controls(_external_controls)
    tf_compat.wrap_sparse_tensor(_sparse_tensor)
    tf_compat.wrap_gradients(_gradients)
    tf_compat.wrap_gradient_seeds(_gradient_seeds)
    tf_compat.wrap_tape_gradient(_tape_gradient)
    # Classes known by now, for optimizers that exist already; later ones when one of them is made.
    for cls in tf_compat.optimizer_classes():
        _catch_updates(cls)
    tf_compat.wrap_optimizer_init(_optimizer_init)
    tf_compat.wrap_keras_optimizers(_optimizer_init, _catch_updates)
    tf_compat.wrap_keras_sums(_keras_sums)
    tf_compat.wrap_keras_metric_weight(_metric_weight)
    tf_compat.wrap_saver_build(_saver_build)
    tf_compat.wrap_graph_def(_graph_def)
    refusals.install()


# What is made for the gradients of these is tagged with their names: statistics over a batch.
_STATISTICS = frozenset(["Mean"])


def _create_op(original, graph, op, *args, **kwargs):
    result = original(graph, op, *args, **kwargs)
    if tf_compat.is_function_graph(graph) or hasattr(graph, INNER):
        return result
    refusals.check_operation(op)
    shared_name = refusals.shared_name(op)
    if shared_name is not None:
        tf_compat.set_tag(op, tags.SHARED, shared_name)
    record = record_of(graph)
    if record.phase != tags.FORWARD:
        tf_compat.set_tag(op, tags.PHASE, record.phase)
    elif record.block is not None:
        tf_compat.set_tag(op, tags.RECOMPUTE, record.block)
    if record.depth[tags.APPLY]:
        tf_compat.set_tag(op, tags.APPLY_CALL, len(record.apply_calls) - 1)
    if record.phase == tags.BACKWARD and tf_compat.original_op_type(op) in _STATISTICS:
        tf_compat.set_tag(op, tags.FORWARD_OP, tf_compat.original_op_name(op))
    record.note(op)
    taskgraph = _taskgraph_of(record, op)
    if taskgraph is not None:
        record.taskgraph_of[op.name] = taskgraph
        tf_compat.set_tag(op, tags.TASKGRAPH, taskgraph)
    return result


def _set_shape(original, tensor, shape):
    graph = getattr(tensor, "graph", None)  # None of a value that is there already
    if graph is None or tf_compat.is_function_graph(graph) or hasattr(graph, INNER):
        return original(tensor, shape)
    original(tensor, shape)
    record_of(graph).note(tensor.op)


def _external_controls(original, context, op):
    inside, outside = original(context, op)
    return inside, sorted(outside, key=lambda each: each.name)


def _sparse_tensor(original, sparse, *args, **kwargs):
    """Tags the placeholders of entries in any number, which are fed together, and their shape if that is fed too."""
    original(sparse, *args, **kwargs)
    graph = getattr(sparse.values, "graph", None)
    if graph is None or tf_compat.is_function_graph(graph) or hasattr(graph, INNER):
        return
    entries, shape = [sparse.values.op, sparse.indices.op], sparse.dense_shape.op
    if any(op.type not in effects.PLACEHOLDERS for op in entries) or tf_compat.output_shapes(entries[0]) != ((-1,),):
        return
    fed = entries + ([shape] if shape.type in effects.PLACEHOLDERS else [])
    text = tags.sparse_text(sparse.indices.op.name, shape.name if shape in fed else "")
    for op in fed:
        tf_compat.set_tag(op, tags.SPARSE, text if tf_compat.sparse_rows(sparse) is None else tags.FIXED)


def _taskgraph_of(record, op):
    """The TaskGraph that an operation is in, or None when only its neighbours can tell."""
    if record.phase == tags.BACKWARD:
        return record.taskgraph_of.get(record.forward_of.get(op.name))
    strategy = scopes().current(op.graph)
    if record.phase == tags.FORWARD and strategy is not None:
        return record.taskgraph(strategy)
    return None


class _Phase(object):
    """Operations made inside are tagged with the phase."""

    def __init__(self, record, phase):
        self._record = record
        self._phase = phase
        self._before = None

    def __enter__(self):
        self._before = self._record.phase
        self._record.phase = self._phase
        if self._phase in self._record.depth:
            self._record.depth[self._phase] += 1

    def __exit__(self, *exc_info):
        self._record.phase = self._before
        if self._phase in self._record.depth:
            self._record.depth[self._phase] -= 1


def _gradients(original, ys, xs, *args, **kwargs):
    graph = tf.get_default_graph()
    if tf_compat.is_function_graph(graph):
        return original(ys, xs, *args, **kwargs)
    record = record_of(graph)
    if record.depth[tags.BACKWARD]:
        return original(ys, xs, *args, **kwargs)
    with _Phase(record, tags.BACKWARD):
        record.awaits_seeds = True
        result = original(ys, xs, *args, **kwargs)
    _record_gradients(record, result, xs if isinstance(xs, (list, tuple)) else [xs])
    return result


def _gradient_seeds(original, grad_ys, ys, *args, **kwargs):
    """Those of the program's own call; a gradient that is taken on the way, of a loop's body say, starts elsewhere."""
    seeds = original(grad_ys, ys, *args, **kwargs)
    graph = tf.get_default_graph()
    if tf_compat.is_function_graph(graph) or not record_of(graph).awaits_seeds:
        return seeds
    record = record_of(graph)
    record.awaits_seeds = False
    for y, seed in zip(ys, seeds):
        found = gradient_of(seed)
        if found is not None:
            op = graph.get_tensor_by_name(found.values).op
            tf_compat.set_tag(op, tags.SEED, y.name)
            tf_compat.set_tag(op, tags.GRADIENT_CALL, record.next_gradient_call)
    return seeds


def _tape_gradient(original, tape, target, sources, *args, **kwargs):
    graph = tf.get_default_graph()
    if tf.executing_eagerly() or tf_compat.is_function_graph(graph) or hasattr(graph, INNER):
        return original(tape, target, sources, *args, **kwargs)
    record = record_of(graph)
    if record.depth[tags.BACKWARD]:
        return original(tape, target, sources, *args, **kwargs)
    with _Phase(record, tags.BACKWARD):
        result = original(tape, target, sources, *args, **kwargs)
    _record_gradients(record, tf.nest.flatten(result), tf.nest.flatten(sources))
    return result


def _record_gradients(record, values, sources):
    call = record.next_gradient_call
    for value, source in zip(values, sources):
        gradient = gradient_of(value)
        if gradient is not None:
            record.computed.append((gradient, tf_compat.variable_op_name(source)))
            record.gradient_calls.append(call)


def _optimizer_init(original, optimizer, *args, **kwargs):
    refusals.check_optimizer(optimizer)
    original(optimizer, *args, **kwargs)
    _catch_updates(type(optimizer))


def _catch_updates(cls):
    tf_compat.wrap_apply_gradients(cls, _apply_gradients)


def _metric_weight(original, metric, *args, **kwargs):
    """Variables of a Keras metric are local ones, though they are in no collection."""
    weight = original(metric, *args, **kwargs)
    graph = tf.get_default_graph()
    if not tf_compat.is_function_graph(graph):
        record_of(graph).local_variables.add(tf_compat.variable_op_name(weight))
    return weight


def _apply_gradients(original, optimizer, *args, **kwargs):
    graph = tf.get_default_graph()
    if tf_compat.is_function_graph(graph):
        return original(optimizer, *args, **kwargs)
    record = record_of(graph)
    # An optimizer around another one: the outer call is where gradients leave the user's hands.
    if record.depth[tags.APPLY]:
        return original(optimizer, *args, **kwargs)
    refusals.check_optimizer(optimizer)
    other = in_place_of(optimizer)
    if other is not None:
        return other.apply_gradients(*args, **kwargs)
    name = type(optimizer).__name__
    pairs, call = _with_list_of_pairs(original, optimizer, args, kwargs)
    gradients = []
    for gradient, variable in pairs:
        found = gradient_of(gradient)
        if found is not None:
            gradients.append((found, tf_compat.variable_op_name(variable)))
    record.apply_calls.append((len(record.apply_calls), name, tuple(gradients)))
    with _Phase(record, tags.APPLY):
        return call()


def _keras_sums(original, optimizer, grads_and_vars):
    """Keras joins all gradients in one operation here, though one device has nothing to add: every update would wait
    for the last gradient, and none could be made by itself."""
    graph = tf.get_default_graph()
    if tf_compat.is_function_graph(graph) or not tf_compat.sums_nothing(optimizer):
        return original(optimizer, grads_and_vars)
    return list(grads_and_vars)


def _with_list_of_pairs(original, optimizer, args, kwargs):
    """The (gradient, variable) pairs as a list, and a function that makes the call with it: zip() can be read once
    only."""
    if "grads_and_vars" in kwargs:
        pairs = _in_tensors(kwargs["grads_and_vars"])
        kwargs = dict(kwargs, grads_and_vars=pairs)
    else:
        pairs = _in_tensors(args[0]) if args else []
        args = (pairs,) + tuple(args[1:])
    return pairs, functools.partial(original, optimizer, *args, **kwargs)


def _in_tensors(pairs):
    """The pairs as a list, those of sparse gradients that were built of lists or arrays made of tensors."""
    return [(_slices(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient, v) for gradient, v in pairs]


def _slices(gradient):
    values, indices = tf.convert_to_tensor(gradient.values), tf.convert_to_tensor(gradient.indices)
    if values is gradient.values and indices is gradient.indices:
        return gradient
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def _saver_build(original, saver, *args, **kwargs):
    graph = tf.get_default_graph()
    if tf_compat.is_function_graph(graph):
        return original(saver, *args, **kwargs)
    with _Phase(record_of(graph), tags.SAVE):
        return original(saver, *args, **kwargs)


def _graph_def(original, graph, *args, **kwargs):
    """What programs see, save and export of their graph is the graph that they have built."""
    graph_def, version = original(graph, *args, **kwargs)
    if has_record(graph):
        for node in graph_def.node:
            for key in [key for key in node.attr if key.startswith(tags.PREFIX)]:
                del node.attr[key]
    return graph_def, version
