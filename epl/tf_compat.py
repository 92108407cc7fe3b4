"""Everything that differs between TF 1.15 and TF 2.15, and every use of TensorFlow's internals.

The rest of the library imports `tensorflow.compat.v1` and this module, never `tensorflow.python`.
"""

import functools
import sys

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2, op_def_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import session as session_module
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.framework import c_api_util, importer, kernels, op_def_registry, ops
from tensorflow.python.ops import gradients_util, resource_variable_ops
from tensorflow.python.saved_model import builder_impl as builder_module
from tensorflow.python.summary.writer import writer as writer_module
from tensorflow.python.training import basic_session_run_hooks as hooks_module
from tensorflow.python.training import evaluation as evaluation_module
from tensorflow.python.training import monitored_session as monitored_session_module
from tensorflow.python.training import optimizer as optimizer_module
from tensorflow.python.training import saver as saver_module
from tensorflow.python.training import server_lib as server_module
from tensorflow.python.training import session_manager as session_manager_module
from tensorflow.python.training import training as training_module
from tensorflow.python.training import training_util
from tensorflow_estimator.python.estimator import estimator as estimator_module
from tensorflow_estimator.python.estimator import run_config as run_config_module
from tensorflow_estimator.python.estimator import training as estimator_training_module
from tensorflow_estimator.python.estimator.tpu import tpu_estimator as tpu_estimator_module

if tf.__version__.startswith("1."):
    from tensorflow.python.keras import backend as keras_backend_module
    from tensorflow.python.keras.engine import training as keras_training_module
    from tensorflow.python.keras.optimizer_v2 import optimizer_v2 as keras_optimizer_module
    from tensorflow.python.training import checkpoint_management as checkpoint_management_module
    from tensorflow.python.training.tracking import util as object_checkpoint_module
else:
    from keras.src import backend as keras_backend_module
    from keras.src.engine import training_v1 as keras_training_module
    from keras.src.optimizers.legacy import optimizer_v2 as keras_optimizer_module
    from tensorflow.python.checkpoint import checkpoint as object_checkpoint_module
    from tensorflow.python.checkpoint import checkpoint_management as checkpoint_management_module

AttrValue = attr_value_pb2.AttrValue
GraphDef = graph_pb2.GraphDef
NodeDef = node_def_pb2.NodeDef
CallableOptions = config_pb2.CallableOptions
BaseSession = session_module.BaseSession
Graph = ops.Graph

_c_api = importer.c_api
_c_api_session = session_module.tf_session
_ORIGINAL = "_epl_original"


def line():
    """Which of the two supported TensorFlow lines runs: "tf1" (1.15) or "tf2" (2.15)."""
    return "tf1" if tf.__version__.startswith("1.") else "tf2"


def version():
    """TensorFlow's version, e.g. "1.15.5"."""
    return tf.__version__


def has_kernel(op, device_type):
    """Whether an operation has a kernel for a type of device, such as "GPU"."""
    return any(kernel.device_type == device_type for kernel in kernels.get_registered_kernels_for_op(op).kernel)


def load_op_library(path):
    """Loads a library of custom operations; returns the module of their Python wrappers."""
    return tf.load_op_library(path)


def executing_eagerly():
    return tf.executing_eagerly()


# The places where TensorFlow is wrapped. Each wrapper gets the original function as its first argument.


def _wrap(owner, name, wrapper):
    """Replaces `owner.name` by a function that calls `wrapper(original, ...)`; a second wrap replaces the first."""
    if isinstance(owner, type):
        current = owner.__dict__[name]
    else:  # the modules of 1.15's API stand behind others, which warn of what is deprecated
        current = getattr(getattr(owner, "_tfmw_wrapped_module", owner), name)
    original = getattr(current, _ORIGINAL, current)

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        return wrapper(original, *args, **kwargs)

    setattr(wrapped, _ORIGINAL, original)
    setattr(owner, name, wrapped)


def wrap_create_op(wrapper):
    """`wrapper(original, graph, op, compute_device)` is called for each operation made by Python code."""
    _wrap(ops.Graph, "_create_op_helper", wrapper)


