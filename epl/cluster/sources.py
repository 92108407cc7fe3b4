"""Who the workers are, read from the variables that launchers set: TF_CONFIG, Slurm, Open MPI, Horovod; or EPL's own.

Each reader returns a `Membership`, or None if its variables are absent. None of them opens a connection.
"""

import dataclasses
import json
import re
import zlib
from typing import Tuple

from epl.cluster.job_secret import token_of
from epl.errors import ClusterError

# Ports derived from a job's number lie here: below the range from which Linux gives ports to outgoing connections.
_FIRST_PORT, _PORTS = 15000, 17000
_ADDRESS = re.compile(r"^(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]/,]+):(?P<port>\d{1,5})$")


@dataclasses.dataclass(frozen=True)
class Membership:
    """This process's place among the workers.

    Attributes:
      worker_index: index of this worker.
      hosts: "host:port" by worker. Only the first has to be an address to connect to.
      token: secret or at least job-specific text that workers show each other; "" for a single worker.
      source: which variables said so, for messages.
    """

    worker_index: int
    hosts: Tuple[str, ...]
    token: str
    source: str


def split_address(address):
    """ "host:port" -> (host, port), or None if it is not of that form. IPv6 hosts stand in brackets."""
    match = _ADDRESS.match(address) if isinstance(address, str) else None
    if not match or not 0 < int(match.group("port")) < 65536:
        return None
    return match.group("host"), int(match.group("port"))


def integer(environ, variable, minimum):
    """Value of `variable` as an int, or None if it is unset.

    Raises:
      ClusterError: it is no integer, or below `minimum`.
    """
    text = environ.get(variable)
    if text is None:
        return None
    if not re.match(r"^\s*\d+\s*$", text) or int(text) < minimum:
        raise ClusterError("environment variable %s=%r must be an integer >= %d." % (variable, text, minimum))
    return int(text)


def read_membership(environ):
    """`Membership` from the first launcher whose variables are there; a single worker if there are none.

    Innermost first: `mpirun` inside a Slurm allocation leaves Slurm's variables of its own daemons in the environment,
    and `horovodrun` may start its workers through either.

    Raises:
      ClusterError: the variables contradict each other or miss something.
    """
    for reader in (_from_own, _from_tf_config, _from_horovod, _from_open_mpi, _from_slurm):
        membership = reader(environ)
        if membership is not None:
            return membership
    return Membership(0, ("127.0.0.1:0",), environ.get("EPL_JOB_TOKEN", ""), "no launcher's variables")


# --- TF_CONFIG ---

_TF_CONFIG_FORM = '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'


def _tf_config_error(text, problem):
    shown = text if len(text) <= 300 else text[:300] + "..."
    return ClusterError("TF_CONFIG is wrong: %s. Expected: %s. Found: %s" % (problem, _TF_CONFIG_FORM, shown))


# Where the launcher's TF_CONFIG is kept once programs are shown another.
_KEPT = "EPL_TF_CONFIG"


def for_programs(environ):
    """The variables as programs are to find them after `epl.init()`, and the processes that they start.

    Programs look into TF_CONFIG to see whether they are the chief, which writes files, and whether to start servers of
    TensorFlow's. With EPL worker 0 is the chief, and each worker is a local run: TF_CONFIG then has
    {"cluster": {}, "task": {"type": "chief", "index": 0}}, with the type "worker" and the worker's own index for the
    others. What the launcher had said is kept beside it, and `read_membership` goes by that.

    Returns:
      {variable: value} of those to set; empty where TF_CONFIG names no workers.

    Raises:
      ClusterError: TF_CONFIG is wrong.
    """
    kept = _launchers_tf_config(environ)
    membership = _from_tf_config({"TF_CONFIG": kept})
    if membership is None:
        return {}
    role = "worker" if membership.worker_index else "chief"
    shown = dict(json.loads(kept), cluster={}, task={"type": role, "index": membership.worker_index})
    return {"TF_CONFIG": json.dumps(shown), _KEPT: kept}


