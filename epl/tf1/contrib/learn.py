"""`tf.contrib.learn`: modes, settings of runs, and vocabularies. Its estimators became `tf.estimator`'s."""

import tensorflow.compat.v1 as tf

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__,
    names={
        "RunConfig": "tensorflow:estimator.RunConfig",
        "TaskType": "tensorflow_estimator.python.estimator.run_config:TaskType",
        "learn": __name__,
        "preprocessing": "epl.tf1.vocabulary",
        "python": __name__,
    },
)


class ModeKeys(object):
    """What a model function is called for; the values of contrib, of which EVAL and INFER are those of tf.estimator."""

    TRAIN = tf.estimator.ModeKeys.TRAIN
    EVAL = tf.estimator.ModeKeys.EVAL
    INFER = tf.estimator.ModeKeys.PREDICT
