"""Programs with tf.estimator. Each worker reads its share of the rows, each copy of the model its share of a batch."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common

STEPS = 6
ROWS = STEPS * common.BATCH


def model_fn(features, labels, mode, params):
    """A classifier with metrics; `params` may hold hooks and a scaffold to try."""
    x = features["x"]
    x.set_shape([None, common.FEATURES])
    hidden = tf.layers.dense(x, 8, tf.nn.tanh, kernel_initializer=tf.glorot_uniform_initializer(seed=1))
    logits = tf.layers.dense(hidden, common.CLASSES, kernel_initializer=tf.glorot_uniform_initializer(seed=2))
    classes = tf.argmax(logits, -1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"classes": classes, "logits": logits}
        exports = {"serving_default": tf.estimator.export.PredictOutput(predictions)}
        return tf.estimator.EstimatorSpec(mode, predictions, export_outputs=exports)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = {
            "accuracy": tf.metrics.accuracy(labels, classes),
            "mean_iou": tf.metrics.mean_iou(labels, classes, common.CLASSES),
            "row_loss": tf.metrics.mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)),
        }
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    train_op = tf.train.AdamOptimizer(0.05, epsilon=1e-3).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, **params.get("spec", dict)())


def rows(epl, first, last):
    """This worker's rows of the global batches first..last-1, each batch divided over the workers."""
    parts = [[common.share(epl, column) for column in common.batch(step)] for step in range(first, last)]
    x, labels = (np.concatenate(columns) for columns in zip(*parts))
    return {"x": x}, labels


def input_fn(epl, first=0, last=STEPS, size=None, repeat=1):
    """A function that makes the data set; batches are of `size` rows, default one copy's part of a global batch."""
    size = size or common.BATCH // common.replicas(epl)

    def make():
        return tf.data.Dataset.from_tensor_slices(rows(epl, first, last)).repeat(repeat).batch(size)

    return make


class Losses(tf.train.SessionRunHook):
    """Remembers the loss of each step, and the global step before it."""

    def __init__(self):
        self.losses, self.starts = [], []

    def begin(self):
        self._loss = tf.get_collection(tf.GraphKeys.LOSSES)[0]
        self._step = tf.train.get_global_step()

    def after_create_session(self, session, coord):
        self.starts.append(int(session.run(self._step)))

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        self.losses.append(run_values.results)


def run_config(folder, **kwargs):
    kwargs.setdefault("save_checkpoints_steps", 4)
    return tf.estimator.RunConfig(folder, tf_random_seed=3, session_config=common.threads(), **kwargs)


def own_folder(epl, folder, shared):
    """The folder of the job, or for a job without a shared disk one of this worker."""
    return folder if shared else os.path.join(folder, "worker_%d" % common.workers(epl)[0])


def life(epl, folder, config=None, shared=True, all_rows=False):
    """Trains, evaluates, trains on, evaluates, predicts; the chief's variables at the end are in `folder`.

    With `all_rows` every worker has all rows for the evaluation, else its share.
    """
    common.init(epl, config)
    folder = own_folder(epl, folder, shared)
    estimator = tf.estimator.Estimator(model_fn, config=run_config(folder, keep_checkpoint_max=2), params={})
    hook = Losses()
    estimator.train(input_fn(epl, 0, 3), hooks=[hook])
    data = input_fn(None if all_rows else epl, 10, 14, common.BATCH // common.replicas(epl))
    metrics = [estimator.evaluate(data)]
    estimator.train(input_fn(epl, 3, 6), hooks=[hook], steps=3)
    metrics.append(estimator.evaluate(data, steps=1, name="one"))
    estimator.train(input_fn(epl, 6, 9), max_steps=6, hooks=[hook])
    config = estimator.config
    result = {
        "losses": hook.losses,
        "starts": hook.starts,
        "metrics": metrics,
        "chief": config.is_chief,
        "place": (config.num_worker_replicas, config.task_id, config.master),
        "files": sorted(os.listdir(folder)) if os.path.isdir(folder) else [],
    }
    if estimator.latest_checkpoint():
        names = estimator.get_variable_names()
        result["state"] = {name: estimator.get_variable_value(name) for name in names}
        result["predictions"] = np.array([p["logits"] for p in estimator.predict(input_fn(None, 20, 22, 5))])
    return result