def _launchers_tf_config(environ):
    """TF_CONFIG as the launcher wrote it; one that somebody has set since then counts as the launcher's."""
    text = environ.get("TF_CONFIG", "").strip()
    kept = environ.get(_KEPT, "")
    if not (text and kept):
        return text
    return kept if text == for_programs({"TF_CONFIG": kept}).get("TF_CONFIG") else text


def _from_tf_config(environ):
    text = _launchers_tf_config(environ)
    if not text:
        return None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _tf_config_error(text, "it is not valid JSON (%s)" % error) from error
    if not isinstance(content, dict):
        raise _tf_config_error(text, "it is not a JSON object")
    jobs = content.get("cluster") or {}
    if not isinstance(jobs, dict):
        raise _tf_config_error(text, '"cluster" is not a JSON object')
    task = content.get("task") or {}
    if not isinstance(task, dict):
        raise _tf_config_error(text, '"task" is not a JSON object')
    _refuse_other_roles(jobs, task)
    if not jobs:
        return None
    addresses = {job: _addresses(text, job, jobs[job]) for job in ("chief", "master", "worker") if jobs.get(job)}
    index = _tf_config_index(text, addresses, task)
    # TensorFlow's order: the chief (an older name is "master") comes before the workers and counts as worker 0.
    hosts = sum((addresses[job] for job in ("chief", "master", "worker") if job in addresses), ())
    if len(set(hosts)) != len(hosts):
        raise _tf_config_error(text, "two workers have the same address")
    token = environ.get("EPL_JOB_TOKEN") or (token_of(hosts, environ) if len(hosts) > 1 else "")
    return Membership(index, hosts, token, "TF_CONFIG")


def _refuse_other_roles(jobs, task):
    role = task.get("type")
    if jobs.get("ps") or role == "ps":
        raise ClusterError(
            'TF_CONFIG has parameter servers ("ps"), which EPL does not use: its workers exchange '
            "gradients with each other. Start the job without ps replicas."
        )
    if role == "evaluator":
        raise ClusterError(
            "TF_CONFIG makes this process an evaluator, which takes no part in training with EPL. "
            "Leave evaluator replicas out, or let them run a script without epl.init() that reads the "
            "checkpoints."
        )
    others = sorted(set(jobs) - {"chief", "master", "worker", "ps", "evaluator"})
    if others:
        raise ClusterError(
            'TF_CONFIG has jobs that EPL does not know: %s. It knows "worker" and "chief".'
            % ", ".join('"%s"' % job for job in others)
        )


def _addresses(text, job, addresses):
    if not isinstance(addresses, list):
        raise _tf_config_error(text, '"%s" is not a list of addresses' % job)
    for address in addresses:
        if split_address(address) is None:
            raise _tf_config_error(
                text,
                '%r of job "%s" is not an address of the form "host:port" with a port from 1 to 65535' % (address, job),
            )
    if job != "worker" and len(addresses) != 1:
        raise _tf_config_error(text, 'there are %d tasks of type "%s" where one is allowed' % (len(addresses), job))
    return tuple(addresses)


def _tf_config_index(text, addresses, task):
    role, index = task.get("type"), task.get("index", 0)
    if role is None:
        raise _tf_config_error(text, '"task" does not say which type this process is')
    if role not in addresses:
        raise _tf_config_error(
            text,
            'this process is of type %r, but "cluster" has only %s'
            % (role, ", ".join('"%s"' % job for job in sorted(addresses)) or "no workers"),
        )
    if isinstance(index, str) and index.isdigit():
        index = int(index)
    if isinstance(index, bool) or not isinstance(index, int):
        raise _tf_config_error(text, "the task's index %r is not an integer" % (index,))
    if not 0 <= index < len(addresses[role]):
        raise _tf_config_error(
            text,
            'the task\'s index is %d, but "%s" has %d address%s, so it must be from 0 to %d'
            % (index, role, len(addresses[role]), "" if len(addresses[role]) == 1 else "es", len(addresses[role]) - 1),
        )
    before = sum(len(addresses.get(job, ())) for job in ("chief", "master") if role == "worker")
    return before + index


# --- launchers that give ranks but no addresses ---


