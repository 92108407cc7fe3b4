"""`tf.contrib.eager`: what programs that build graphs take from it."""

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__,
    names={
        "GradientTape": "tensorflow:GradientTape",
        "Variable": "tensorflow.python.ops.resource_variable_ops:ResourceVariable",
        "custom_gradient": "tensorflow:custom_gradient",
        "defun": "tensorflow:compat.v2.function",
        "enable_eager_execution": "tensorflow:enable_eager_execution",
        "executing_eagerly": "tensorflow:executing_eagerly",
        "function": "tensorflow:compat.v2.function",
        "in_eager_mode": "tensorflow:executing_eagerly",
        "py_func": "tensorflow:py_function",
        "python": __name__,
        "tfe": __name__,
        "run_test_in_graph_and_eager_modes": "tensorflow.python.framework.test_util:run_in_graph_and_eager_modes",
    },
)
