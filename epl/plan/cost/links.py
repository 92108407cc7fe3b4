"""How fast workers reach each other, and how large a group of gradients has to be for that to be worth a message.

A group of n bytes takes about latency_s + n / bytes_per_s. Small groups can be on their way while the backward pass
still goes on, but each pays the latency; so a group is made large enough that the latency is a small part of its time.
A job goes by what its workers measure before they plan. A plan that is made without any workers goes by where they are.
"""

from dataclasses import dataclass

# A group's own bytes take at least this many times as long as its latency.
_WORTH_OF_LATENCY = 4


@dataclass(frozen=True)
class Link:
    """A way between workers.

    Attributes:
      latency_s: seconds that the smallest all-reduce takes, through the operation.
      bytes_per_s: of a large all-reduce: bytes of the message, divided by the time.
      source: where the figures come from, in words.
    """

    latency_s: float
    bytes_per_s: float
    source: str = "measured"


# Measured by benchmarks/op_latency.py between two processes of one machine.
SHARED_MEMORY = Link(latency_s=13e-6, bytes_per_s=5e9, source="assumed within a machine")
# A network of 10 Gbit/s with what TCP makes of it.
NETWORK = Link(latency_s=200e-6, bytes_per_s=1.25e9, source="assumed between machines")


def link_of(hosts):
    """What is assumed of the slowest link of a job.

    Args:
      hosts: the address "host:port" of each worker.
    """
    return SHARED_MEMORY if len({host.rsplit(":", 1)[0] for host in hosts}) <= 1 else NETWORK


def smallest_group(link):
    """Bytes that a group should have at least. More for a link of higher latency or bandwidth."""
    return max(1, round(_WORTH_OF_LATENCY * link.latency_s * link.bytes_per_s))


def num_groups(total_bytes, link, max_splits, fuse_bytes=0):
    """Into how many groups gradients are fused.

    Args:
      total_bytes: of all gradients.
      link: the Link between the workers.
      max_splits: the most groups there may be.
      fuse_bytes: the size that groups should have; 0: what the link is worth.

    Returns:
      An integer from 1 to max_splits.
    """
    if fuse_bytes:
        wanted = -(-total_bytes // fuse_bytes)
    else:
        wanted = total_bytes // smallest_group(link)
    return int(max(1, min(max_splits, wanted)))
