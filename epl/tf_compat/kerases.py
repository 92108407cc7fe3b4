"""Keras in graph mode. A process may have several: `keras`, `tf_keras`, the one inside of TensorFlow.

Whatever is wrapped is wrapped in each of them, also in those that are imported later.
"""

import functools
import importlib

import tensorflow.compat.v1 as tf
import wrapt

from epl.tf_compat.wrapping import ORIGINAL, wrap

# The package that programs import -> that of its code. keras 2.3 has its own classes over TensorFlow's functions.
_CODE = {
    "tensorflow.python.keras": ("tensorflow.python.keras",),
    "tf_keras": ("tf_keras.src",),
    "keras": ("keras.src", "keras"),
}
# Below the package that programs import: where save_model is too.
_PUBLIC = ("models", "saving", "api._v1.keras.models", "api._v1.keras.saving", "api._v2.keras.models")
_PUBLIC += ("api._v2.keras.saving",)


class _Keras(object):
    """The parts of one Keras that are wrapped.

    Args:
      code: the package of its code.

    Attributes:
      model: the class of models in graph mode.
      optimizer: the class of its optimizers, or None where they are no further concern: they only build a graph.
      sum_gradients: its sum of gradients over a strategy's devices, or None.

    Raises:
      ImportError, AttributeError: it is made otherwise than those that EPL knows.
    """

    def __init__(self, code):
        self._code = code
        self.model = self._first("engine.training_v1", "engine.training").Model
        self.backend = self._first("backend")
        self.csv_logger = self._first("callbacks").CSVLogger
        self.metric = self._first("metrics").Metric
        optimizers = self._first("optimizers.legacy.optimizer_v2", "optimizer_v2.optimizer_v2", "optimizers")
        self.optimizer = getattr(optimizers, "OptimizerV2", None)
        self.sum_gradients = getattr(getattr(optimizers, "optimizer_utils", None), "all_reduce_sum_gradients", None)

    def _first(self, *names):
        """The first of some modules that there is."""
        for name in names[:-1]:
            try:
                return importlib.import_module("%s.%s" % (self._code, name))
            except ModuleNotFoundError:
                continue
        return importlib.import_module("%s.%s" % (self._code, names[-1]))


@functools.lru_cache(maxsize=None)
def _known(code):
    """The _Keras of a package, or None where it is none that EPL knows."""
    try:
        return _Keras(code)
    except (ImportError, AttributeError):
        return None


def _keras_of(module):
    """The _Keras that a module, given by its name, is part of; or None."""
    for codes in _CODE.values():
        for code in codes:
            if (module + ".").startswith(code + "."):
                return _known(code)
    return None


def _keras_of_class(cls):
    """The _Keras that a class comes from, by inheritance; or None."""
    return next(filter(None, (_keras_of(each.__module__) for each in cls.__mro__)), None)


def unknown_keras(module):
    """The name of the package whose Keras a module, given by its name, is the back end of, if EPL does not know it."""
    parts = module.split(".")
    is_backend = "backend" in parts and any("keras" in part for part in parts)
    return parts[0] if is_backend and _keras_of(module) is None else None


def _each_keras(wrap_one):
    """Calls `wrap_one(keras)` for each Keras: now, or when it is imported."""

    def imported(codes, _):
        keras = next(filter(None, map(_known, codes)), None)
        if keras is not None:
            wrap_one(keras)

    for package, codes in _CODE.items():
        wrapt.register_post_import_hook(functools.partial(imported, codes), package)


def wrap_keras_model(make_train_function, make_test_function, fit, save, save_weights, load_weights, csv_log, values):
    """Around Keras in graph mode: methods of Model, CSVLogger's calls, the variables that may lack `values`.

    `save` is around save_model as well. The two that make functions are wrapped in users' classes of models too.
    """
    functions = {"_make_train_function": make_train_function, "_make_test_function": make_test_function}
    others = {"fit": fit, "save": save, "save_weights": save_weights, "load_weights": load_weights}

    def wrap_one(keras):
        for name, wrapper in dict(functions, **others).items():
            wrap(next(cls for cls in keras.model.__mro__ if name in cls.__dict__), name, wrapper)
        wrap(keras.model, "compile", compile_)
        for name in ("on_train_begin", "on_epoch_end", "on_train_end"):
            wrap(keras.csv_logger, name, csv_log)
        if hasattr(keras.backend, "_get_variables"):
            wrap(keras.backend, "_get_variables", values)

    def compile_(original, model, *args, **kwargs):
        for cls in type(model).__mro__:
            for name, wrapper in functions.items():
                if name in cls.__dict__ and not hasattr(cls.__dict__[name], ORIGINAL):
                    wrap(cls, name, wrapper)
        return original(model, *args, **kwargs)

    def wrap_save_model(module):
        if hasattr(module, "save_model"):
            wrap(module, "save_model", save)

    _each_keras(wrap_one)
    for package in _CODE:
        for name in _PUBLIC:
            wrapt.register_post_import_hook(wrap_save_model, "%s.%s" % (package, name))


def loss_of_function(function):
    """What a function for training or testing, which Keras has made, gives as the loss: a scalar tensor; or None."""
    loss = function.outputs[0] if getattr(function, "outputs", None) else None
    return loss if isinstance(loss, tf.Tensor) and loss.shape.ndims in (0, None) else None


def training_steps(model):
    """How many training steps the `fit` makes that a model is in, once it has begun; None: it does not say."""
    params = getattr(getattr(model, "history", None), "params", None) or {}
    epochs, steps = params.get("epochs"), params.get("steps")
    if steps is None and params.get("samples") and params.get("batch_size"):
        steps = -(-params["samples"] // params["batch_size"])
    return epochs * steps if epochs and steps else None


def keras_session(model):
    """The session in which Keras runs a model."""
    return _keras_of_class(type(model)).backend.get_session()


def wrap_keras_optimizers(init, apply_gradients):
    """`init(original, optimizer, ...)` around the constructor of Keras' optimizers, and `apply_gradients(class)` for
    each of their classes that is there already."""

    def wrap_one(keras):
        if keras.optimizer is not None:
            wrap(keras.optimizer, "__init__", init)
            for cls in with_subclasses(keras.optimizer):
                apply_gradients(cls)

    _each_keras(wrap_one)


def with_subclasses(cls):
    """A class and every subclass of it that is known by now."""
    return [cls] + [each for sub in cls.__subclasses__() for each in with_subclasses(sub)]


def wrap_keras_sums(wrapper):
    """`wrapper(original, optimizer, grads_and_vars)` around Keras' sum of gradients over a strategy's devices."""

    def wrap_one(keras):
        if keras.sum_gradients is not None:
            wrap(keras.optimizer, "_aggregate_gradients", wrapper)

    _each_keras(wrap_one)


def sums_nothing(optimizer):
    """Whether a Keras optimizer's sum of gradients gives back what it gets: it is Keras' own, of a single device."""
    own = _keras_of_class(type(optimizer)).sum_gradients
    return optimizer.gradient_aggregator is own and not tf.distribute.has_strategy()


def wrap_keras_metric_weight(wrapper):
    """`wrapper(original, metric, ...)` around how a Keras metric makes its variables."""
    _each_keras(lambda keras: wrap(keras.metric, "add_weight", wrapper))
