"""Names of TensorFlow 1.15's inside (`tensorflow.python`) where TensorFlow 2.15 has them elsewhere, for epl.tf1."""

import contextlib
import importlib
import inspect

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import random_seed

INSIDE = "tensorflow.python"
# What is elsewhere under another name, or in another package: module and attribute, then where it is.
_RENAMED = {
    ("tensorflow.python.feature_column.feature_column_lib", "DenseFeatures"): "tensorflow:keras.layers.DenseFeatures",
    ("tensorflow.python.framework.op_def_registry", "get_registered_ops"): "epl.tf_compat.graphs:op_defs",
    ("tensorflow.python.framework.ops", "register_dense_tensor_like_type"): __name__ + ":checked_tensor_like",
    ("tensorflow.python.util.nest", "is_sequence"): "tensorflow.python.util.nest:is_nested",
    ("tensorflow.python.util.nest", "is_sequence_or_composite"): "tensorflow.python.util.nest:is_nested_or_composite",
}
# TensorFlow 2.15 has these twice. Programs get what `tf.layers` and `tf.nn.rnn_cell` are too, so that `isinstance` and
# subclasses are about one class.
ONE_OF_TWO = (
    ("tensorflow.python.keras", "keras.src"),
    ("tensorflow.python.layers.base", "keras.src.legacy_tf_layers.base"),
    ("tensorflow.python.layers.convolutional", "keras.src.legacy_tf_layers.convolutional"),
    ("tensorflow.python.layers.core", "keras.src.legacy_tf_layers.core"),
    ("tensorflow.python.layers.normalization", "keras.src.legacy_tf_layers.normalization"),
    ("tensorflow.python.layers.pooling", "keras.src.legacy_tf_layers.pooling"),
    ("tensorflow.python.ops.rnn_cell_impl", "epl.tf_compat.cells"),
    ("tensorflow.python.ops.rnn_cell", "epl.tf_compat.cells"),
)
# Modules that have another name now. The longest first.
MOVED = (
    ("tensorflow.python.training.tracking.graph_view", "tensorflow.python.checkpoint.graph_view"),
    ("tensorflow.python.training.tracking.tracking", "tensorflow.python.trackable.autotrackable"),
    ("tensorflow.python.training.tracking.util", "tensorflow.python.checkpoint.checkpoint"),
    ("tensorflow.python.training.tracking", "tensorflow.python.trackable"),
)


def checked_tensor_like(kind):
    """In the place of ops.register_dense_tensor_like_type: a class is like a tensor if it can be converted to one, for
    which TensorFlow 2.15 asks the conversion that the program registers besides.

    Raises:
      TypeError: it has no properties `name` and `dtype`.
    """
    for name in ("name", "dtype"):
        if not isinstance(getattr(kind, name, None), property):
            raise TypeError("Type %s has no property '%s', which a tensor-like type must have." % (kind, name))


@contextlib.contextmanager
def quiet():
    """Inside, TensorFlow logs errors only."""
    before = tf.logging.get_verbosity()
    tf.logging.set_verbosity(tf.logging.ERROR)
    try:
        yield
    finally:
        tf.logging.set_verbosity(before)


class _OperationNumbers(object):
    """In the place of TensorFlow's dict of a graph to its next seed: how many operations the graph has so far.

    That is the seed which TensorFlow 1.15 gives an operation that has none of its own in a graph that has one.
    """

    @staticmethod
    def setdefault(graph, _):
        return graph.version

    def __getitem__(self, graph):
        return graph.version

    def __setitem__(self, graph, value):
        pass  # the graph counts


def seed_as_before():
    """Lets random numbers of graphs with a seed (tf.set_random_seed) be those of TensorFlow 1.15."""
    random_seed._graph_to_seed_dict = _OperationNumbers()


def forget_twins(modules):
    """Takes the modules of ONE_OF_TWO out of `sys.modules`, so that programs which import them get the others.

    TensorFlow's own modules keep what they have imported.
    """
    for twin, _ in ONE_OF_TWO:
        for name in [name for name in modules if name == twin or name.startswith(twin + ".")]:
            module = modules.pop(name)
            folder, _, last = name.rpartition(".")
            if name == twin and getattr(modules[folder], last, None) is module:
                delattr(modules[folder], last)


def serve_moved(modules, names):
    """Lets modules of TensorFlow's inside give what they had in 1.15 and what other modules of it have now.

    Args:
      modules: `sys.modules`.
      names: of the modules.
    """
    for name in names:
        module = modules.get(name)
        if inspect.ismodule(module):
            _serve(module, modules)


def _serve(module, modules):
    own = module.__dict__.get("__getattr__")

    def moved(name):
        if own is not None:
            try:
                return own(name)
            except AttributeError:
                pass  # what it does not know may have moved
        if name.startswith("__"):
            raise AttributeError("module '%s' has no attribute '%s'" % (module.__name__, name))
        renamed = _RENAMED.get((module.__name__, name))
        value = _at(renamed) if renamed is not None else _below(module, name)
        if value is None:
            value = _defined_elsewhere(module.__name__, name, modules)
        setattr(module, name, value)
        return value

    module.__getattr__ = moved


def _at(place):
    """What is at "module:path of attributes"."""
    name, _, path = place.partition(":")
    value = importlib.import_module(name)
    for attribute in path.split("."):
        value = getattr(value, attribute)
    return value


def _below(module, name):
    """The module of a name in a package's folder; None where there is none."""
    if not hasattr(module, "__path__"):
        return None
    try:
        return importlib.import_module("%s.%s" % (module.__name__, name))
    except ModuleNotFoundError:
        return None


def _defined_elsewhere(module, name, modules):
    """What another module of TensorFlow's inside defines under a name: one of the same folder rather than others.

    Raises:
      AttributeError: none does, or several do.
    """
    found = {}
    for other in sorted(modules):
        if other.startswith(INSIDE + ".") and other != module and inspect.ismodule(modules[other]):
            value = modules[other].__dict__.get(name)
            if value is not None and getattr(inspect.unwrap(value), "__module__", None) == other:
                found[other] = value
    folder = module.rpartition(".")[0]
    near = {other: value for other, value in found.items() if other.rpartition(".")[0] == folder}
    chosen = near if near else found
    if len(chosen) == 1:
        return next(iter(chosen.values()))
    if chosen:
        raise AttributeError(
            "module '%s' has no attribute '%s' on TensorFlow 2.15, where several modules have one: %s. Import it from "
            "the right one." % (module, name, ", ".join(sorted(chosen)))
        )
    raise AttributeError(
        "module '%s' has no attribute '%s' on TensorFlow 2.15, and no other module of TensorFlow's defines it."
        % (module, name)
    )
