"""`epl-launch`: from the command line to the exit status."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

from epl import own_folders
from epl.config.template import template
from epl.errors import EplError, LaunchError
from epl.launch import (
    board,
    environment,
    flight,
    machines,
    notes,
    notice,
    processes,
    progress,
    restarts,
    run_record,
    version_1,
)
from epl.launch.advice import address_of
from epl.launch.loop import PEER_GRACE_S, RunningJob
from epl.launch.options import parse, place_of_script, script_command
from epl.launch.output import ERRORS, EVERYTHING, OWN, Console, Stream
from epl.launch.stops import Stops
from epl.launch.summary import attempt_of, failure_text, nobody_came_text, short_text
from epl.launch.tracebacks import KnownErrors
from epl.launch.workers import Worker

# Exit status when the command line is wrong or a worker cannot be started.
USAGE_STATUS = 2
# When all workers ended well, but none of them as a worker of the job.
NOBODY_CAME_STATUS = 1
# Where a job may start again, workers get less time for their last words.
_RESTART_GRACE_S = 1.0
# Tells programs which attempt of the job this is, from 0.
ATTEMPT = "EPL_ATTEMPT"
_OWN_VARIABLES = (
    "TF_CONFIG",
    "EPL_GPU_PER_WORKER",
    "EPL_DEVICE",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
)


def main(argv=None):
    """Start and watch the workers of this machine.

    Args:
      argv: arguments without the program's name. Default: those of the process.

    Returns:
      Exit status: 0 if all workers ended with 0, 1 if none of them had called epl.init(); the exit code of the worker
      that failed first, or 128 + the signal that killed it; 128 + signal if the launcher was told to stop; 2 if nothing
      could be started.
    """
    try:
        options = parse(sys.argv[1:] if argv is None else list(argv))
        if options.write_config:
            return _write_config(options.write_config)
        if options.doctor:
            return _doctor(options)
        if options.verify:
            return _verify(options.verify, sys.argv[1:] if argv is None else list(argv))
        job = _Preparation(options)
    except (EplError, OSError) as error:
        sys.stderr.write("epl-launch: error: %s\n" % error)
        address = address_of(str(error))
        if address is not None:
            sys.stderr.write("epl-launch: more about this error: %s\n" % address)
        return USAGE_STATUS
    sys.stdout.flush()
    return _run(options, job)


def _verify(steps, arguments):
    """Hands over to a process that may load TensorFlow, and starts the job by itself."""
    end = place_of_script(arguments)
    own = [text for text in arguments[:end] if not text.startswith("--verify=")]
    if "--verify" in own:
        place = own.index("--verify")
        del own[place : place + 2]
    command = [sys.executable, "-m", "epl.verify", "--steps", str(steps)] + own + arguments[end:]
    sys.stdout.flush()
    return subprocess.call(command)


def _write_config(path):
    """Writes a configuration file to begin with, where none is yet."""
    try:
        with open(path, "x", encoding="utf-8") as stream:
            stream.write(template(os.path.basename(path)))
    except FileExistsError:
        raise LaunchError("--write_config %s: there is such a file already. Give another name." % path) from None
    sys.stdout.write("wrote %s: set keys in it, then epl-launch --config %s ...\n" % (path, path))
    return 0


def _doctor(options):
    """Runs epl.doctor, which knows what launchers need not: TensorFlow, the native part, programs."""
    workers = options.for_workers
    if options.num_workers is None:
        number = 2 if options.machine_list is None else len(machines.read_machines(options.machine_list))
        workers = workers + ["--num_workers", str(number)]
    command = [sys.executable, "-m", "epl.doctor"] + options.folders + ["--"] + workers
    return subprocess.run(command, check=False).returncode


class _Preparation:
    """All that is known before the first worker starts."""

    def __init__(self, options):
        self.command = script_command(options.script) + options.script_arguments
        self.addresses, self.local = machines.place_workers(
            options.num_workers, options.machine_list, options.machine_rank
        )
        number = len(self.local)
        self.gpus, self.why_not_gpus = environment.choose_gpus(
            options.device,
            number,
            options.gpu_per_worker,
            environment.only_these_gpus(options.gpus, os.environ),
        )
        self.config, self.overruled = environment.config_variables(options.config, os.environ)
        cores = environment.usable_cores()
        self.threads = environment.threads_per_worker(len(cores), number, environment.container_quota())
        can_bind = options.bind == "auto" and hasattr(os, "sched_setaffinity")
        self.cores = environment.share_cores(cores, number) if can_bind else None
        self._given = None  # what comes from standard input, for all workers
        if options.stdin:
            self._given = tempfile.TemporaryFile()
            shutil.copyfileobj(sys.stdin.buffer, self._given)
            self._given.flush()
        self.token = environment.job_token(os.environ, options.machine_list is not None)
        self.places = list(range(number))  # of the workers in the first attempt
        self.attempt = 0
        self.log_dir_is_ours = options.log_dir is None
        if self.log_dir_is_ours:
            self.log_dir = tempfile.mkdtemp(prefix="epl-launch-")
        else:
            self.log_dir = options.log_dir
            os.makedirs(self.log_dir, exist_ok=True)
        self.record = None
        if options.report is not None:
            devices = _devices_text(options.gpu_per_worker, self.gpus)
            self.record = run_record.RunRecord(self.command, len(self.addresses), devices, self.log_dir)

    def again(self, left_out):
        """Prepares the next attempt: with addresses and a token of its own, so that nothing of this one comes in.

        Args:
          left_out: places, in the first attempt, of workers that do not take part.
        """
        self.attempt += 1
        kept = [place for place in self.places if place not in left_out]
        here = [self.places.index(place) for place in kept]
        self.gpus = self.gpus and [self.gpus[each] for each in here]
        self.cores = self.cores and [self.cores[each] for each in here]
        self.places = kept
        self.addresses, self.local = machines.place_workers(len(kept))
        self.token = environment.token_of_attempt(self.token)

    def log_path(self, index):
        return os.path.join(self.log_dir, "worker-%d.log" % index)

    def note_path(self, index):
        return os.path.join(self.log_dir, ".worker-%d.note" % index)

    def board_path(self, index):
        return board.path_beside(self.note_path(index))

    def progress(self, options):
        """The Progress of this machine's workers."""
        mode = progress.mode_of(options.progress, os.environ, sys.stdout.isatty())
        paths = {index: self.board_path(index) for index in self.local}
        return progress.Progress(mode, paths, len(self.addresses), time.monotonic(), self.record)

    @contextlib.contextmanager
    def stdin(self):
        """Standard input of one worker, as subprocess takes it: what was given (--stdin), from its beginning, or
        nothing."""
        if self._given is None:
            yield subprocess.DEVNULL
        else:
            with open("/proc/self/fd/%d" % self._given.fileno(), "rb") as stream:
                yield stream

    def write_timeline(self, job, console):
        """After a bad end: the last events of the workers, beside the logs."""
        if job.cause() is None:
            return
        path = os.path.join(self.log_dir, flight.NAME)
        try:
            written = flight.write_timeline(
                path, {worker.index: self.board_path(worker.index) for worker in job.workers}
            )
        except OSError as error:
            console.say("cannot write %s: %s" % (path, error))
            return
        if written:
            console.say("the last events of all workers: %s (for https://ui.perfetto.dev)" % path)

    @property
    def notice_path(self):
        return os.path.join(self.log_dir, ".notice")

    def open_log(self, index):
        """The log, which only this user may read; what is there already under its name has to be a file."""
        path = self.log_path(index)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        log = open(os.open(path, flags, 0o600), "ab", buffering=0)
        if not stat.S_ISREG(os.fstat(log.fileno()).st_mode):
            log.close()
            raise OSError("%s is no file; a log cannot be written to it" % path)
        os.fchmod(log.fileno(), 0o600)
        if log.tell():
            attempt = ", attempt %d" % (self.attempt + 1) if self.attempt else ""
            head = "=== epl-launch, %s%s ===\n" % (time.strftime("%Y-%m-%d %H:%M:%S"), attempt)
            log.write(head.encode("ascii"))
        return log

    def variables(self, options, place):
        """Variables of the local worker number `place`."""
        variables = environment.worker_environment(
            os.environ,
            self.addresses,
            self.local[place],
            options.gpu_per_worker,
            self.gpus and self.gpus[place],
            self.threads,
            self.token,
        )
        variables.update(self.config)
        if options.tf1:
            version_1.inherit(variables)
        if options.bind_address:
            variables["EPL_BIND_ADDRESS"] = options.bind_address
        variables[notes.VARIABLE] = os.path.abspath(self.note_path(self.local[place]))
        variables[notice.VARIABLE] = os.path.abspath(self.notice_path)
        variables[ATTEMPT] = str(self.attempt)
        if self.record is not None and self.local[place] == 0:
            variables[run_record.PARTS] = os.path.abspath(self.record.parts_path)
        if self.record is not None:
            path = board.times_beside(self.board_path(self.local[place]))
            variables[run_record.TIMES] = os.path.abspath(path)
        return variables

    def headline(self, options):
        text = "%d worker%s with %s each" % (
            len(self.addresses),
            "" if len(self.addresses) == 1 else "s",
            _devices_text(options.gpu_per_worker, self.gpus),
        )
        if self.why_not_gpus:
            text += " (%s)" % self.why_not_gpus
        if len(self.local) != len(self.addresses):
            text += "; this machine runs workers %d to %d" % (self.local[0], self.local[-1])
        kept = ", kept if something fails" if self.log_dir_is_ours else ""
        return "%s. Logs%s: %s/worker-<index>.log" % (text, kept, self.log_dir)