def wrap_gradients(wrapper):
    """`wrapper(original, ys, xs, ...)` around tf.gradients (and what is built on it)."""
    _wrap(gradients_util, "_GradientsHelper", wrapper)


def wrap_optimizer_init(wrapper):
    """`wrapper(original, optimizer, ...)` around the constructor of tf.train.Optimizer and its subclasses."""
    _wrap(optimizer_module.Optimizer, "__init__", wrapper)


def optimizer_classes():
    """tf.train.Optimizer, Keras' one, and every subclass of them that is known by now."""
    found, stack = [], [optimizer_module.Optimizer, keras_optimizer_module.OptimizerV2]
    while stack:
        cls = stack.pop()
        found.append(cls)
        stack.extend(cls.__subclasses__())
    return found


def wrap_apply_gradients(cls, wrapper):
    """Wraps `apply_gradients` in each class of `cls`'s ancestry that defines its own; once each."""
    for klass in cls.__mro__:
        own = klass.__dict__.get("apply_gradients")
        if own is not None and not hasattr(own, _ORIGINAL):
            _wrap(klass, "apply_gradients", wrapper)


def wrap_strategies(made, scope):
    """`made(original, extended, strategy)` around the constructor of what does the work of a tf.distribute strategy,
    which runs before the strategy's own; `scope(original, strategy)` around `scope`."""
    _wrap(distribute_lib.StrategyExtendedV2, "__init__", made)
    _wrap(getattr(distribute_lib, "StrategyBase", distribute_lib.Strategy), "scope", scope)


def is_default_strategy(strategy):
    """True for the one that TensorFlow makes where a program has none."""
    return type(strategy).__name__.startswith("_DefaultDistributionStrategy")


def wrap_server(wrapper):
    """`wrapper(original, server, ...)` around the constructor of tf.train.Server."""
    _wrap(server_module.Server, "__init__", wrapper)


def never_started(server):
    """Takes the destructor from a server that is refused before its constructor ran: there is nothing to stop."""
    server.__class__ = type("NeverStarted", (object,), {})


def wrap_tpu_estimator(wrapper):
    """`wrapper(original, estimator, ...)` around the constructor of TPUEstimator."""
    _wrap(tpu_estimator_module.TPUEstimator, "__init__", wrapper)


def wrap_enable_eager(wrapper):
    """Around what every public spelling of tf.enable_eager_execution calls."""
    _wrap(ops, "enable_eager_execution_internal", wrapper)


def wrap_saver_build(wrapper):
    _wrap(saver_module.Saver, "_build", wrapper)


def wrap_saver_save(wrapper):
    _wrap(saver_module.Saver, "save", wrapper)


def wrap_object_checkpoints(save, update_state):
    """Around how tf.train.Checkpoint and Keras write variables, and around what writes the file `checkpoint`."""
    _wrap(object_checkpoint_module.TrackableSaver, "save", save)
    _wrap(checkpoint_management_module, "update_checkpoint_state_internal", update_state)


def wrap_saved_model_builder(init, save):
    """Around the constructor of tf.saved_model.Builder, and around its `save`, on which all exports of 1.x rest."""
    _wrap(builder_module._SavedModelBuilder, "__init__", init)
    _wrap(builder_module._SavedModelBuilder, "save", save)


def wrap_write_graph(wrapper):
    """Around every public spelling of tf.train.write_graph."""
    _wrap(training_util, "write_graph", wrapper)
    for module in _public("train") + _public("io"):
        if "write_graph" in dir(module):
            _wrap(module, "write_graph", wrapper)


def wrap_profiler_hook(wrapper):
    """`wrapper(original, hook, step, path, step_stats)` around how tf.train.ProfilerHook writes a file."""
    _wrap(hooks_module.ProfilerHook, "_save", wrapper)


def wrap_wait_for_session(wrapper):
    """Around how tf.train.Supervisor waits for another process to initialise the variables."""
    _wrap(session_manager_module.SessionManager, "wait_for_session", wrapper)


def wrap_worker_session_creator(wrapper):
    """`wrapper(original, creator)` around how MonitoredTrainingSession(is_chief=False) makes its session."""
    _wrap(monitored_session_module.WorkerSessionCreator, "create_session", wrapper)


