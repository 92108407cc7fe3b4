"""Where session calls are caught: everything that runs a graph goes to a Driver, by names."""

import functools
import os
import sys

import numpy as np

from epl import tf_compat
from epl.capture.caught import INNER
from epl.capture.record import has_record
from epl.env import Env
from epl.errors import CaptureError, UnsupportedError
from epl.launch import notes
from epl.session.beside import BESIDE
from epl.session.driver import Driver
from epl.session.endings.peer_errors import FromPeer
from epl.session.following import Following
from epl.session.job import Job
from epl.session.owned import disown

PREVIEW = "EPL_PREVIEW"  # set: nothing is run; the first run raises a Preview with the plan
_DRIVER = "_epl_driver"
_JOB = "job"


class Preview(BaseException):
    """Ends a script at its first run. Carries the graph."""

    def __init__(self, graph):
        super().__init__("the script has come to its first session run")
        self.graph = graph


class NotStarted(BaseException):
    """Ends a script that is run for its plan where it would train without having called `epl.init()`."""


def watch_plan():
    """Before a script is run for its plan: what would train before `epl.init()` raises NotStarted."""
    tf_compat.wrap_session_runs(_not_started)
    tf_compat.wrap_tape_gradient(_not_started)


def _not_started(original, *args, **kwargs):
    raise NotStarted()


def watch():
    """Before `epl.init()`: refuses sessions of a worker that epl-launch has started, as each would train for itself."""
    if os.environ.get(notes.VARIABLE) and not os.environ.get(PREVIEW):
        tf_compat.wrap_session_init(_too_early)


def install():
    """Hooks sessions. Calling it again changes nothing."""
    tf_compat.wrap_session(
        init=_init,
        do_run=_do_run,
        make_callable=_make_callable,
        callable_from_options=_callable_from_options,
        partial_run_setup=_partial_run_setup,
        close=_close,
    )
    tf_compat.wrap_leaving(_leave)


def job():
    """The process's Job; made at first use, kept by Env."""
    env = Env.get()
    return _NobodyElse() if os.environ.get(PREVIEW) else env.state(_JOB, lambda: Job(env.cluster, env.config))


def start_job(before):
    """Makes the process's Job now, out of the one before if the cluster is still the same.

    Args:
      before: the Job before `epl.init` started afresh, or None.
    """
    env = Env.get()
    if before is not None and _place(before.cluster) == _place(env.cluster):
        before.restart(env.config)
        env.state(_JOB, lambda: before)
        return
    if before is not None:
        before.close()
    job()


def driver_of(session):
    """The Driver behind a session of the user's, or None."""
    driver = getattr(session, _DRIVER, None)
    return driver if isinstance(driver, Driver) else None


def _place(cluster):
    return cluster.worker_num, cluster.worker_index, cluster.hosts, cluster.token


def current_job():
    """The process's Job if there is one, else None."""
    return Env.get().peek_state(_JOB)


def _too_early(original, session, *args, **kwargs):
    if notes.state_of(os.environ) == "":  # else a process that this worker has started, to do something else
        tf_compat.never_opened(session)
        raise CaptureError(
            "a session is opened before epl.init() in a worker of epl-launch, which would train for itself, as all "
            "others would, and overwrite their files. Write epl.init() right after the imports, before the model is "
            "built."
        )
    original(session, *args, **kwargs)


def _init(original, session, target="", graph=None, config=None):
    if target and not hasattr(graph, INNER):
        tf_compat.never_opened(session)
        raise UnsupportedError(
            "a session with the target %r runs on another process's server. With EPL every worker runs its own "
            "session: make "
            "it without a target, and without tf.train.Server." % (target,)
        )
    original(session, target, graph, config)
    if hasattr(session.graph, INNER):
        return
    if os.environ.get(PREVIEW):
        setattr(session, _DRIVER, _Preview(session.graph))
        return
    env = Env.get()
    setattr(session, _DRIVER, Driver(session.graph, config, env.config, env.cluster, job()))


class _NobodyElse(object):
    """The Job of a script that is run for its plan alone: what it does before its first run waits for nobody."""

    def __init__(self):
        self.following = Following({})

    def meet(self, message, limit_s=None):
        del limit_s
        return [message] * Env.get().cluster.worker_num


class _Preview(object):
    def __init__(self, graph):
        self._graph = graph

    def run(self, *args, **kwargs):
        raise Preview(self._graph)

    def close(self):
        pass


