"""Programs with each Keras that a process may have, and with models that make their own training function."""

import importlib
import os
import types

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common

ROWS, EPOCHS = 16, 6


def _rows(epl):
    """This worker's share of rows whose second half is harder than the first."""
    rng = np.random.RandomState(3)
    x, y = rng.rand(ROWS, 4).astype("f"), rng.rand(ROWS, 1).astype("f")
    y[ROWS // 2 :] += 1
    return common.share(epl, x), common.share(epl, y)


def _layers(keras):
    def glorot(seed):
        return keras.initializers.glorot_uniform(seed=seed)

    first = keras.layers.Dense(8, activation="relu", input_shape=(4,), kernel_initializer=glorot(1))
    return [first, keras.layers.Dense(1, kernel_initializer=glorot(2))]


def _sgd(keras, **kwargs):
    optimizers = keras.optimizers
    legacy = getattr(optimizers, "legacy", None) or importlib.import_module(
        keras.__name__ + ".optimizer_v2.gradient_descent"
    )
    return legacy.SGD(0.3, **kwargs)


def trained(epl, package, folder, clips=False, config=None):
    """`fit` with callbacks that decide by the loss and that write, of the Keras in a package that is imported when EPL
    has begun already; the losses and rates of all epochs, the weights, and which files each worker has written."""
    common.init(epl, config)
    keras = importlib.import_module(package)
    index, count = common.workers(epl)
    folder = os.path.join(folder, "worker_%d" % index)
    os.makedirs(folder)
    made = keras.Sequential(_layers(keras))
    made.compile(_sgd(keras, clipnorm=0.5) if clips else _sgd(keras), "mse")
    x, y = _rows(epl)
    callbacks = [
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.02),
        keras.callbacks.EarlyStopping("loss", min_delta=0.002, patience=1),
        keras.callbacks.CSVLogger(os.path.join(folder, "log.csv")),
    ]
    if hasattr(keras, "__version__"):  # else it fails to save, in plain TensorFlow too
        callbacks.append(keras.callbacks.ModelCheckpoint(os.path.join(folder, "weights.h5"), save_weights_only=True))
    fitted = made.fit(x, y, batch_size=ROWS // count, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
    rates = [float(rate) for rate in fitted.history["lr"]]
    if hasattr(keras, "__version__"):
        keras.models.save_model(made, os.path.join(folder, "model.h5"))
    return {
        "loss": fitted.history["loss"],
        "rates": rates,
        "evaluated": made.evaluate(x, y, batch_size=ROWS // count, verbose=0),
        "weights": made.get_weights(),
        "files": sorted(os.listdir(folder)),
    }


def wide_and_deep(epl):
    """The losses of keras' WideDeepModel, which has two optimizers and a training function of its own."""
    common.init(epl)
    tf.set_random_seed(1)
    layers = tf.keras.layers
    wide = tf.keras.experimental.LinearModel(kernel_initializer="ones")
    deep = [layers.Dense(8, activation="relu", kernel_initializer="ones"), layers.Dense(1, kernel_initializer="ones")]
    made = tf.keras.experimental.WideDeepModel(wide, tf.keras.Sequential(deep))
    made.compile(["sgd", "adam"], "mse")
    rng = np.random.RandomState(3)
    a, b, y = [common.share(epl, rng.rand(ROWS, width).astype("f")) for width in (4, 6, 1)]
    losses = [float(made.train_on_batch([a, b], y)) for _ in range(3)]
    return {"losses": losses, "tested": float(made.test_on_batch([a, b], y)), "weights": made.get_weights()}


def own_function(epl):
    """The losses of a user's kind of model, whose training function gives twice the loss."""
    common.init(epl)

    class Own(tf.keras.Sequential):
        def _make_train_function(self):
            if getattr(self, "train_function", None) is None:
                inputs = self._feed_inputs + self._feed_targets + self._feed_sample_weights
                loss = self.total_loss
                updates = self.optimizer.get_updates(params=self._collected_trainable_weights, loss=loss)
                self.train_function = tf.keras.backend.function(inputs, [2.0 * loss], updates=updates)

    made = Own(_layers(tf.keras))
    made.compile(tf.keras.optimizers.SGD(0.1), "mse")
    x, y = _rows(epl)
    return {"losses": [float(made.train_on_batch(x, y)) for _ in range(3)], "weights": made.get_weights()}


def unknown(epl):
    """Runs a function of a Keras that nobody knows, as its back end does."""
    from epl import tf_compat

    common.init(epl)
    backend = types.ModuleType("private_keras.engine.backend")
    exec("def function(session, options):\n  return session._make_callable_from_options(options)", backend.__dict__)
    x = tf.placeholder(tf.float32, [None], name="x")
    tf.reduce_mean(x, name="y")
    with tf.Session() as session:
        options = tf_compat.CallableOptions(feed=["x:0"], fetch=["y:0"])
        return backend.function(session, options)(np.ones(4, "f"))
