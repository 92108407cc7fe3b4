"""tf.keras in graph mode."""

import tensorflow.compat.v1 as tf

from epl.tf_compat.wrapping import line, public, wrap

if line() == "tf1":
    from tensorflow.python.keras import backend as keras_backend_module
    from tensorflow.python.keras.engine import training as keras_training_module
    from tensorflow.python.keras.optimizer_v2 import optimizer_v2 as keras_optimizer_module

    keras_sum = None
else:
    from keras.src import backend as keras_backend_module
    from keras.src.engine import training_v1 as keras_training_module
    from keras.src.optimizers.legacy import optimizer_v2 as keras_optimizer_module
    from keras.src.optimizers.legacy.optimizer_v2 import optimizer_utils as keras_optimizer_utils

    keras_sum = keras_optimizer_utils.all_reduce_sum_gradients


def wrap_keras_model(make_train_function, make_test_function, fit, save, save_weights, load_weights, csv_log, values):
    """Around tf.keras in graph mode: methods of Model, CSVLogger's calls, the variables that may lack `values`.

    `save` is around tf.keras.models.save_model as well.
    """
    wrap(keras_backend_module, "_get_variables", values)
    training = keras_training_module.Model
    wrap(training, "_make_train_function", make_train_function)
    wrap(training, "_make_test_function", make_test_function)
    wrap(training, "fit", fit)
    for name, wrapper in (("save", save), ("save_weights", save_weights), ("load_weights", load_weights)):
        wrap(next(cls for cls in training.__mro__ if name in cls.__dict__), name, wrapper)
    for module in public("keras"):
        wrap(module.models, "save_model", save)
    for name in ("on_train_begin", "on_epoch_end", "on_train_end"):
        wrap(tf.keras.callbacks.CSVLogger, name, csv_log)


def wrap_keras_optimizer_init(wrapper):
    """`wrapper(original, optimizer, ...)` around the constructor of Keras' optimizers."""
    wrap(keras_optimizer_module.OptimizerV2, "__init__", wrapper)


def wrap_keras_sums(wrapper):
    """`wrapper(original, optimizer, grads_and_vars)` around Keras' sum of gradients over a strategy's devices."""
    if keras_sum is not None:
        wrap(keras_optimizer_module.OptimizerV2, "_aggregate_gradients", wrapper)


def sums_nothing(optimizer):
    """Whether a Keras optimizer's sum of gradients gives back what it gets: it is Keras' own, of a single device."""
    return optimizer.gradient_aggregator is keras_sum and not tf.distribute.has_strategy()


def wrap_keras_metric_weight(wrapper):
    """`wrapper(original, metric, ...)` around how a Keras metric makes its variables."""
    wrap(tf.keras.metrics.Metric, "add_weight", wrapper)
