"""What exchanges between ranks cost: by the link that they go over, and by how many take part."""

import math

from epl.program.collective import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    RECEIVE,
    REDUCE,
    REDUCE_SCATTER,
    SEND,
    SPARSE_ALL_REDUCE,
)

# What each rank sends of the bytes that it hands in, over a ring of so many.
_SENT = {
    ALL_REDUCE: lambda ranks: 2.0 * (ranks - 1) / ranks,
    ALL_GATHER: lambda ranks: ranks - 1.0,
    REDUCE_SCATTER: lambda ranks: (ranks - 1.0) / ranks,
    ALL_TO_ALL: lambda ranks: (ranks - 1.0) / ranks,
    SPARSE_ALL_REDUCE: lambda ranks: ranks - 1.0,
    BROADCAST: lambda ranks: 1.0,
    REDUCE: lambda ranks: 1.0,
    SEND: lambda ranks: 1.0,
    RECEIVE: lambda ranks: 0.0,
}


class Exchanged(object):
    """Seconds of the Collectives of a plan.

    Args:
      machine: an epl.cluster.machine.Machine.
      hosts: number of hosts over which workers are spread.
    """

    def __init__(self, machine, hosts):
        self._machine, self._hosts = machine, hosts

    def seconds(self, collective):
        """Of one exchange of an epl.program.collective.Collective; what the data decides counts as nothing but a start.

        Devices of a worker join first what they have, over the link within it; then workers do.
        """
        local, size = collective.devices // max(1, collective.workers), collective.num_bytes or 0
        found = 0.0
        if local > 1:
            found += self.over(self._machine.worker, collective.operation, local, collective.device_bytes or 0)
        if collective.workers > 1:
            found += self.over(self.between_workers, collective.operation, collective.workers, size)
        return found

    @property
    def between_workers(self):
        """The slowest Link between workers."""
        return self._machine.host if self._hosts == 1 else self._machine.network

    @staticmethod
    def over(link, operation, ranks, size):
        """Seconds of an operation of so many ranks, which hand in `size` bytes each, over a ring of one Link."""
        sent = _SENT.get(operation, lambda ranks: 0.0)(ranks) * size
        return link.latency_s * math.ceil(math.log2(ranks)) + sent / link.bytes_per_s