def _devices_text(count, gpus):
    return "%d %s%s" % (count, "GPU" if gpus else "CPU device", "" if count == 1 else "s")


def _run(options, plan):
    console = Console(sys.stdout.fileno())
    console.say(plan.headline(options))
    for name in plan.overruled:
        console.say("%s counts, not %s=%s of the environment" % (options.config, name, os.environ[name]))
    guard = processes.Guard()
    decisions = restarts.Restarts(options.max_restarts, options.min_workers)
    asked = notice.Notice(plan.notice_path, options.notice_s, console.say)
    try:
        with Stops() as stops:
            again = True
            while again:
                attempt = _Attempt(options, plan, console, guard, stops, asked)
                attempt.run(PEER_GRACE_S if not decisions.may_follow else _RESTART_GRACE_S)
                again = _goes_on(attempt, plan, decisions, console)
                attempt.clean(not again)
                if again:
                    plan.again(decisions.left_out)
    finally:
        guard.close()
        asked.remove()
    if plan.record is not None:
        console.say(_written_report(options, plan, attempt, decisions))
    console.finish()
    if attempt.start_error is not None:
        sys.stderr.write("epl-launch: error: cannot start a worker: %s\n" % attempt.start_error)
        return USAGE_STATUS
    return _conclude(options, plan, attempt, decisions, stops)