def chief_session(creator):
    """Makes the session that a WorkerSessionCreator would wait for another process to make ready."""
    return tf.train.ChiefSessionCreator(
        scaffold=creator._scaffold, master=creator._master, config=creator._config
    ).create_session()


def wrap_chief_session_creator(wrapper):
    """`wrapper(original, creator)` around how monitored sessions that initialise or restore are made."""
    _wrap(monitored_session_module.ChiefSessionCreator, "create_session", wrapper)


def checkpoint_of(creator):
    """The checkpoint that a ChiefSessionCreator restores; None when there is none."""
    folder, path = creator._checkpoint_dir, creator._checkpoint_filename_with_path
    return path or (getattr(tf.train.get_checkpoint_state(folder), "model_checkpoint_path", None) if folder else None)


def restore_from(creator, path):
    """Makes a ChiefSessionCreator restore this checkpoint; with None it initialises."""
    creator._checkpoint_dir = None
    creator._checkpoint_filename_with_path = path


def wrap_should_stop(wrapper):
    """`wrapper(original, monitored)` around should_stop of every kind of monitored session."""
    _wrap(monitored_session_module._MonitoredSession, "should_stop", wrapper)


def session_of(monitored):
    """The tf.Session inside of a monitored one, or None when it is closed."""
    return monitored._tf_sess()


def wrap_monitored_training_session(wrapper):
    """Around every public spelling of tf.train.MonitoredTrainingSession."""
    for module in (monitored_session_module, training_module) + _public("train"):
        if "MonitoredTrainingSession" in dir(module):
            _wrap(module, "MonitoredTrainingSession", wrapper)


def _public(name):
    """The modules behind `tf.<name>`, for programs that import tensorflow.compat.v1 and for those that do not."""
    return getattr(tf, name), getattr(sys.modules["tensorflow"], name)


def wrap_saver_hook(wrapper):
    """`wrapper(original, hook, ...)` around the constructor of CheckpointSaverHook."""
    _wrap(hooks_module.CheckpointSaverHook, "__init__", wrapper)


def timer_of(hook):
    """(every_secs, every_steps) of the timer that a hook or a listener keeps."""
    return hook._timer._every_secs, hook._timer._every_steps


def set_timer(hook, timer):
    hook._timer = timer


def wrap_estimator(config, replace, distribution, **methods):
    """Around tf.estimator.

    Args:
      config, replace: `wrapper(original, run_config, ...)` around RunConfig's constructor, and around `replace`.
      distribution: `wrapper(original, run_config, tf_config)` around how it reads TF_CONFIG.
      **methods: wrappers around methods of Estimator, by their names.
    """
    _wrap(run_config_module.RunConfig, "__init__", config)
    _wrap(run_config_module.RunConfig, "replace", replace)
    _wrap(run_config_module.RunConfig, "_init_distributed_setting_from_environment_var", distribution)
    for name, wrapper in methods.items():
        _wrap(estimator_module.Estimator, name, wrapper)


def set_cluster_role(run_config, index, count):
    """Makes a RunConfig say that its process is number `index` of `count` workers that train alike."""
    run_config._is_chief, run_config._task_type = (False, "worker") if index else (True, "chief")
    run_config._task_id = index
    run_config._global_id_in_cluster = index
    run_config._num_worker_replicas = count


def wrap_train_and_evaluate(loaded_step, evaluate, export, listener_begin):
    """Around what tf.estimator.train_and_evaluate is made of.

    Args:
      loaded_step: around the function that reads the global step of a model folder, for Estimator.train(max_steps=...).
      evaluate, export: around what happens at a new checkpoint: the evaluation, and the export after it.
      listener_begin: around `begin` of the listener that waits for checkpoints.
    """
    _wrap(estimator_module, "_load_global_step_from_checkpoint_dir", loaded_step)
    _wrap(estimator_training_module._TrainingExecutor._Evaluator, "evaluate_and_export", evaluate)
    _wrap(estimator_training_module._TrainingExecutor._Evaluator, "_export_eval_result", export)
    _wrap(estimator_training_module._NewCheckpointListenerForEvaluate, "begin", listener_begin)


