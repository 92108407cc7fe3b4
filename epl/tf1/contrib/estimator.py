"""`tf.contrib.estimator`: what moved into tensorflow_estimator."""

from epl.tf1.gathered import gathered

_ESTIMATOR = "tensorflow_estimator.python.estimator."

__getattr__, __dir__ = gathered(
    __name__,
    modules=("tensorflow:estimator.experimental", "tensorflow:estimator"),
    names={
        "InMemoryEvaluatorHook": "tensorflow:estimator.experimental.InMemoryEvaluatorHook",
        "add_metrics": "tensorflow:estimator.add_metrics",
        "binary_classification_head": "tensorflow:estimator.BinaryClassHead",
        "clip_gradients_by_norm": _ESTIMATOR + "extenders:clip_gradients_by_norm",
        "forward_features": _ESTIMATOR + "extenders:forward_features",
        "multi_class_head": "tensorflow:estimator.MultiClassHead",
        "multi_head": "tensorflow:estimator.MultiHead",
        "multi_label_head": "tensorflow:estimator.MultiLabelHead",
        "regression_head": "tensorflow:estimator.RegressionHead",
    },
)