def _written_report(options, plan, attempt, decisions):
    """Writes the page of the run; returns what is said of it."""
    cause = attempt.job.cause()
    try:
        problem = plan.record.write(options.report, decisions.attempts, short_text(cause) if cause is not None else [])
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    return "no page of the run: %s" % problem if problem else "the page of the run: %s" % options.report


class _Attempt:
    """One attempt of the job: its workers from their start to their end.

    Attributes:
      job: the RunningJob.
      came_to_init: whether any worker has called epl.init().
      start_error: why a worker could not be started, or None.
    """

    def __init__(self, options, plan, console, guard, stops, asked):
        self._options, self._plan, self._console = options, plan, console
        self.job = RunningJob(console, guard, stops, asked, plan.progress(options))
        self.came_to_init = False
        self.start_error = None
        self._began = time.monotonic()

    def run(self, peer_grace_s):
        """Until all workers have ended; peers of one that fails get so many seconds to say so."""
        self.job.peer_grace_s = peer_grace_s
        with self.job as job:
            try:
                _start(self._options, self._plan, self._console, job)
            except OSError as error:
                self.start_error = error
                job.abandon()
            job.run()
        self.came_to_init = job.came_to_init
        self.summary = attempt_of(job, time.monotonic() - self._began)

    def clean(self, last):
        """Removes what workers have noted; of the last attempt their last events are kept."""
        if last:
            self._plan.write_timeline(self.job, self._console)
            if self._plan.record is not None:
                self._plan.record.ended({each.index: self._plan.board_path(each.index) for each in self.job.workers})
        own_folders.remove_left(own_folders.GATE)
        for worker in self.job.workers:
            worker.note.remove()
            board.remove(self._plan.board_path(worker.index))
            if worker.stream.log_error is not None:
                path = self._plan.log_path(worker.index)
                self._console.say("cannot write %s: %s" % (path, worker.stream.log_error))


