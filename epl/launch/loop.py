"""The running job: one loop that reads output, notices ends and ends what has to end."""

import select
import signal
import time

from epl.launch import notes, processes
from epl.launch.workers import root_cause

# Peers notice a dead worker by themselves and say so; this is the time that they get before they are told to end.
PEER_GRACE_S = 3.0
# After SIGKILL: time for the kernel to end a process that hangs in a device or a file system.
GIVE_UP_AFTER_S = 10.0
# After the last worker's end: time for its output to come, should something outside its session hold the pipe open.
DRAIN_S = 1.0
# So often it is looked whether a worker is stopped, or waits for one that will not come.
LOOK_S = 1.0
# A program that has not come to epl.init() by then has probably forgotten it.
INIT_EXPECTED_S = 60.0
# A worker that is stopped gets so much time to go on, unless it has said another (communication.stopped_s); and so much
# when all others have ended.
STOPPED_S = 60.0
STOPPED_GRACE_S = 30.0
# Where a worker still runs and all others have ended, that is said so often.
STILL_RUNS_S = 30.0
# The loop looks around at least so often, should a signal be missed.
_LONGEST_WAIT_S = 0.5


class RunningJob:
    """Workers of this machine from their start to their end.

    Args:
      console: `output.Console`.
      guard: `processes.Guard`.
      stops: `stops.Stops`.
      notice: `notice.Notice`, by which workers are told that they are to save and to end.
      progress: `progress.Progress`, or None.

    Attributes:
      peer_grace_s: seconds that peers of a dead worker get to say so.
    """

    def __init__(self, console, guard, stops, notice, progress=None):
        self.workers = []
        self.ended = []  # in the order of their ends
        self._console = console
        self._guard = guard
        self._progress = progress
        self._stops = stops
        self._notice = notice
        self.peer_grace_s = PEER_GRACE_S
        self._end_at = None  # when to tell the workers to end
        self._kill_at = None
        self._killed_since = None
        self._look_at = 0.0
        self._init_expected_at = time.monotonic() + INIT_EXPECTED_S  # None: somebody has come, or it was said
        self._said_at = 0.0  # when it was said who still runs
        self._held = {}  # workers that are stopped, by index: since when

    def __enter__(self):
        return self

    def __exit__(self, *_):
        left = [worker for worker in self.workers if not worker.empty]
        if left:  # only after an error of the launcher itself, or when SIGKILL did not help
            processes.end_sessions([worker.session for worker in left], signal.SIGTERM, timeout_s=1.0)
        for worker in self.workers:
            worker.poll()
            worker.close()

    def add(self, worker):
        """Take over a worker that has just been started."""
        self._guard.add(worker.session)
        self.workers.append(worker)

    def abandon(self):
        """End the workers at once: not all of them could be started."""
        self._end_at = time.monotonic()

    @property
    def stopping(self):
        """Whether the launcher was told to stop."""
        return self._stops.count > 0

    @property
    def came_to_init(self):
        """Whether any worker of this machine has called epl.init(); known until their notes are removed."""
        return any(worker.note.state for worker in self.workers)

    def run(self):
        """Until all workers have ended, or cannot be ended."""
        while not self._all_gone():
            self._wait(self._next_wait())
            self._note_ends()
            self._look_around()
            if self._progress is not None:
                self._progress.show(self._console, time.monotonic())
            self._stop_if_due()
        deadline = time.monotonic() + DRAIN_S
        while any(worker.open for worker in self.workers) and time.monotonic() < deadline:
            self._wait(0.05)
        if self._progress is not None:
            self._progress.end(self._console)

    # --- input and output ---

    def _wait(self, timeout_s):
        poller = select.poll()
        poller.register(self._stops.wake, select.POLLIN)
        if self._console.pending:
            poller.register(self._console.descriptor, select.POLLOUT)
        by_pipe = {worker.pipe: worker for worker in self.workers if worker.open}
        for pipe in () if self._console.full else by_pipe:
            poller.register(pipe, select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll(timeout_s * 1000)]
        now = time.monotonic()
        for descriptor in ready:
            if descriptor == self._stops.wake:
                self._stops.drain()
            elif descriptor in by_pipe:
                by_pipe[descriptor].read(now)
            else:
                self._write_console()
        for worker in self.workers:
            worker.stream.show_partial(now)

    def _write_console(self):
        self._console.write_some()
        if self._console.broken and not self.stopping:
            # Whoever read our output (`| head`) has gone: as for any program, the end.
            self._stops.take(signal.SIGPIPE)

    def _next_wait(self):
        now = time.monotonic()
        next_step = self._end_at if self._kill_at is None else self._kill_at
        waits = [_LONGEST_WAIT_S]
        waits += [] if next_step is None else [next_step - now]
        waits += [worker.stream.show_partial(now) for worker in self.workers]
        if all(worker.code is not None for worker in self.workers) or self._kill_at is not None:
            waits.append(0.05)  # the ends of grandchildren give no signal
        return max(0.0, min(wait for wait in waits if wait is not None))

    # --- ends ---

    def _note_ends(self):
        for worker in self.workers:
            if worker.poll():
                self.ended.append(worker)
                if worker.code and self._end_at is None:
                    self._end_at = time.monotonic() + self.peer_grace_s
                    for held in self._stopped_workers():
                        held.stopped = True

    def _stopped_workers(self):
        stopped = processes.stopped([worker.session for worker in self.workers if worker.code is None])
        return [worker for worker in self.workers if worker.code is None and worker.session in stopped]

    def _look_around(self):
        """Notice workers that wait for one that has ended without epl.init(), and those that are stopped."""
        now = time.monotonic()
        if now < self._look_at or self._end_at is not None:
            return
        self._look_at = now + LOOK_S
        if self._init_expected_at is not None and (now >= self._init_expected_at or self.came_to_init):
            if not self.came_to_init:
                self._console.say(
                    "no worker has come to epl.init() within %g s; without it each trains for itself" % INIT_EXPECTED_S
                )
            self._init_expected_at = None
        waiting = [worker for worker in self.workers if worker.code is None and worker.note.state == notes.JOINING]
        gone = [worker for worker in self.ended if worker.code == 0 and _is_missed(worker, waiting)]
        if gone:
            gone[0].waited_for_by = waiting[0].index
            self._end_at = now
            return
        self._look_for_stopped(now)
        self._say_who_still_runs(now)

    def _look_for_stopped(self, now):
        held = self._stopped_workers()
        self._held = {worker.index: self._held.get(worker.index, now) for worker in held}
        for worker in held:
            if self._held[worker.index] == now:
                self._console.say(
                    "worker %d is stopped (SIGSTOP); `kill -CONT -%d` lets it go on" % (worker.index, worker.session)
                )
        running = [worker for worker in self.workers if worker.code is None]
        given = {worker.index: worker.note.fact("stopped_s", STOPPED_S) for worker in held}
        late = [worker for worker in held if now - self._held[worker.index] > given[worker.index] and _is_held(worker)]
        if held and held == running and self.ended and now - max(self._held.values()) > STOPPED_GRACE_S:
            late = held
        for worker in late:
            worker.stopped = True
            self._end_at = now

    def _say_who_still_runs(self, now):
        """Nobody waits for a worker that has work of its own, or hangs, after all others have ended."""
        running = [worker for worker in self.workers if worker.code is None]
        if len(running) != 1 or not self.ended:
            return
        since = max(worker.ended_at for worker in self.ended)
        if now >= max(since, self._said_at) + STILL_RUNS_S:
            self._said_at = now
            self._console.say(
                "worker %d still runs; all others have ended, the last of them %.0f s ago"
                % (running[0].index, now - since)
            )

    def _sessions(self):
        return [worker.session for worker in self.workers if not worker.empty]

    def _all_gone(self):
        """Whether all workers and all that they started have ended, or SIGKILL has not helped for long."""
        if self._killed_since is not None and time.monotonic() > self._killed_since + GIVE_UP_AFTER_S:
            return True
        if any(worker.code is None for worker in self.workers):
            return False
        occupied = set(processes.members(self._sessions()).values())
        for worker in self.workers:
            if not worker.empty and worker.session not in occupied:
                worker.empty = True
                self._guard.remove(worker.session)
        return all(worker.empty for worker in self.workers)

    def _stop_if_due(self):
        now = time.monotonic()
        if self._kill_at is None and all(worker.code is not None for worker in self.workers):
            self._end_at = now  # what workers have left running in the background
        elif self._kill_at is None and self.stopping:
            due = now + self._notice.left_s(self._stops, now)
            self._end_at = due if self._end_at is None else min(self._end_at, due)
        if self._stops.count > 1 and self._kill_at is not None:
            self._kill_at = min(self._kill_at, now)
        if self._kill_at is None and self._end_at is not None and now >= self._end_at:
            wanted = self._stops.number if self._stops.number in (signal.SIGINT, signal.SIGTERM) else signal.SIGTERM
            self._signal_all(wanted)
            self._kill_at = now + processes.KILL_AFTER_S
        elif self._kill_at is not None and now >= self._kill_at:
            self._killed_since = self._killed_since or now
            self._signal_all(signal.SIGKILL)
            self._kill_at = now + 0.5

    def _signal_all(self, number):
        for worker in self.workers:
            if worker.code is None and worker.stopped_with is None:
                worker.stopped_with = number
                if number == signal.SIGINT:
                    worker.stream.interrupt()
        processes.signal_members(self._sessions(), number)

    def cause(self):
        """The worker whose failure ended the job, or None."""
        return root_cause(self.ended)


def _is_held(worker):
    """Whether the process that has joined the job is stopped, and not something else that its script has started."""
    return processes.is_stopped(worker.note.fact("process", worker.session))


def _is_missed(worker, waiting):
    """Whether a worker that has ended with 0 keeps others waiting: by an end that nobody was told of, or as worker 0,
    to which those cannot come any more that have not met it yet."""
    if not waiting or worker.note.state != notes.LEFT:
        return bool(waiting)
    return worker.index == 0 and any(other.note.states == [notes.JOINING] for other in waiting)
