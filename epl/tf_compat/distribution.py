"""What programs may use to distribute themselves, and eager execution: caught to be refused."""

from tensorflow.python.distribute import distribute_lib
from tensorflow.python.framework import ops
from tensorflow.python.training import server_lib as server_module
from tensorflow_estimator.python.estimator.tpu import tpu_estimator as tpu_estimator_module

from epl.tf_compat.wrapping import wrap


def wrap_strategies(made, scope):
    """`made(original, extended, strategy)` around the constructor of what does the work of a tf.distribute strategy,
    which runs before the strategy's own; `scope(original, strategy)` around `scope`."""
    wrap(distribute_lib.StrategyExtendedV2, "__init__", made)
    wrap(getattr(distribute_lib, "StrategyBase", distribute_lib.Strategy), "scope", scope)


def is_default_strategy(strategy):
    """True for the one that TensorFlow makes where a program has none."""
    return type(strategy).__name__.startswith("_DefaultDistributionStrategy")


def wrap_server(wrapper):
    """`wrapper(original, server, ...)` around the constructor of tf.train.Server."""
    wrap(server_module.Server, "__init__", wrapper)


def never_started(server):
    """Takes the destructor from a server that is refused before its constructor ran: there is nothing to stop."""
    server.__class__ = type("NeverStarted", (object,), {})


def wrap_tpu_estimator(wrapper):
    """`wrapper(original, estimator, ...)` around the constructor of TPUEstimator."""
    wrap(tpu_estimator_module.TPUEstimator, "__init__", wrapper)


def wrap_enable_eager(wrapper):
    """Around what every public spelling of tf.enable_eager_execution calls."""
    wrap(ops, "enable_eager_execution_internal", wrapper)
