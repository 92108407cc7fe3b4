"""`epl-launch`: from the command line to the exit status."""

import os
import shutil
import signal
import stat
import sys
import tempfile
import time

from epl.config.template import template
from epl.errors import EplError, LaunchError
from epl.launch import board, environment, flight, machines, notes, processes, progress, version_1
from epl.launch.advice import address_of
from epl.launch.job import Job
from epl.launch.options import parse, script_command
from epl.launch.output import ERRORS, EVERYTHING, OWN, Console, Stream
from epl.launch.summary import failure_text, nobody_came_text
from epl.launch.tracebacks import Known
from epl.launch.workers import Worker

# Exit status when the command line is wrong or a worker cannot be started.
USAGE_STATUS = 2
# When all workers ended well, but none of them as a worker of the job.
NOBODY_CAME_STATUS = 1
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
        job = _Preparation(options)
    except (EplError, OSError) as error:
        sys.stderr.write("epl-launch: error: %s\n" % error)
        address = address_of(str(error))
        if address is not None:
            sys.stderr.write("epl-launch: more about this error: %s\n" % address)
        return USAGE_STATUS
    sys.stdout.flush()
    return _run(options, job)


def _write_config(path):
    """Writes a configuration file to begin with, where none is yet."""
    try:
        with open(path, "x", encoding="utf-8") as stream:
            stream.write(template(os.path.basename(path)))
    except FileExistsError:
        raise LaunchError("--write_config %s: there is such a file already. Give another name." % path) from None
    sys.stdout.write("wrote %s: set keys in it, then epl-launch --config %s ...\n" % (path, path))
    return 0


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
        self.log_dir_is_ours = options.log_dir is None
        if self.log_dir_is_ours:
            self.log_dir = tempfile.mkdtemp(prefix="epl-launch-")
        else:
            self.log_dir = options.log_dir
            os.makedirs(self.log_dir, exist_ok=True)

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
        return progress.Progress(mode, paths, len(self.addresses), time.monotonic())

    def stdin(self):
        """Standard input of one worker, open for reading: what was given (--stdin), from its beginning, or nothing."""
        return open(os.devnull if self._given is None else "/proc/self/fd/%d" % self._given.fileno(), "rb")

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
            log.write(b"=== epl-launch, %s ===\n" % time.strftime("%Y-%m-%d %H:%M:%S").encode("ascii"))
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
        return variables

    def headline(self, options):
        devices = options.gpu_per_worker
        kind = "GPU" if self.gpus else "CPU device"
        text = "%d worker%s with %d %s%s each" % (
            len(self.addresses),
            "" if len(self.addresses) == 1 else "s",
            devices,
            kind,
            "" if devices == 1 else "s",
        )
        if self.why_not_gpus:
            text += " (%s)" % self.why_not_gpus
        if len(self.local) != len(self.addresses):
            text += "; this machine runs workers %d to %d" % (self.local[0], self.local[-1])
        kept = ", kept if something fails" if self.log_dir_is_ours else ""
        return "%s. Logs%s: %s/worker-<index>.log" % (text, kept, self.log_dir)


def _run(options, plan):
    console = Console(sys.stdout.fileno())
    console.say(plan.headline(options))
    for name in plan.overruled:
        console.say("%s counts, not %s=%s of the environment" % (options.config, name, os.environ[name]))
    guard = processes.Guard()
    start_error = None
    try:
        with Job(console, guard, plan.progress(options)) as job:
            try:
                _start(options, plan, console, job)
            except OSError as error:
                start_error = error
                job.abandon()
            job.run()
    finally:
        guard.close()
    came_to_init = job.came_to_init
    plan.write_timeline(job, console)
    for worker in job.workers:
        worker.note.remove()
        board.remove(plan.board_path(worker.index))
        if worker.stream.log_error is not None:
            console.say("cannot write %s: %s" % (plan.log_path(worker.index), worker.stream.log_error))
    console.finish()
    if start_error is not None:
        sys.stderr.write("epl-launch: error: cannot start a worker: %s\n" % start_error)
        return USAGE_STATUS
    return _conclude(options, plan, job, came_to_init)


def _start(options, plan, console, job):
    known = Known()
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
        stream = Stream(index, console, plan.open_log(index), everything, known, shown)
        note = notes.Note(plan.note_path(index))
        board.remove(plan.board_path(index))  # of an earlier job
        setup = processes.child_setup(cores)
        with plan.stdin() as stdin:
            job.add(Worker(index, plan.command, variables, setup, stream, note, stdin))


def _conclude(options, plan, job, came_to_init):
    """Say what has to be said at the end; returns the exit status."""
    running = [worker for worker in job.workers if worker.code is None]
    cause = job.cause()
    if cause is not None:
        sys.stderr.write(failure_text(job.ended, running, plan.log_dir, everything=options.debug))
        sys.stderr.flush()
        return cause.exit_status
    if not came_to_init and not job.stopping:
        sys.stderr.write(nobody_came_text(len(plan.addresses), plan.log_dir))
        return NOBODY_CAME_STATUS
    if job.stopping:
        sys.stderr.write(
            "epl-launch: stopped by %s; %s\n"
            % (
                signal.Signals(job.stop_signal).name,
                "all workers have ended."
                if not running
                else "workers that could not be ended: %s." % ", ".join(str(worker.index) for worker in running),
            )
        )
    if plan.log_dir_is_ours:
        for index in plan.local:
            if os.path.exists(plan.log_path(index)):
                os.unlink(plan.log_path(index))
        os.rmdir(plan.log_dir)
    return 128 + job.stop_signal if job.stopping else 0