def _do_run(original, session, handle, target_list, fetch_list, feed_dict, options, run_metadata):
    driver = getattr(session, _DRIVER, None)
    if driver is None:
        _check_opened_in_time(session.graph)
        return original(session, handle, target_list, fetch_list, feed_dict, options, run_metadata)
    fetches = tuple(t.name for t in fetch_list)
    targets = tuple(op.name for op in target_list)
    feeds = {tf_compat.fed_tensor_name(key): value for key, value in feed_dict.items()} if feed_dict else {}

    def run():
        try:
            return driver.run(fetches, targets, feeds, tf_compat.buffer_bytes(options), run_metadata), None
        except FromPeer as error:
            return None, error.error

    # TensorFlow's own wrapper says where in the user's program a failing operation was made; an error that came from
    # another
    # worker has no such place here.
    values, error = session._do_call(run)  # pylint: disable=protected-access
    if error is not None:
        raise error
    return values


def _check_opened_in_time(graph):
    """Raises CaptureError for a session of the program's that was opened before `epl.init()` saw its graph."""
    if has_record(graph) and not hasattr(graph, INNER):
        raise CaptureError(
            "this session was opened before epl.init(), so what it runs would be of one device. Call epl.init() right "
            "after the imports, and open sessions after it."
        )


def _make_callable(original, session, fetches, feed_list=None, accept_options=False):
    if getattr(session, _DRIVER, None) is None or feed_list is not None:
        return original(session, fetches, feed_list, accept_options)
    if accept_options:
        return lambda options=None, run_metadata=None: session.run(fetches, options=options, run_metadata=run_metadata)
    return functools.partial(session.run, fetches)


def _callable_from_options(original, session, callable_options):
    driver = getattr(session, _DRIVER, None)
    if driver is None:
        return original(session, callable_options)
    _check_keras(sys._getframe(2).f_globals.get("__name__", ""))  # pylint: disable=protected-access
    feeds = tuple(callable_options.feed)
    fetches = tuple(name if ":" in name else name + ":0" for name in callable_options.fetch)
    targets = tuple(name.split(":")[0] for name in callable_options.target)
    sources = tuple(each.from_tensor for each in callable_options.tensor_connection)
    sinks = tuple(each.to_tensor for each in callable_options.tensor_connection)

    def call(*values, **kwargs):
        if kwargs.get("run_metadata") is not None:
            raise UnsupportedError(
                "run_metadata of a callable made from options is not supported with EPL; use session.run"
            )
        fed = dict(zip(feeds, (np.asarray(v) for v in values)))
        try:
            if sources:
                fed.update(zip(sinks, _drawn(driver, sources, driver.num_copies(fetches, targets, feeds + sinks))))
            return driver.run(fetches, targets, fed)
        except FromPeer as error:
            raise error.error from None

    return call


def _check_keras(caller):
    """Raises UnsupportedError where a function of a Keras is made whose models and callbacks EPL does not see."""
    unknown = tf_compat.unknown_keras(caller)
    if unknown is not None:
        raise UnsupportedError(
            "the Keras of the package %s is none that EPL knows, so losses, callbacks and files would be those of one "
            "copy of the model. Use tf.keras, or the package tf_keras or keras in a version that goes with this "
            "TensorFlow." % unknown
        )


def _drawn(driver, sources, times):
    """Values of tensors that stand for fed ones, as Keras feeds from a data set; a batch for each copy of the model."""
    batches = [driver.run(sources, (), {}) for _ in range(times)]
    return batches[0] if times == 1 else [np.concatenate(parts) for parts in zip(*batches)]


def _partial_run_setup(original, session, fetches, feeds=None):
    if getattr(session, _DRIVER, None) is None:
        return original(session, fetches, feeds)
    raise UnsupportedError(
        "session.partial_run cannot be used with EPL, as a part of a step cannot be agreed on between workers; "
        "use session.run with all feeds and fetches"
    )


def _leave(original, session, kind, value, traceback):
    """A program may end without a word after an error that it has caught; the launcher shall know of that one."""
    job_here = current_job()
    if (
        job_here is not None
        and isinstance(value, Exception)
        and not isinstance(value, tf_compat.tf.errors.OutOfRangeError)
    ):
        job_here.note(value)
    if value is not None and driver_of(session) is not None:
        BESIDE.drop(driver_of(session))
    return original(session, kind, value, traceback)


def _close(original, session):
    driver = getattr(session, _DRIVER, None)
    if driver is None:
        return original(session)
    try:
        BESIDE.settle(driver)
    finally:
        disown(driver)
        driver.close()
        original(session)
    return None
