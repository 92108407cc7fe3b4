"""Optimizers, monitored sessions and their hooks."""

import sys

import tensorflow.compat.v1 as tf
from tensorflow.python.training import basic_session_run_hooks as hooks_module
from tensorflow.python.training import checkpoint_management as checkpoint_module
from tensorflow.python.training import monitored_session as monitored_session_module
from tensorflow.python.training import optimizer as optimizer_module
from tensorflow.python.training import session_manager as session_manager_module
from tensorflow.python.training import training as training_module

from epl.tf_compat.kerases import with_subclasses
from epl.tf_compat.wrapping import ORIGINAL, public, wrap


def wrap_optimizer_init(wrapper):
    """`wrapper(original, optimizer, ...)` around the constructor of tf.train.Optimizer and its subclasses."""
    wrap(optimizer_module.Optimizer, "__init__", wrapper)


def optimizer_classes():
    """tf.train.Optimizer and every subclass that is known by now."""
    return with_subclasses(optimizer_module.Optimizer)


def wrap_apply_gradients(cls, wrapper):
    """Wraps `apply_gradients` in each class of `cls`'s ancestry that defines its own; once each."""
    for klass in cls.__mro__:
        own = klass.__dict__.get("apply_gradients")
        if own is not None and not hasattr(own, ORIGINAL):
            wrap(klass, "apply_gradients", wrapper)


def hyperparameters(optimizer):
    """What an AdamOptimizer or a MomentumOptimizer was made with, by the names of its constructor's arguments."""
    if isinstance(optimizer, tf.train.AdamOptimizer):
        names = {"learning_rate": "_lr", "beta1": "_beta1", "beta2": "_beta2", "epsilon": "_epsilon"}
    else:
        names = {"learning_rate": "_learning_rate", "momentum": "_momentum", "use_nesterov": "_use_nesterov"}
    names["use_locking"] = "_use_locking"
    return {name: getattr(optimizer, attribute) for name, attribute in names.items()}


def share_slots(optimizer, other):
    """Lets one tf.train.Optimizer have the slots and the further variables that another one makes."""
    other._slots = optimizer._slots
    other._non_slot_dict = optimizer._non_slot_dict


def wrap_profiler_hook(wrapper):
    """`wrapper(original, hook, step, path, step_stats)` around how tf.train.ProfilerHook writes a file."""
    wrap(hooks_module.ProfilerHook, "_save", wrapper)


def wrap_wait_for_session(wrapper):
    """Around how tf.train.Supervisor waits for another process to initialise the variables."""
    wrap(session_manager_module.SessionManager, "wait_for_session", wrapper)


def wrap_worker_session_creator(wrapper):
    """`wrapper(original, creator)` around how MonitoredTrainingSession(is_chief=False) makes its session."""
    wrap(monitored_session_module.WorkerSessionCreator, "create_session", wrapper)


def chief_session(creator):
    """Makes the session that a WorkerSessionCreator would wait for another process to make ready."""
    return tf.train.ChiefSessionCreator(
        scaffold=creator._scaffold, master=creator._master, config=creator._config
    ).create_session()


def wrap_chief_session_creator(wrapper):
    """`wrapper(original, creator)` around how monitored sessions that initialise or restore are made."""
    wrap(monitored_session_module.ChiefSessionCreator, "create_session", wrapper)


def wrap_get_checkpoint_state(wrapper):
    """Around every spelling of tf.train.get_checkpoint_state, through which the newest checkpoint is found."""
    # 2.15 has it in another place, and the module of 1.15 for old programs.
    own = sys.modules[tf.train.latest_checkpoint.__module__]
    for module in (own, checkpoint_module, training_module) + public("train"):
        if "get_checkpoint_state" in dir(module):
            wrap(module, "get_checkpoint_state", wrapper)


def problem_of_checkpoint(path):
    """Reads all of a checkpoint, checksums included, tensor by tensor; why it cannot be read, or None if it can."""
    try:
        reader = tf.train.NewCheckpointReader(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    # Which of them it is depends on TensorFlow's version and on what is wrong.
    except (tf.errors.OpError, RuntimeError, ValueError, TypeError, LookupError, OSError) as error:
        return str(getattr(error, "message", error)).splitlines()[0]
    return None


def checkpoint_of(creator):
    """The checkpoint that a ChiefSessionCreator restores; None when there is none."""
    folder, path = creator._checkpoint_dir, creator._checkpoint_filename_with_path
    return path or (getattr(tf.train.get_checkpoint_state(folder), "model_checkpoint_path", None) if folder else None)


def restore_from(creator, path):
    """Makes a ChiefSessionCreator restore this checkpoint; with None it initialises."""
    creator._checkpoint_dir = None
    creator._checkpoint_filename_with_path = path


def wrap_should_stop(wrapper):
    """`wrapper(original, monitored)` around should_stop of every kind of monitored session."""
    wrap(monitored_session_module._MonitoredSession, "should_stop", wrapper)


def wrap_leaving(wrapper):
    """`wrapper(original, session, kind, value, traceback)` around the end of a `with` of a session of either kind."""
    for cls in (tf.Session, monitored_session_module._MonitoredSession):
        wrap(cls, "__exit__", wrapper)


def session_of(monitored):
    """The tf.Session inside of a monitored one, or None when it is closed."""
    return monitored._tf_sess()


def wrap_monitored_training_session(wrapper):
    """Around every public spelling of tf.train.MonitoredTrainingSession."""
    for module in (monitored_session_module, training_module) + public("train"):
        if "MonitoredTrainingSession" in dir(module):
            wrap(module, "MonitoredTrainingSession", wrapper)


def wrap_stop_hook(wrapper):
    """`wrapper(original, hook, session, coord)` around where a StopAtStepHook gets to know its session."""
    wrap(hooks_module.StopAtStepHook, "after_create_session", wrapper)


def last_step_of(hook):
    """The global step at which a StopAtStepHook stops, once it knows its session."""
    return hook._last_step


def wrap_saver_hook(init, after_create_session, end):
    """`init(original, hook, ...)` around the constructor of CheckpointSaverHook; `after_create_session(original, hook,
    session, coord)` around where it gets to know its session; `end(original, hook, session)` around its last save."""
    wrap(hooks_module.CheckpointSaverHook, "__init__", init)
    wrap(hooks_module.CheckpointSaverHook, "after_create_session", after_create_session)
    wrap(hooks_module.CheckpointSaverHook, "end", end)


def timer_of(hook):
    """(every_secs, every_steps) of the timer that a hook or a listener keeps."""
    return limits_of(hook._timer)


def limits_of(timer):
    """(every_secs, every_steps) of a tf.train.SecondOrStepTimer."""
    return timer._every_secs, timer._every_steps


def get_timer(hook):
    return hook._timer


def set_timer(hook, timer):
    hook._timer = timer
