"""What the launcher says at the end of a job that failed."""

import signal

from epl.launch.workers import root_cause


def failure_text(ended, running, log_dir, everything=False):
    """Text about a job in which a worker failed.

    Args:
      ended: workers of this machine in the order in which they ended.
      running: workers that could not be ended.
      log_dir: where the logs are, or None.
      everything: show the last lines of all workers, not only of the one that began it.
    """
    cause = root_cause(ended)
    lines = [
        "epl-launch: worker %d failed after %.1f s: %s.%s" % (cause.index, cause.seconds, cause.ending(), _hint(cause))
    ]
    lines += _tail(cause)
    for worker in sorted(ended, key=lambda each: each.index):
        if worker is cause:
            continue
        if worker.failed_itself:
            lines.append("epl-launch: worker %d ended because of it: %s." % (worker.index, worker.ending()))
        elif worker.stopped_with is not None:
            lines.append("epl-launch: worker %d was still running and was ended by epl-launch." % worker.index)
        else:
            lines.append("epl-launch: worker %d had ended well." % worker.index)
        if everything:
            lines += _tail(worker)
    for worker in running:
        lines.append("epl-launch: worker %d could not be ended, not even by SIGKILL." % worker.index)
    if log_dir is not None:
        lines.append("epl-launch: whole output: %s/worker-<index>.log" % log_dir)
    return "\n".join(lines) + "\n"


def _tail(worker):
    tail = worker.stream.last_lines()
    if not tail:
        return ["epl-launch: worker %d printed nothing." % worker.index]
    lines = ["epl-launch: last lines of worker %d:" % worker.index] + ["  | " + line for line in tail]
    error = worker.stream.last_error()
    if error is not None and error not in tail:
        lines += ["epl-launch: the error of worker %d:" % worker.index, "  | " + error]
    return lines


def _hint(worker):
    if worker.signal_number == signal.SIGKILL:
        return " Somebody killed it, or the system did for want of memory (`dmesg` says so then)."
    return ""
