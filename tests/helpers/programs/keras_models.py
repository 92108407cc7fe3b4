"""Programs with tf.keras in graph mode. Each worker feeds its share of the rows."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common, estimators

STEPS = 4


def model(scope=common.no_scope):
    layers = [
        tf.keras.layers.Dense(
            8,
            activation="tanh",
            input_shape=(common.FEATURES,),
            kernel_initializer=tf.keras.initializers.glorot_uniform(seed=1),
        ),
        tf.keras.layers.Dense(common.CLASSES, kernel_initializer=tf.keras.initializers.glorot_uniform(seed=2)),
    ]
    made = tf.keras.Sequential()
    for layer in layers:
        with scope():
            made.add(layer)
    return made


def rows(epl, first, last):
    parts = [[common.share(epl, column) for column in common.batch(step)] for step in range(first, last)]
    x, labels = (np.concatenate(columns) for columns in zip(*parts))
    return x, labels


def with_resource_variables(epl, program, *args, **kwargs):
    """A program of this module as it runs where nothing but eager execution is switched off."""
    tf.enable_resource_variables()
    tf.enable_control_flow_v2()
    tf.enable_v2_tensorshape()
    try:
        return globals()[program](epl, *args, **kwargs)
    finally:
        tf.disable_resource_variables()
        tf.disable_control_flow_v2()
        tf.disable_v2_tensorshape()


OPTIMIZERS = {
    "adam": lambda: tf.keras.optimizers.Adam(0.05, epsilon=1e-3),
    "sgd": lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "clipped": lambda: tf.keras.optimizers.SGD(0.1, clipnorm=0.1),
    "train": lambda: tf.train.AdamOptimizer(0.05, epsilon=1e-3),
    "name": lambda: "rmsprop",
}


def compiled(optimizer="adam", scope=common.no_scope):
    made = model(scope)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(OPTIMIZERS[optimizer](), loss, metrics=["accuracy"])
    return made


def fit(epl, optimizer="adam", config=None, folder=None, stages=False, split=0):
    """compile, fit with validation, evaluate, train_on_batch, predict; callbacks that write to `folder`.

    With `stages` each layer is a stage, and with `split` that many devices divide the layers. Workers that hold one
    copy of the model together have all rows.
    """
    common.init(epl, dict({"cluster.colocate_split_and_replicate": bool(split)}, **config or {}))
    scope = common.scope_of(epl) if stages else common.no_scope
    made = compiled(optimizer, (lambda: epl.split(split)) if split and epl else scope)
    if stages or split and epl and epl.Env.get().cluster.gpu_num_per_worker < split:
        epl = None
    count = common.workers(epl)[1]
    x, labels = rows(epl, 0, STEPS)
    callbacks = []
    if folder:
        callbacks = [
            tf.keras.callbacks.ModelCheckpoint(os.path.join(folder, "best.h5"), save_best_only=True),
            tf.keras.callbacks.TensorBoard(folder),
            tf.keras.callbacks.CSVLogger(os.path.join(folder, "log.csv")),
        ]
        if optimizer != "train":  # those of tf.train have no rate to change
            callbacks.append(tf.keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10))
    history = made.fit(
        x,
        labels,
        batch_size=common.BATCH // count,
        epochs=3,
        shuffle=False,
        verbose=0,
        validation_data=rows(epl, 10, 12),
        callbacks=callbacks,
    ).history
    before = made.predict(rows(None, 20, 21)[0], batch_size=5)
    evaluated = made.evaluate(*rows(epl, 10, 14), batch_size=common.BATCH // count, verbose=0)
    batches = [made.train_on_batch(*rows(epl, step, step + 1)) for step in range(5, 8)]
    tested = made.test_on_batch(*rows(epl, 8, 9))
    return {
        "history": {key: np.array(values, np.float64) for key, values in history.items()},
        "numbers": np.array(list(evaluated) + [v for b in batches for v in b] + list(tested), np.float64),
        "predictions": before,
        "weights": made.get_weights(),
        "rate": float(tf.keras.backend.get_value(made.optimizer.lr)) if hasattr(made.optimizer, "lr") else None,
        "files": sorted(os.listdir(folder)) if folder and os.path.isdir(folder) else [],
    }


def shuffled(epl, path):
    """Two workers divide the layers; rows are shuffled as the chief's generator says. Weights are saved and loaded."""
    common.init(epl, {"cluster.colocate_split_and_replicate": True})
    made = compiled("sgd", (lambda: epl.split(2)) if epl else common.no_scope)
    np.random.seed(7 + common.workers(epl)[0])
    x, labels = rows(None, 0, STEPS)
    history = made.fit(x, labels, batch_size=common.BATCH, epochs=2, verbose=0).history["loss"]
    made.save_weights(path)
    made.set_weights([0 * weight for weight in made.get_weights()])
    made.load_weights(path)
    return history + list(made.train_on_batch(*rows(None, 5, 6))) + made.get_weights()


