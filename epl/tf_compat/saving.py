"""Checkpoints, exports, graphs and events in files."""

from tensorflow.python.client import session as session_module
from tensorflow.python.saved_model import builder_impl as builder_module
from tensorflow.python.summary.writer import writer as writer_module
from tensorflow.python.training import checkpoint_utils as checkpoint_utils_module
from tensorflow.python.training import saver as saver_module
from tensorflow.python.training import supervisor as supervisor_module
from tensorflow.python.training import training_util

from epl.tf_compat.wrapping import line, public, wrap

if line() == "tf1":
    from tensorflow.python.training import checkpoint_management as checkpoint_management_module
    from tensorflow.python.training.tracking import util as object_checkpoint_module
else:
    from tensorflow.python.checkpoint import checkpoint as object_checkpoint_module
    from tensorflow.python.checkpoint import checkpoint_management as checkpoint_management_module


def wrap_saver_build(wrapper):
    wrap(saver_module.Saver, "_build", wrapper)


def wrap_saver_save(wrapper):
    wrap(saver_module.Saver, "save", wrapper)


def keep_latest(saver, number):
    """Before a tf.train.Saver that is built saves: it keeps so many checkpoints, whatever the program has said.

    Args:
      saver: the Saver; it may know of more, of which the oldest go with `remove_older`.
      number: 1 or more.
    """
    saver.saver_def.max_to_keep = number
    known = saver._last_checkpoints
    surplus = max(0, len(known) - number)
    saver._checkpoints_to_be_deleted.extend(known[:surplus])
    del known[:surplus]


def remove_older(saver, meta_graph_suffix):
    """Once a Saver has saved: removes what it no longer keeps; TensorFlow itself removes one at each time."""
    while saver._checkpoints_to_be_deleted:
        saver._MaybeDeleteOldCheckpoints(meta_graph_suffix=meta_graph_suffix)


class _SaverSession(session_module.SessionInterface):
    """Stands for a session that a tf.train.Saver is given to save with."""

    def __init__(self, graph, write):
        self._graph, self._write = graph, write

    @property
    def graph(self):
        return self._graph

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        return self._write()


def writer_for_saver(session, write):
    """What a tf.train.Saver can be given in the place of a session: its one run, which writes, is `write()`."""
    return _SaverSession(session.graph, write)


def checkpoint_name(saver, prefix, step):
    """The name of a checkpoint that a tf.train.Saver saves for a global step, a number."""
    return ("%s-%08d" if saver._pad_step_number else "%s-%d") % (prefix, step)


def write_meta_graph(saver, graph, checkpoint, suffix, **options):
    """Writes the file `.meta` beside a checkpoint, as a tf.train.Saver's `save` does.

    Args:
      saver: the Saver.
      graph: the tf.Graph.
      checkpoint: its name.
      suffix: of the file.
      **options: of `save` that `export_meta_graph` has too.
    """
    with graph.as_default():
        saver.export_meta_graph(checkpoint_management_module.meta_graph_filename(checkpoint, suffix), **options)


def wrap_load_checkpoint(wrapper):
    """Around every spelling of tf.train.load_checkpoint."""
    for module in (checkpoint_utils_module,) + public("train"):
        if "load_checkpoint" in dir(module):
            wrap(module, "load_checkpoint", wrapper)


def wrap_saver_restore(wrapper):
    wrap(saver_module.Saver, "restore", wrapper)


def wrap_supervisor_saves(wrapper):
    """Around what the thread of a tf.train.Supervisor that saves does each time."""
    wrap(supervisor_module.SVTimerCheckpointThread, "run_loop", wrapper)


def wrap_object_checkpoints(save, update_state):
    """Around how tf.train.Checkpoint and Keras write variables, and around what writes the file `checkpoint`."""
    wrap(object_checkpoint_module.TrackableSaver, "save", save)
    wrap(checkpoint_management_module, "update_checkpoint_state_internal", update_state)


def wrap_saved_model_builder(init, save):
    """Around the constructor of tf.saved_model.Builder, and around its `save`, on which all exports of 1.x rest."""
    wrap(builder_module._SavedModelBuilder, "__init__", init)
    wrap(builder_module._SavedModelBuilder, "save", save)


def export_folder_of(builder):
    """The folder that a tf.saved_model.Builder writes."""
    return builder._export_dir


def wrap_write_graph(wrapper):
    """Around every public spelling of tf.train.write_graph."""
    wrap(training_util, "write_graph", wrapper)
    for module in public("train") + public("io"):
        if "write_graph" in dir(module):
            wrap(module, "write_graph", wrapper)


def wrap_event_writers(wrapper):
    """`wrapper(original, ...)` makes the object to which tf.summary.FileWriter hands its events."""
    for name in ("EventFileWriter", "EventFileWriterV2"):
        wrap(writer_module, name, wrapper)
