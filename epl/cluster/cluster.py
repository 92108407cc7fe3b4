"""The workers of a job and their devices: plain data, without TensorFlow."""

import collections
import copy
import os

from epl.cluster.gpus import tensorflow_knows_gpus, visible_gpus
from epl.cluster.machine import NOMINAL
from epl.cluster.sources import integer, read_membership, split_address
from epl.errors import ClusterError

# TensorFlow names of devices that compute together: those of all workers, and this worker's own.
VirtualDevice = collections.namedtuple("VirtualDevice", "all_devices local_devices")


class Cluster:
    """Workers (processes) and devices of a job, and this worker's place among them. Cannot be changed.

    Args:
      worker_num: number of workers, at least 1.
      worker_index: index of this worker.
      gpu_num_per_worker: devices of each worker; CPU devices where `device_type` is "CPU".
      hosts: "host:port" by worker; workers of one machine have the same host. Worker 0's is where it serves the
        others; of other workers some launchers do not tell the port, which is 0 then, or even the machine's name.
        One entry only, the default, stands for all workers on that host.
      device_type: "CPU" or "GPU".
      token: text that the workers of this job show each other, so that strangers are refused.
      visible_device_list: indices, among the GPUs that this process sees, of those that it uses, separated by commas,
        as `tf.ConfigProto.gpu_options.visible_device_list` wants them. "": all.
      machine: the epl.cluster.machine.Machine that says what devices and links can do.

    Raises:
      ClusterError: a number is out of range, or the hosts do not fit the number of workers.
    """

    def __init__(
        self,
        worker_num=1,
        worker_index=0,
        gpu_num_per_worker=1,
        hosts=("127.0.0.1:0",),
        device_type="CPU",
        token="",
        visible_device_list="",
        machine=NOMINAL,
    ):
        for name, value, minimum in (
            ("worker_num", worker_num, 1),
            ("worker_index", worker_index, 0),
            ("gpu_num_per_worker", gpu_num_per_worker, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
                raise ClusterError("%s=%r must be an integer >= %d." % (name, value, minimum))
        if worker_index >= worker_num:
            raise ClusterError(
                "worker_index=%d does not fit worker_num=%d: it must be from 0 to %d."
                % (worker_index, worker_num, worker_num - 1)
            )
        if device_type not in ("CPU", "GPU"):
            raise ClusterError('device_type=%r must be "CPU" or "GPU".' % (device_type,))
        hosts = list(hosts)
        if len(hosts) == 1:
            hosts *= worker_num
        if len(hosts) != worker_num:
            raise ClusterError(
                '%d hosts are given for %d workers: give one "host:port" per worker.' % (len(hosts), worker_num)
            )
        self._worker_num = worker_num
        self._worker_index = worker_index
        self._gpu_num_per_worker = gpu_num_per_worker
        self._hosts = hosts
        self._device_type = device_type
        self._token = token
        self._visible_device_list = visible_device_list
        self._machine = machine

    @classmethod
    def from_environment(cls, environ=None, run_visible_devices=""):
        """The cluster as the launcher describes it in environment variables.

        Workers come from TF_CONFIG (`epl-launch`, Kubeflow), else from the variables of Horovod, Open MPI or Slurm,
        else there is a single worker. Devices come from EPL_GPU_PER_WORKER and EPL_DEVICE ("cpu" or "gpu"), else from
        the GPUs that this process sees, which workers of one machine divide unless CUDA_VISIBLE_DEVICES is set; without
        GPUs each worker has one CPU device. docs/launching.md has the details.

        Args:
          environ: mapping of variables. Default: `os.environ`.
          run_visible_devices: value of the configuration key cluster.run_visible_devices.

        Raises:
          ClusterError: a variable is wrong, or variables do not fit each other.
        """
        environ = os.environ if environ is None else environ
        members = read_membership(environ)
        nodes = _nodes(members.hosts)
        on_this_node = [worker for worker, node in enumerate(nodes) if node == nodes[members.worker_index]]
        device_type, number, visible = _devices(
            environ, run_visible_devices, len(on_this_node), on_this_node.index(members.worker_index)
        )
        return cls(
            worker_num=len(members.hosts),
            worker_index=members.worker_index,
            gpu_num_per_worker=number,
            hosts=members.hosts,
            device_type=device_type,
            token=members.token,
            visible_device_list=visible,
        )

    def with_devices(self, number):
        """The same cluster with that many devices in each worker."""
        other = copy.copy(self)
        other._gpu_num_per_worker = number  # pylint: disable=protected-access
        return other

    def with_index(self, worker):
        """The same cluster as another worker sees it, by its index."""
        other = copy.copy(self)
        other._worker_index = worker  # pylint: disable=protected-access
        return other

    def with_machine(self, machine):
        """The same cluster of other devices and links, by an epl.cluster.machine.Machine."""
        other = copy.copy(self)
        other._machine = machine  # pylint: disable=protected-access
        return other

    @property
    def machine(self):
        """The epl.cluster.machine.Machine: what devices and links can do, by which plans compare costs."""
        return self._machine

    @property
    def worker_num(self) -> int:
        """Number of workers."""
        return self._worker_num

    @property
    def worker_index(self) -> int:
        """Index of this worker, from 0."""
        return self._worker_index

    @property
    def gpu_num_per_worker(self) -> int:
        """Number of devices of each worker; CPU devices where there are no GPUs."""
        return self._gpu_num_per_worker

    @property
    def total_gpu_num(self) -> int:
        """Number of devices of all workers."""
        return self._worker_num * self._gpu_num_per_worker

    @property
    def device_type(self) -> str:
        """ "CPU" or "GPU"."""
        return self._device_type

    @property
    def hosts(self):
        """ "host:port" by worker, a new list."""
        return list(self._hosts)

    @property
    def nodes(self):
        """Number of the machine on which each worker runs, by worker; machines count from 0 as they come."""
        return _nodes(self._hosts)

    @property
    def bootstrap_address(self):
        """ "host:port" at which worker 0 serves the others."""
        return self._hosts[0]

    @property
    def token(self):
        """Text that the workers of this job show each other. Never print it."""
        return self._token

    @property
    def visible_device_list(self):
        """GPUs that this worker uses among those it sees, such as "0,1"; "" for all."""
        return self._visible_device_list

    @property
    def available_devices(self):
        """TensorFlow names of the devices of all workers, worker by worker."""
        return [
            "/job:worker/replica:0/task:%d/device:%s:%d" % (worker, self._device_type, device)
            for worker in range(self._worker_num)
            for device in range(self._gpu_num_per_worker)
        ]

    @property
    def local_devices(self):
        """TensorFlow names of this worker's devices as its own session knows them."""
        return [
            "/job:localhost/replica:0/task:0/device:%s:%d" % (self._device_type, device)
            for device in range(self._gpu_num_per_worker)
        ]

    @property
    def available_gpus(self):
        """The same as `available_devices`; CPU devices where there are no GPUs."""
        return self.available_devices

    @property
    def virtual_devices(self):
        """One VirtualDevice with all devices of the job. Which of them a TaskGraph gets is for the plan to say."""
        return [VirtualDevice(self.available_devices, self.local_devices)]

    @property
    def cluster_spec(self):
        """dict of the job "worker" to its addresses, "host:port" by worker, as `tf.train.ClusterSpec` takes it."""
        return {"worker": self.hosts}

    @property
    def local_rank(self):
        """Index of this worker among those of its machine, as far as the launcher tells which share one."""
        nodes = self.nodes
        return nodes[: self._worker_index].count(nodes[self._worker_index])

    def __repr__(self):
        return "Cluster(worker_num=%d, worker_index=%d, gpu_num_per_worker=%d, hosts=%r, device_type=%r)" % (
            self._worker_num,
            self._worker_index,
            self._gpu_num_per_worker,
            self._hosts,
            self._device_type,
        )


def _nodes(hosts):
    numbers = {}
    names = [(split_address(host) or (host.rsplit(":", 1)[0],))[0] for host in hosts]
    return [numbers.setdefault(name, len(numbers)) for name in names]


def _devices(environ, run_visible_devices, local_size, local_rank):
    """Device type, number of devices and visible_device_list of this worker.

    Args:
      local_size: number of workers on this machine, as far as the launcher tells.
      local_rank: this worker's index among them.
    """
    wanted = environ.get("EPL_DEVICE", "").lower()
    if wanted not in ("", "cpu", "gpu"):
        raise ClusterError('environment variable EPL_DEVICE=%r must be "cpu" or "gpu".' % environ["EPL_DEVICE"])
    number = integer(environ, "EPL_GPU_PER_WORKER", 1)
    chosen = [int(text) for text in run_visible_devices.split(",") if text]
    if chosen and number not in (None, len(chosen)):
        raise ClusterError(
            'cluster.run_visible_devices="%s" names %d devices, but EPL_GPU_PER_WORKER=%d. Make them '
            "agree." % (run_visible_devices, len(chosen), number)
        )
    no_gpu = wanted == "cpu" or not (wanted or tensorflow_knows_gpus())
    seen = [] if no_gpu else visible_gpus(environ)
    if wanted == "cpu" or not (wanted or seen):
        return "CPU", number or len(chosen) or 1, ""
    if chosen:
        if seen and max(chosen) >= len(seen):
            raise ClusterError(
                'cluster.run_visible_devices="%s" names device %d, but this worker sees %d GPUs (0 to '
                "%d)." % (run_visible_devices, max(chosen), len(seen), len(seen) - 1)
            )
        return "GPU", len(chosen), run_visible_devices
    return ("GPU",) + _share_of_gpus(environ, number, len(seen), local_size, local_rank)


def _share_of_gpus(environ, number, seen, local_size, local_rank):
    """Number and visible_device_list of the GPUs that this worker takes of the `seen` ones."""
    if not seen:
        # EPL_DEVICE=gpu: whoever set it knows; TensorFlow will say if there is none.
        return number or 1, ""
    own = "CUDA_VISIBLE_DEVICES" in environ or local_size == 1
    if number is None:
        number = seen if own else seen // local_size
    if number == 0:
        raise ClusterError(
            "%d workers run on this machine, which has only %d GPUs. Start fewer workers, or set "
            "EPL_DEVICE=cpu." % (local_size, seen)
        )
    if number > seen:
        raise ClusterError(
            "EPL_GPU_PER_WORKER=%d, but this worker sees only %d GPUs. Lower it, widen "
            "CUDA_VISIBLE_DEVICES, or set EPL_DEVICE=cpu." % (number, seen)
        )
    # Workers that see the same GPUs take one slice each; those that were given their own see just enough for one.
    first = local_rank * number if seen >= number * local_size else 0
    if number == seen:
        return number, ""
    return number, ",".join(str(index) for index in range(first, first + number))
