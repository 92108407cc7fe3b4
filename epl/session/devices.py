"""Devices that a program names in its graph. EPL places copies of the model itself and says what it passes over."""

import re

_DEVICE = re.compile(r"(?:^|/)(?:device:)?([CG]PU):(\d+)", re.IGNORECASE)
_JOB = re.compile(r"/job:(\w+)")


def passed_over(graph):
    """What a program's own distribution over devices comes to nothing by.

    Args:
      graph: the Graph as the program has built it.

    Returns:
      Sorted list of devices (such as "GPU:0") if operations are on several of a kind, and of jobs other than
      localhost (such as "job:ps"). Empty for a program for one device.
    """
    kinds, jobs = {}, set()
    for node in graph.nodes.values():
        if node.device:
            for kind, number in _DEVICE.findall(node.device):
                kinds.setdefault(kind.upper(), set()).add(int(number))
            jobs.update(job for job in _JOB.findall(node.device) if job != "localhost")
    several = ["%s:%d" % (kind, number) for kind, found in kinds.items() if len(found) > 1 for number in found]
    return sorted(several) + sorted("job:" + job for job in jobs)
