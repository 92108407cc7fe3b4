"""Monitored sessions of several workers begin with the same state, save at the same steps and end together."""

import os

import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture.record import make_program, record_of
from epl.env import Env
from epl.launch import notice
from epl.program.program import EACH_WORKER
from epl.session.agreement import current_agreement
from epl.session.beside import BESIDE
from epl.session.front_ends.chief import is_chief, several_workers
from epl.session.front_ends.meeting import check_found_by_all, from_chief
from epl.session.hooks import driver_of, job
from epl.session.laid_out import divided_over_workers


def install():
    """Hooks monitored sessions. Calling it again changes nothing."""
    tf_compat.wrap_chief_session_creator(_create)
    tf_compat.wrap_worker_session_creator(_create_as_chief)
    tf_compat.wrap_should_stop(_should_stop)
    tf_compat.wrap_monitored_training_session(_training_session)
    tf_compat.wrap_saver_hook(_saver_hook, _saver_hook_begins, _saver_hook_ends)
    tf_compat.wrap_stop_hook(_stop_hook)


def trains(graph):
    """True for a graph with an optimizer, of TensorFlow's or written by hand: all workers run its session together."""
    record = record_of(graph)
    return bool(record.apply_calls or record.computed and make_program(graph).apply_calls)


def synchronise(session):
    """Gives the variables of a session the chief's values on all workers. Every worker must call it."""
    driver = driver_of(session)
    if driver is not None:
        driver.synchronise()


def _create(original, creator):
    """The session of a ChiefSessionCreator. Hooks and the program see the chief's values from the start.

    The other workers' folders may hold nothing, or something else: they do not restore. Only where each worker has a
    part of the model of its own, it restores that, from the same files.
    """
    graph = tf.get_default_graph()
    together = several_workers() and (trains(graph) or record_of(graph).role == EACH_WORKER)
    if together:
        divided, positions = divided_over_workers(graph), Env.get().config.checkpoint.data_position
        path = _shared_checkpoint(creator) if trains(graph) and (divided or positions) else None
        if not is_chief():
            tf_compat.restore_from(creator, path if divided else None)
    session = original(creator)
    if together:
        if path and not is_chief():
            driver_of(session).take_up_data(path)
        synchronise(session)
    return session


def _shared_checkpoint(creator):
    """The chief's checkpoint, of which each worker takes its stages and its data's position; None if there is none."""
    # Like the first step that communicates, which it comes before.
    limit_s = Env.get().config.communication.start_timeout_s
    path = from_chief(lambda: tf_compat.checkpoint_of(creator), limit_s)
    if not path:
        return None
    try:
        found = tf.train.checkpoint_exists(path)
    except tf.errors.NotFoundError:  # TensorFlow 1.15 raises it where the folder is not there
        found = False
    check_found_by_all(path, found)
    return path


def _create_as_chief(original, creator):
    """MonitoredTrainingSession(is_chief=False): no other process will initialise this one's variables."""
    del original
    return tf_compat.chief_session(creator)


def _should_stop(original, monitored):
    """A worker that stops tells the others, whose next step would wait for it in vain. With notice all stop."""
    stop = original(monitored) or has_notice()
    session = tf_compat.session_of(monitored) if stop else None
    driver = driver_of(session) if session is not None else None
    if driver is not None and trains(session.graph):
        driver.finish()
    return stop


def _training_session(original, *args, **kwargs):
    """With is_chief=False the hooks of the chief stay out, but for those that save: their listeners may evaluate.

    What such a hook would write is kept from the disk where files are written.
    """
    if several_workers() and not kwargs.get("is_chief", args[1] if len(args) > 1 else True):
        saving = [
            hook for hook in kwargs.get("chief_only_hooks") or () if isinstance(hook, tf.train.CheckpointSaverHook)
        ]
        kwargs["hooks"] = saving + list(kwargs.get("hooks") or ())
    return original(*args, **kwargs)


def _saver_hook(original, hook, *args, **kwargs):
    original(hook, *args, **kwargs)
    every_s = Env.get().config.checkpoint.every_s
    if every_s:
        tf_compat.set_timer(hook, tf.train.SecondOrStepTimer(every_secs=every_s))
    share_timer(hook)
    tf_compat.set_timer(hook, NoticeTimer(tf_compat.get_timer(hook)))


def _saver_hook_begins(original, hook, session, coord):
    original(hook, session, coord)
    driver = driver_of(session)
    if driver is not None:
        driver.is_saved_by_hook = True


def _saver_hook_ends(original, hook, session):
    """Training has ended well if its last checkpoint is written; monitored sessions drop errors of the end itself."""
    original(hook, session)
    BESIDE.settle(driver_of(session))


def has_notice():
    """Whether the launcher has given notice that the job has to end; at the end of a step the same on all workers."""
    return current_agreement().notice if several_workers() else notice.given(os.environ)


class NoticeTimer(tf.train.SecondOrStepTimer):
    """Another timer, which triggers besides when there is notice that the job has to end: once, for that step.

    Args:
      timer: the other one.
    """

    def __init__(self, timer):
        self._timer = timer
        super().__init__(*tf_compat.limits_of(timer))
        self._saved = False  # since there was notice

    def reset(self):
        self._timer.reset()

    def should_trigger_for_step(self, step):
        due = has_notice() and not self._saved and self._timer.last_triggered_step() != step
        return due or self._timer.should_trigger_for_step(step)

    def update_last_triggered_step(self, step):
        self._saved = has_notice()
        return self._timer.update_last_triggered_step(step)

    def last_triggered_step(self):
        return self._timer.last_triggered_step()


def _stop_hook(original, hook, session, coord):
    """The step at which training ends is what progress is compared with."""
    original(hook, session, coord)
    job().following.ends_at(tf_compat.last_step_of(hook))


def share_timer(owner):
    """Lets the timer of a hook or listener go by a clock that is the same on all workers."""
    every_secs, every_steps = tf_compat.timer_of(owner)
    if every_secs is not None and several_workers():
        tf_compat.set_timer(owner, SharedTimer(every_secs, every_steps))


class SharedTimer(tf.train.SecondOrStepTimer):
    """Triggers every so many seconds of the clock that workers agree on at each step, hence at the same steps."""

    def __init__(self, every_secs=None, every_steps=None):
        super().__init__(every_secs, every_steps)
        self._seconds = every_secs
        self._then = None

    def should_trigger_for_step(self, step):
        clock = current_agreement().clock
        if clock is None or self.last_triggered_step() is None:
            return super().should_trigger_for_step(step)
        if self._then is None:  # triggered before the workers had a clock in common
            self._then = clock
        return self.last_triggered_step() != step and clock >= self._then + self._seconds

    def update_last_triggered_step(self, step):
        self._then = current_agreement().clock
        return super().update_last_triggered_step(step)
