"""How large a group of gradients has to be for the link between workers to be worth a message.

A group of n bytes takes about latency_s + n / bytes_per_s. Small groups can be on their way while the backward pass
still goes on, but each pays the latency; so a group is made large enough that the latency is a small part of its time.
A job goes by what its workers measure before they plan. A plan that is made without any workers goes by where they are
(epl.cluster.machine.Machine.link_between).
"""

# A group's own bytes take at least this many times as long as its latency.
_WORTH_OF_LATENCY = 4


def smallest_group(link):
    """Bytes that a group should have at least. More for a link of higher latency or bandwidth."""
    return max(1, round(_WORTH_OF_LATENCY * link.latency_s * link.bytes_per_s))


def num_groups(total_bytes, link, max_splits, fuse_bytes=0):
    """Into how many groups gradients are fused.

    Args:
      total_bytes: of all gradients.
      link: the epl.cluster.machine.Link between the workers.
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