def _rank_and_size(environ, rank_variable, size_variable):
    rank, size = integer(environ, rank_variable, 0), integer(environ, size_variable, 1)
    if rank is None or size is None:
        return None
    if rank >= size:
        raise ClusterError(
            "%s=%d does not fit %s=%d: ranks are from 0 to %d." % (rank_variable, rank, size_variable, size, size - 1)
        )
    return rank, size


def _bootstrap(environ, host, job, source, how_to_find_host):
    """ "host:port" at which worker 0 listens; `host` and `job` are None where the launcher does not say."""
    given = environ.get("EPL_BOOTSTRAP_ADDRESS")
    if given:
        if split_address(given) is None:
            raise ClusterError(
                'EPL_BOOTSTRAP_ADDRESS=%r must be of the form "host:port" with a port from 1 to 65535.' % given
            )
        return given
    if host is None:
        raise ClusterError(
            "%s does not say on which machine worker 0 runs%s. Set EPL_BOOTSTRAP_ADDRESS to "
            '"host:port" on all workers: worker 0\'s machine and a free port there.' % (source, how_to_find_host)
        )
    port = integer(environ, "EPL_BOOTSTRAP_PORT", 1)
    if port is None:
        if job is None:
            raise ClusterError(
                "%s gives this job no number from which a port could be derived. Set "
                "EPL_BOOTSTRAP_PORT to a free port of worker 0's machine on all workers." % source
            )
        port = _FIRST_PORT + zlib.crc32(job.encode("utf-8")) % _PORTS
    elif port > 65535:
        raise ClusterError("EPL_BOOTSTRAP_PORT=%d is not a port: it must be from 1 to 65535." % port)
    return "%s:%d" % (host, port)


def _membership(environ, rank, machines, bootstrap, job, source):
    """`machines`: name of each worker's machine; the first is replaced by the address of worker 0."""
    host = split_address(bootstrap)[0]
    hosts = tuple("%s:0" % (host if machine == machines[0] else machine) for machine in machines)
    token = environ.get("EPL_JOB_TOKEN") or token_of((source, job or bootstrap), environ)
    return Membership(rank, (bootstrap,) + hosts[1:], token, source)