def estimator_of(evaluator):
    """The Estimator that train_and_evaluate evaluates."""
    return evaluator._estimator


def multiply_evaluation_steps(hooks, factor):
    """Makes hooks that end an evaluation after a number of steps wait for `factor` times as many."""
    for hook in hooks:
        if isinstance(hook, evaluation_module._StopAfterNEvalsHook):
            hook._num_evals *= factor


def warm_start_settings(estimator, settings):
    """Replaces an Estimator's warm-start settings; returns those before."""
    before, estimator._warm_start_settings = estimator._warm_start_settings, settings
    return before


def wrap_keras_model(make_train_function, make_test_function, fit, save, save_weights, load_weights, csv_log, values):
    """Around tf.keras in graph mode: methods of Model, CSVLogger's calls, the variables that may lack `values`."""
    _wrap(keras_backend_module, "_get_variables", values)
    training = keras_training_module.Model
    _wrap(training, "_make_train_function", make_train_function)
    _wrap(training, "_make_test_function", make_test_function)
    _wrap(training, "fit", fit)
    for name, wrapper in (("save", save), ("save_weights", save_weights), ("load_weights", load_weights)):
        _wrap(next(cls for cls in training.__mro__ if name in cls.__dict__), name, wrapper)
    for name in ("on_train_begin", "on_epoch_end", "on_train_end"):
        _wrap(tf.keras.callbacks.CSVLogger, name, csv_log)


def wrap_keras_optimizer_init(wrapper):
    """`wrapper(original, optimizer, ...)` around the constructor of Keras' optimizers."""
    _wrap(keras_optimizer_module.OptimizerV2, "__init__", wrapper)


def wrap_keras_metric_weight(wrapper):
    """`wrapper(original, metric, ...)` around how a Keras metric makes its variables."""
    _wrap(tf.keras.metrics.Metric, "add_weight", wrapper)


def wrap_event_writers(wrapper):
    """`wrapper(original, ...)` makes the object to which tf.summary.FileWriter hands its events."""
    for name in ("EventFileWriter", "EventFileWriterV2"):
        _wrap(writer_module, name, wrapper)


def wrap_session(init, do_run, make_callable, callable_from_options, partial_run_setup, close):
    """Around the calls of BaseSession through which Session, MonitoredSession, Estimator and Keras run a graph."""
    _wrap(BaseSession, "__init__", init)
    _wrap(BaseSession, "_do_run", do_run)
    _wrap(BaseSession, "make_callable", make_callable)
    _wrap(BaseSession, "_make_callable_from_options", callable_from_options)
    _wrap(BaseSession, "partial_run_setup", partial_run_setup)
    _wrap(BaseSession, "close", close)


def never_opened(session):
    """Leaves a session that is refused before its constructor ran in a state that its destructor can deal with."""
    session._session = None
    session._closed = True


def fed_tensor_name(key):
    """The name of a tensor that keys the feeds of BaseSession._do_run (a reference object on both lines)."""
    tensor = key.deref() if hasattr(key, "deref") else key
    return tensor.name


# Operations and graphs.


def is_function_graph(graph):
    """True for the graphs of function bodies (Defun, tf.function, branches and loop bodies of control flow v2)."""
    return graph.building_function


def set_tag(op, key, value):
    """Stores an integer or a string as an attribute of the operation; it is in `tagged_graph_def`."""
    op._set_attr(key, AttrValue(i=value) if isinstance(value, int) else AttrValue(s=value.encode()))


def original_op_type(op):
    """The type of that operation, or None."""
    original = getattr(op, "_original_op", None)
    return original.type if original is not None else None


def wrap_graph_def(wrapper):
    """`wrapper(original, graph, ...)` around what makes the (GraphDef, version) of a graph."""
    _wrap(ops.Graph, "_as_graph_def", wrapper)


def tagged_graph_def(graph):
    """The GraphDef of a graph with everything that is on its operations."""
    function = ops.Graph.__dict__["_as_graph_def"]
    return getattr(function, _ORIGINAL, function)(graph)[0]


