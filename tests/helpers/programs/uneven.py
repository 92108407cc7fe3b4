"""Estimators and Keras models whose devices have parts of different size of a batch: stages of different device counts,
and cluster.device_weights."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common, estimators, keras_models, pipelines

ROWS = 12  # of a micro-batch


def start(epl, devices, counts, weights, micro_batches):
    """Starts EPL with so many devices in each worker; (what makes the scope of all, what that of each layer)."""
    if not epl:
        return common.no_scope, common.no_scope
    keys = {"cluster.device_weights": list(weights), "pipeline.num_micro_batch": micro_batches}
    with pipelines.devices_of(devices):
        common.init(epl, keys)
    if len(counts) == 1:
        return (lambda: epl.replicate(counts[0])), common.no_scope
    made = []

    def scope():
        made.append(counts[len(made) % len(counts)])
        return epl.replicate(made[-1], name="stage_%d" % ((len(made) - 1) % len(counts)))

    return common.no_scope, scope


def rows(size, first, last):
    parts = [common.batch(step, size) for step in range(first, last)]
    x, labels = (np.concatenate(columns) for columns in zip(*parts))
    return x, labels


def estimator(epl, folder, devices, counts, weights=(), micro_batches=1):
    """Trains, evaluates, trains on, evaluates and predicts, from data sets: what came of it, and all variables."""
    whole, scope = start(epl, devices, counts, weights, micro_batches)
    size = ROWS * micro_batches
    own = ROWS if epl else size

    def model_fn(features, labels, mode, params):
        with whole():
            return estimators.model_fn(features, labels, mode, params)

    def data(first, last, batch, mine=None):
        x, labels = rows(size, first, last)
        if mine:
            x, labels = common.share(mine, x), common.share(mine, labels)
        return lambda: tf.data.Dataset.from_tensor_slices(({"x": x}, labels)).batch(batch)

    made = tf.estimator.Estimator(model_fn, config=estimators.run_config(folder), params={"scope": scope})
    hook, metrics = estimators.Losses(), []
    for first in (0, 2):
        made.train(data(first, first + 2, own), hooks=[hook])
        metrics.append(made.evaluate(data(10, 12, 4, epl)))
    predicted = np.array([p["logits"] for p in made.predict(data(20, 21, 5))])
    return {
        "losses": hook.losses,
        "metrics": metrics,
        "state": estimators.variables(made)[0],
        "predictions": predicted,
    }


def keras(epl, devices, counts, weights=(), micro_batches=1, optimizer="adam", source="feed", short=False):
    """fit with validation, evaluate, train_on_batch, predict; from arrays, or from data sets.

    With `short` some batches have a number of rows that the devices cannot divide.
    """
    whole, scope = start(epl, devices, counts, weights, micro_batches)
    with whole():
        made = keras_models.compiled(optimizer, scope)
    size, steps = ROWS * micro_batches, 3
    begin, end = own_rows(epl, counts, weights)

    def mine(first, last):
        """This worker's rows of the steps' batches."""
        x, labels = (each.reshape((last - first, size) + each.shape[1:]) for each in rows(size, first, last))
        here = slice(int(round(begin * size)), int(round(end * size)))
        return [np.concatenate(list(each[:, here])) for each in (x, labels)]

    def data(first, last):
        return tf.data.Dataset.from_tensor_slices(rows(size, first, last)).repeat().batch(ROWS if epl else size)

    if source == "data":
        taken = {"x": data(0, steps), "steps_per_epoch": steps, "validation_data": data(10, 12), "validation_steps": 2}
    else:
        x, labels = mine(0, steps)
        taken = {"x": x, "y": labels, "batch_size": len(x) // steps, "validation_data": tuple(mine(10, 12))}
    history = made.fit(epochs=2, shuffle=False, verbose=0, **taken).history
    predictions = made.predict(rows(size, 20, 21)[0], batch_size=5 if short else 6)
    if source == "data":
        evaluated = made.evaluate(data(10, 13), steps=3, verbose=0)
    else:
        evaluated = made.evaluate(*mine(10, 13), batch_size=len(x) // steps, verbose=0)
    batches = []
    for step in range(5, 8):
        batch = mine(step, step + 1)
        batches.append(made.train_on_batch(*([each[:5] for each in batch] if short and step == 6 else batch)))
    tested = made.test_on_batch(*mine(8, 9))
    return {
        "history": {key: np.array(values, np.float64) for key, values in history.items()},
        "numbers": np.array(list(evaluated) + [v for b in batches for v in b] + list(tested), np.float64),
        "predictions": predictions,
        "weights": made.get_weights(),
    }


def own_rows(epl, counts, weights):
    """Where the rows of this worker's devices begin and end, of one."""
    index, workers = common.workers(epl)
    if not epl or len(counts) > 1:  # every worker feeds all rows where it may have no part of the first stage
        return 0, 1
    each = len(weights) // workers
    ends = np.cumsum([0] + list(weights)) / sum(weights)
    return ends[index * each], ends[(index + 1) * each]