def _machines(size, local_size):
    """Names for the machines of `size` workers, `local_size` on each, where the launcher does not tell names."""
    return ["machine%d" % (worker // local_size) for worker in range(size)]


def _from_own(environ):
    """EPL_WORKER_INDEX and EPL_WORKER_NUM, for whatever starts processes and can number them."""
    if ("EPL_WORKER_INDEX" in environ) != ("EPL_WORKER_NUM" in environ):
        there, missing = sorted(("EPL_WORKER_INDEX", "EPL_WORKER_NUM"), key=lambda name: name not in environ)
        raise ClusterError("%s is set, but %s is not. Set both, or none of them." % (there, missing))
    found = _rank_and_size(environ, "EPL_WORKER_INDEX", "EPL_WORKER_NUM")
    if found is None:
        return None
    rank, size = found
    if size == 1:
        return Membership(0, ("127.0.0.1:0",), environ.get("EPL_JOB_TOKEN", ""), "EPL_WORKER_INDEX")
    bootstrap = _bootstrap(environ, None, None, "EPL_WORKER_INDEX", "")
    return _membership(environ, rank, _machines(size, 1), bootstrap, None, "EPL_WORKER_INDEX")


def _from_horovod(environ):
    found = _rank_and_size(environ, "HOROVOD_RANK", "HOROVOD_SIZE")
    if found is None:
        return None
    rank, size = found
    if size == 1:
        return Membership(0, ("127.0.0.1:0",), "", "Horovod")
    local_size = integer(environ, "HOROVOD_LOCAL_SIZE", 1) or 1
    # The rendezvous server runs where `horovodrun` was started, which is where it puts worker 0 unless told otherwise.
    host = "127.0.0.1" if local_size >= size else environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    job = environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
    bootstrap = _bootstrap(environ, host, job, "Horovod", " (HOROVOD_GLOO_RENDEZVOUS_ADDR is not set)")
    return _membership(environ, rank, _machines(size, local_size), bootstrap, job, "Horovod")


def _from_open_mpi(environ):
    found = _rank_and_size(environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if found is None:
        return None
    rank, size = found
    if size == 1:
        return Membership(0, ("127.0.0.1:0",), "", "Open MPI")
    local_size = integer(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", 1) or 1
    host = "127.0.0.1" if local_size == size else None
    job = environ.get("OMPI_MCA_ess_base_jobid") or environ.get("PMIX_NAMESPACE")
    bootstrap = _bootstrap(environ, host, job, "Open MPI", ", and the workers are on several machines")
    return _membership(environ, rank, _machines(size, local_size), bootstrap, job, "Open MPI")


def _from_slurm(environ):
    sizes = [name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS") if name in environ]
    found = _rank_and_size(environ, "SLURM_PROCID", sizes[0]) if sizes else None
    if found is None:
        return None
    rank, size = found
    if size == 1:
        return Membership(0, ("127.0.0.1:0",), "", "Slurm")
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID")
    if environ.get("ENVIRONMENT") == "BATCH" and step is None and "SLURM_STEP_NODELIST" not in environ:
        # The batch script itself runs once, with SLURM_PROCID=0, and would wait for workers that nobody starts.
        raise ClusterError(
            "this process was started by a Slurm batch script of %d tasks, but not as one of them. "
            "Start it with `srun`, or unset SLURM_PROCID to run a single worker." % size
        )
    nodes = _slurm_nodes(environ)
    number = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    job = "%s.%s" % (number, step or "0") if number else None
    bootstrap = _bootstrap(
        environ,
        nodes[0] if nodes else None,
        job,
        "Slurm",
        " (neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is set)",
    )
    return _membership(environ, rank, _slurm_machines(environ, nodes, size), bootstrap, job, "Slurm")


def _slurm_nodes(environ):
    for variable in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environ.get(variable):
            return expand_nodelist(environ[variable], variable)
    return []


def _slurm_machines(environ, nodes, size):
    """Machine of each task. Slurm says how many tasks each node has; they are dealt out in blocks unless it says so."""
    counts = _task_counts(environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or "")
    if len(nodes) == 1:
        return nodes * size
    if not nodes or len(counts) != len(nodes) or sum(counts) != size:
        return _machines(size, 1)
    if environ.get("SLURM_DISTRIBUTION", "block").startswith("cyclic"):
        rounds = range(max(counts))
        return [node for turn in rounds for node, count in zip(nodes, counts) if turn < count]
    return [node for node, count in zip(nodes, counts) for _ in range(count)]


def _task_counts(text):
    """ "2(x3),1" -> [2, 2, 2, 1]; [] if it is not of that form."""
    counts = []
    for part in text.split(","):
        match = re.match(r"^(\d+)(?:\(x(\d+)\))?$", part.strip())
        if not match:
            return []
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return counts


def expand_nodelist(text, variable="node list"):
    """Names in a Slurm node list: "a[01-03,7]b,c" -> ["a01b", "a02b", "a03b", "a7b", "c"].

    Raises:
      ClusterError: brackets do not match, or a range is not of the form "first-last".
    """
    names = []
    for part in _split_outside_brackets(text, variable):
        if not part:
            raise ClusterError("%s=%r has an empty entry." % (variable, text))
        names += _expand_brackets(part, text, variable)
    return names


def _split_outside_brackets(text, variable):
    parts, depth = [""], 0
    for char in text.strip():
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            break
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    if depth != 0:
        raise ClusterError("%s=%r has brackets that do not match." % (variable, text))
    return [part.strip() for part in parts]


def _expand_brackets(part, text, variable):
    match = re.match(r"^([^\[\]]*)\[([^\[\]]*)\](.*)$", part)
    if not match:
        return [part]
    head, ranges, tail = match.groups()
    numbers = []
    for item in ranges.split(","):
        bounds = re.match(r"^(\d+)(?:-(\d+))?$", item.strip())
        if not bounds:
            raise ClusterError("%s=%r: %r is neither a number nor a range such as 01-08." % (variable, text, item))
        first, last = bounds.group(1), bounds.group(2) or bounds.group(1)
        # A leading zero means that all numbers of the range are as wide as its first.
        numbers += ["%0*d" % (len(first), number) for number in range(int(first), int(last) + 1)]
    return [head + number + rest for number in numbers for rest in _expand_brackets(tail, text, variable)]
