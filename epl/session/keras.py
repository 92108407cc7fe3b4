"""tf.keras in graph mode: losses over the whole batch, files at the chief only."""

import logging
import os

import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture.collections import GraphKeys, add_to_collection
from epl.capture.record import record_of
from epl.env import Env
from epl.session.chief import is_chief
from epl.session.meeting import wait_for_all

_LOG = logging.getLogger("epl")


def install():
    """Hooks tf.keras. Calling it again changes nothing."""
    tf_compat.wrap_keras_model(
        make_train_function=_make_function,
        make_test_function=_make_function,
        fit=_fit,
        save=_chief_only,
        save_weights=_chief_only,
        load_weights=_load_weights,
        csv_log=_chief_only,
    )


def _make_function(original, model):
    """The loss that Keras reports, and that callbacks decide by, is that of the whole batch on every worker."""
    original(model)
    loss = model.total_loss
    if isinstance(loss, tf.Tensor) and not tf_compat.is_function_graph(loss.graph):
        if not any(loss.name in names for names in record_of(loss.graph).merges.values()):
            add_to_collection(loss, GraphKeys.GLOBAL_MEAN_OBJECTS)


def _fit(original, model, *args, **kwargs):
    result = original(model, *args, **kwargs)
    wait_for_all()  # the chief has written what its callbacks write, which others may read from here on
    return result


def _chief_only(original, *args, **kwargs):
    return original(*args, **kwargs) if is_chief() else None


def _load_weights(original, model, filepath, *args, **kwargs):
    """A file that the chief has written may be on its disk only; its values come with the next training step."""
    if not is_chief() and not any(os.path.exists(str(filepath) + end) for end in ("", ".index")):
        _LOG.info(
            "worker %d does not find the weights '%s', and takes those of worker 0",
            Env.get().cluster.worker_index,
            filepath,
        )
        return None
    return original(model, filepath, *args, **kwargs)
