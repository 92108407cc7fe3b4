"""`tf.contrib.summary`: summaries that operations write themselves."""

import tensorflow.compat.v1 as tf

from epl.tf1.gathered import gathered

_V2 = "tensorflow:compat.v2.summary."

__getattr__, __dir__ = gathered(
    __name__,
    names={
        "create_file_writer": _V2 + "create_file_writer",
        "create_summary_file_writer": _V2 + "create_file_writer",
        "SummaryWriter": _V2 + "SummaryWriter",
        "all_summary_ops": "tensorflow:summary.all_v2_summary_ops",
        "flush": _V2 + "flush",
        "initialize": "tensorflow:summary.initialize",
        "should_record_summaries": _V2 + "should_record_summaries",
        "audio": _V2 + "audio",
    },
)


def always_record_summaries():
    """A scope in which summaries are written."""
    return tf.compat.v2.summary.record_if(True)


def never_record_summaries():
    """A scope in which none is."""
    return tf.compat.v2.summary.record_if(False)


def record_summaries_every_n_global_steps(n, global_step=None):
    """A scope in which those of every n-th step are."""
    step = _step(global_step)
    return tf.compat.v2.summary.record_if(tf.equal(step % n, 0))


def _step(step):
    return step if step is not None else tf.train.get_or_create_global_step()


def scalar(name, tensor, family=None, step=None):
    """Writes a number; `step` is the global step by default."""
    return tf.compat.v2.summary.scalar(_named(name, family), tensor, step=_step(step))


def histogram(name, tensor, family=None, step=None):
    """Writes the distribution of a tensor's numbers."""
    return tf.compat.v2.summary.histogram(_named(name, family), tensor, step=_step(step))


def image(name, tensor, bad_color=None, max_images=3, family=None, step=None):
    """Writes images [batch, height, width, channels]."""
    if bad_color is not None:
        raise ValueError("tf.contrib.summary.image: bad_color is not served on TensorFlow 2.15.")
    return tf.compat.v2.summary.image(_named(name, family), tensor, step=_step(step), max_outputs=max_images)


def _named(name, family):
    return "%s/%s" % (family, name) if family else name
