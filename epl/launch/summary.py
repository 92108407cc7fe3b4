"""What the launcher says at the end of a job that failed: the cause comes last, where one looks first."""

import signal

from epl.launch.advice import address_of
from epl.launch.restarts import Attempt
from epl.launch.workers import root_cause


def failure_text(ended, running, log_dir, everything=False):
    """Text about a job in which a worker failed.

    Args:
      ended: workers of this machine in the order in which they ended.
      running: workers that could not be ended.
      log_dir: where the logs are, or None.
      everything: show the last lines of all workers, not only of the one that began it, and these whole.
    """
    cause = root_cause(ended)
    lines = []
    for worker in sorted(ended, key=lambda each: each.index):
        if worker is cause:
            continue
        lines.append("epl-launch: worker %d %s." % (worker.index, _fate(worker, cause)))
        if everything:
            lines += _tail(worker)
        elif not _why(cause) and worker.failed_itself:  # who missed it knows for what
            lines += _why(worker)
    for worker in running:
        lines.append("epl-launch: worker %d could not be ended, not even by SIGKILL." % worker.index)
    if log_dir is not None:
        lines.append("epl-launch: whole output: %s/worker-<index>.log" % log_dir)
    if everything and cause.stream.errors.message:
        lines += _tail(cause)
    elsewhere = _named_elsewhere(cause, ended + running)
    if elsewhere is not None:
        lines.append(
            "epl-launch: worker %d ended because of worker %d, which another machine runs; see the output there."
            % (cause.index, elsewhere)
        )
    address = address_of("\n".join(_why(cause)))
    if address is not None:
        lines.append("epl-launch: more about this error: %s" % address)
    lines.append("epl-launch: " + _head(cause))
    return "\n".join(lines + _why(cause)) + "\n"


def attempt_of(job, seconds):
    """The Attempt that a Job of so many seconds was."""
    cause = job.cause()
    progress = any(worker.note.fact("trains") for worker in job.workers)
    if cause is None:
        ending = "was told to stop" if job.stopping else "all workers ended well"
        return Attempt(len(job.workers), seconds, None, ending, None, None, progress)
    failure = cause.failure
    updates = getattr(failure, "updates", None)
    position = None if updates is None else updates + max(_restored(worker) for worker in job.workers)
    return Attempt(len(job.workers), seconds, cause.index, cause.ending(), _own_error(cause), position, progress)


def _restored(worker):
    """The global step of the checkpoint with which a worker began; 0 without one."""
    return worker.note.fact("restored", 0)


def _own_error(cause):
    """The error of the program that ended a worker, as text; None where it ended in another way."""
    if not cause.code or cause.stopped_with is not None or cause.signal_number is not None:
        return None
    if cause.failure is not None:
        return None if cause.failure.follows else cause.failure.error
    return "\n".join(cause.stream.errors.message) or None


def short_text(cause):
    """Lines about an attempt that is followed by another one: the worker that ended it, and its error."""
    return [_head(cause)] + [line for line in _why(cause) if line.startswith("  | ")]


def _head(cause):
    how = "failed" if cause.code else "ended"
    return "worker %d %s after %.1f s: %s.%s" % (cause.index, how, cause.seconds, cause.ending(), _hint(cause))


def nobody_came_text(num_workers, log_dir):
    """Text about a job of so many workers in which all ended well, but none called epl.init()."""
    alone = "it has trained, if it has, on one device"
    if num_workers > 1:
        alone = "they have run the program side by side, each for itself, and written the same files"
    return (
        "epl-launch: whole output: %s/worker-<index>.log\n"
        "epl-launch: no worker came to epl.init(): %s. Write `import epl` and `epl.init()` right after the imports, "
        "before the model is built.\n" % (log_dir, alone)
    )


def _named_elsewhere(cause, workers):
    """The worker of another machine because of which the one failed that began it here, or None."""
    named = cause.failure.because if cause.failure is not None else ()
    return next((index for index in named if index not in {worker.index for worker in workers}), None)


def _fate(worker, cause):
    if worker.stopped:
        return "was stopped (SIGSTOP) and was ended by epl-launch"
    if worker.failed_itself:
        return "ended because of it: %s" % worker.ending()
    if worker.stopped_with is not None:
        return "was still running and was ended by epl-launch"
    return "had ended well"


def _why(worker):
    """The error of the worker and where its program raised it; its last lines where it has noted and printed none."""
    seen, failure = worker.stream.errors, worker.failure
    printed = seen.message + ["  " + line for line in seen.place]
    if failure is not None and not _is(failure.error, seen.message):
        return ["  | " + line for line in failure.error.splitlines()]
    if not worker.code or worker.stopped or worker.silent and failure is None:
        return []
    if printed and (failure is not None or worker.signal_number is None):
        return ["  | " + line for line in printed]
    return _tail(worker)


def _is(error, message):
    """Whether the lines that end a traceback are those of an error that was noted: the class is the same."""
    return bool(message) and message[0].partition(":")[0].rpartition(".")[2] == error.partition(":")[0]


def _tail(worker):
    tail = worker.stream.last_lines()
    if not tail:
        return ["epl-launch: worker %d printed nothing." % worker.index]
    return ["epl-launch: last lines of worker %d:" % worker.index] + ["  | " + line for line in tail]


def _hint(worker):
    if worker.signal_number == signal.SIGKILL:
        return " Somebody killed it, or the system did for want of memory (`dmesg` says so then)."
    return ""