def saved_by_the_chief(epl, path):
    """Two stages are trained for two epochs; only worker 0 has the callback that saves. Returns the weights."""
    common.init(epl)
    made = compiled("sgd", common.scope_of(epl))
    chief = common.workers(epl)[0] == 0
    callbacks = [tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True)] if chief else []
    made.fit(*rows(None, 0, 2), batch_size=common.BATCH, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    return made.get_weights()


def weights_of(epl, path):
    """The weights that a plain model loads."""
    made = compiled("sgd")
    made.fit(*rows(None, 0, 1), batch_size=common.BATCH, verbose=0)
    made.load_weights(path)
    return made.get_weights()


def load(epl, folder):
    """What the chief has saved: predictions of model.h5, and of the best weights."""
    x = rows(None, 20, 21)[0]
    whole = tf.keras.models.load_model(os.path.join(folder, "model.h5")).predict(x)
    other = model()
    other.load_weights(os.path.join(folder, "weights.h5"))
    return whole, other.predict(x)


def from_dataset(epl, folder):
    """fit and evaluate from tf.data; weights and model saved, weights lost, loaded again and trained on.

    Each worker has a folder of its own, so that only the chief finds the weights.
    """
    common.init(epl)
    folder = os.path.join(folder, "worker_%d" % common.workers(epl)[0])
    if common.workers(epl)[0] == 0:
        os.makedirs(folder)
    size = common.BATCH // common.replicas(epl)

    def data(first, last):
        return tf.data.Dataset.from_tensor_slices(rows(epl, first, last)).repeat().batch(size)

    made = compiled("sgd")
    history = made.fit(data(0, STEPS), steps_per_epoch=STEPS, epochs=2, verbose=0).history
    evaluated = made.evaluate(data(10, 12), steps=2, verbose=0)
    path = os.path.join(folder, "weights.h5")
    made.save_weights(path)
    made.save(os.path.join(folder, "model.h5"))
    saved = made.predict(rows(None, 20, 21)[0])
    made.set_weights([0 * weight for weight in made.get_weights()])
    made.load_weights(path)
    batches = [made.train_on_batch(*rows(epl, step, step + 1)) for step in range(5, 8)]
    numbers = list(evaluated) + [v for b in batches for v in b]
    return {
        "history": {key: np.array(values, np.float64) for key, values in history.items()},
        "predictions": saved,
        "numbers": np.array(numbers, np.float64),
        "weights": made.get_weights(),
    }


def as_estimator(epl, folder):
    """model_to_estimator: trains, evaluates, predicts."""
    common.init(epl)
    made = compiled("sgd")
    name = made.input_names[0]
    estimator = tf.keras.estimator.model_to_estimator(
        made, config=estimators.run_config(estimators.own_folder(epl, folder, False))
    )
    size = common.BATCH // common.replicas(epl)

    def data(part, first, last, size):
        x, labels = rows(part, first, last)
        return lambda: tf.data.Dataset.from_tensor_slices(({name: x}, labels)).batch(size)

    hook = estimators.Losses()
    estimator.train(data(epl, 0, STEPS, size), hooks=[hook])
    metrics = estimator.evaluate(data(epl, 10, 13, 4))
    predictions = None
    if common.workers(epl)[0] == 0:
        predictions = np.array([list(p.values())[0] for p in estimator.predict(data(None, 20, 21, 8))])
    return {
        "history": {},
        "numbers": np.array([metrics[key] for key in sorted(metrics)] + hook.losses, np.float64),
        "predictions": predictions,
        "weights": [],
    }


def grown(epl):
    """A model that predicts before it is compiled, is trained, compiled with another optimizer and trained again."""
    common.init(epl)
    made = model()
    x = rows(None, 20, 21)[0]
    numbers = [made.predict(x).mean()]
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for optimizer in (tf.keras.optimizers.SGD(0.1), tf.keras.optimizers.Adam(0.05, epsilon=1e-3)):
        made.compile(optimizer, loss, metrics=["accuracy"])
        numbers.extend(made.evaluate(*rows(epl, 10, 12), verbose=0))
        for step in range(3):
            numbers.extend(made.train_on_batch(*rows(epl, step, step + 1)))
        tf.keras.backend.set_value(made.optimizer.lr, 0.01)
        numbers.extend(made.train_on_batch(*rows(epl, 4, 5)))
    return {"history": {}, "numbers": np.array(numbers), "predictions": made.predict(x), "weights": made.get_weights()}


def weights_first(epl, micro_batches):
    """Weights are read, and rows predicted, between `compile` and `fit`."""
    common.init(epl, {"pipeline.num_micro_batch": micro_batches})
    made = compiled("train")
    numbers = [float(np.sum(weight)) for weight in made.get_weights()]
    numbers.append(made.predict(rows(None, 20, 21)[0]).mean())
    x, labels = rows(epl, 0, STEPS)
    history = made.fit(x, labels, batch_size=common.BATCH // common.workers(epl)[1], shuffle=False, verbose=0).history
    return {
        "history": {key: np.array(values, np.float64) for key, values in history.items()},
        "numbers": np.array(numbers),
        "predictions": made.predict(rows(None, 20, 21)[0]),
        "weights": made.get_weights(),
    }