def original_op_name(op):
    """The forward operation for whose gradient `op` was made, or None."""
    original = getattr(op, "_original_op", None)
    return original.name if original is not None else None


def variable_op_name(variable):
    """The name of the operation that holds a variable (VariableV2 or VarHandleOp), from any spelling of it."""
    if resource_variable_ops.is_resource_variable(variable):
        return variable.handle.op.name
    if isinstance(variable, str):
        return variable.split(":")[0]
    op = variable.op
    # A trainable tensor that was read from a variable: the variable is what it was read from.
    while op.type in ("ReadVariableOp", "Identity", "Enter") and op.inputs:
        op = op.inputs[0].op
    return op.name


def graph_version(graph):
    """A number that grows whenever an operation is added to the graph."""
    return graph.version


def op_def(name):
    """The OpDef of an operation type, or None when TensorFlow does not know it."""
    if line() == "tf2":
        return op_def_registry.get(name)
    return op_def_registry.get_registered_ops().get(name)


def op_defs():
    """dict of every operation type that TensorFlow's kernel side knows by now to its OpDef."""
    listed = op_def_pb2.OpList()
    listed.ParseFromString(_c_api_session.TF_GetBuffer(_c_api_session.TF_GetAllOpList()))
    return {op.name: op for op in listed.op}


def import_nodes(graph, graph_def, existing):
    """Adds nodes to a graph without making Python objects for them, which takes most of the time of an import.

    Args:
      graph: the tf.Graph to grow.
      graph_def: new nodes only; may name nodes of `existing` as inputs.
      existing: iterable of (node_name, output_index or -1 for a control input) that new nodes use from `graph`.
    """
    existing = list(existing)
    if existing:
        graph._add_new_tf_operations(compute_devices=False)
    scoped = c_api_util.ScopedTFImportGraphDefOptions()
    options = scoped.options
    _c_api.TF_ImportGraphDefOptionsSetPrefix(options, "")
    _c_api.TF_ImportGraphDefOptionsSetUniquifyNames(options, False)
    _c_api.TF_ImportGraphDefOptionsSetValidateColocationConstraints(options, False)
    for name, index in existing:
        op = graph.get_operation_by_name(name)
        if index < 0:
            _c_api.TF_ImportGraphDefOptionsRemapControlDependency(options, name, op._c_op)
        else:
            _c_api.TF_ImportGraphDefOptionsAddInputMapping(options, name, index, op.outputs[index]._as_tf_output())
    with graph._mutation_lock():
        with c_api_util.tf_buffer(graph_def.SerializeToString()) as serialized:
            if line() == "tf2":
                with graph._c_graph.get() as c_graph:
                    results = _c_api.TF_GraphImportGraphDefWithResults(c_graph, serialized, options)
            else:
                results = _c_api.TF_GraphImportGraphDefWithResults(graph._c_graph, serialized, options)
            c_api_util.ScopedTFImportGraphDefResults(results)


# Running a graph by names.


class NamedRunner(object):
    """Runs fixed feeds, fetches and targets of a session, all given by name; needs no Python objects for operations.

    Args:
      session: a tf.Session.
      feeds, fetches: tensor names.
      targets: operation names.
      run_options: serialized RunOptions, or None.
    """

    def __init__(self, session, feeds, fetches, targets, run_options=None):
        options = CallableOptions(feed=feeds, fetch=fetches, target=targets)
        if run_options:
            options.run_options.ParseFromString(run_options)
        self._session = session
        make = session_module.BaseSession.__dict__["_make_callable_from_options"]
        self._callable = getattr(make, _ORIGINAL, make)(session, options)

    def __call__(self, values, metadata=None):
        """Runs. `values` are NumPy arrays in the order of the feeds; returns the fetches' values in their order.

        Args:
          metadata: a TF_Buffer that takes the RunMetadata, or None.
        """
        return _c_api_session.TF_SessionRunCallable(self._session._session, self._callable._handle, values, metadata)


def buffer_bytes(buffer):
    """The content of a TF_Buffer as bytes, or None for no buffer."""
    return _c_api_session.TF_GetBuffer(buffer) if buffer is not None else None