def _goes_on(attempt, plan, decisions, console):
    """Whether another attempt follows; says why it does, or does not."""
    job = attempt.job
    cause = job.cause()
    unended = [worker for worker in job.workers if worker.code is None]
    if cause is None or job.stopping or unended or attempt.start_error is not None:
        decisions.attempts.append(attempt.summary)
        return False
    again, why = decisions.ended(attempt.summary, plan.places)
    if again:
        for line in short_text(cause):
            console.say(line)
        number = len(plan.places) - len(set(plan.places) & set(decisions.left_out))
        console.say(
            "%sstarting again with %d worker%s (restart %d of at most %d)"
            % (why + " " if why else "", number, "" if number == 1 else "s", plan.attempt + 1, decisions.limit)
        )
    elif why:
        console.say(why)
    return again


def _start(options, plan, console, job):
    known = KnownErrors()
    for place, index in enumerate(plan.local):
        if job.stopping:
            return
        variables = plan.variables(options, place)
        cores = plan.cores[place] if plan.cores else None
        if options.debug:
            variables.setdefault("PYTHONFAULTHANDLER", "1")
            console.say("worker %d: %s" % (index, " ".join(plan.command)))
            console.say(
                "worker %d: cores %s; %s"
                % (
                    index,
                    ",".join(map(str, cores)) if cores else "any",
                    " ".join("%s=%s" % (name, variables[name]) for name in _OWN_VARIABLES if name in variables),
                )
            )
        everything = options.debug or "TF_CPP_MIN_LOG_LEVEL" in os.environ
        shown = EVERYTHING if options.verbose or options.debug else OWN if place == 0 else ERRORS
        lines = plan.record.warnings.take if plan.record is not None else None
        stream = Stream(index, console, plan.open_log(index), everything, known, shown, lines)
        note = notes.Note(plan.note_path(index))
        board.remove(plan.board_path(index))  # of an earlier job
        setup = processes.child_setup(cores)
        with plan.stdin() as stdin:
            job.add(Worker(index, plan.command, variables, setup, stream, note, stdin))


def _conclude(options, plan, attempt, decisions, stops):
    """Say what has to be said at the end; returns the exit status."""
    job = attempt.job
    running = [worker for worker in job.workers if worker.code is None]
    cause = job.cause()
    if len(decisions.attempts) > 1:
        lines = restarts.table(decisions.attempts)
        sys.stderr.write("".join("epl-launch: %s\n" % line for line in lines))
    if cause is not None:
        sys.stderr.write(failure_text(job.ended, running, plan.log_dir, everything=options.debug))
        sys.stderr.flush()
        return cause.exit_status
    if not attempt.came_to_init and not job.stopping:
        sys.stderr.write(nobody_came_text(len(plan.addresses), plan.log_dir))
        return NOBODY_CAME_STATUS
    if job.stopping:
        sys.stderr.write(
            "epl-launch: stopped by %s; %s\n"
            % (
                signal.Signals(stops.number).name,
                "all workers have ended."
                if not running
                else "workers that could not be ended: %s." % ", ".join(str(worker.index) for worker in running),
            )
        )
    if plan.log_dir_is_ours:
        for name in os.listdir(plan.log_dir):
            os.unlink(os.path.join(plan.log_dir, name))
        os.rmdir(plan.log_dir)
    return 128 + stops.number if job.stopping else 0
