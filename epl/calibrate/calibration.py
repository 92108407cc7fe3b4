"""The Machine that this is, measured."""

import os

from epl.calibrate.device import measure_device
from epl.calibrate.link_speed import measure_link
from epl.cluster import fingerprint
from epl.cluster.gpus import visible_gpus
from epl.cluster.machine import NOMINAL, Link, Machine

# Of what devices of a worker add up, each byte of one is read twice and written once.
_PASSES_OF_A_SUM = 3


def calibrate(links=True):
    """Measures this machine.

    Args:
      links: whether workers are started to measure how they exchange; else they count as assumed.

    Returns:
      A Machine.

    Raises:
      LaunchError, WorkerError: the workers cannot be started, or fail.
    """
    gpu = os.environ.get("EPL_DEVICE", "").lower() != "cpu" and bool(visible_gpus())
    device = measure_device(gpu)
    host = measure_link([2, 4] if fingerprint.cores() >= 8 else [2])[0] if links else NOMINAL.host
    worker = NOMINAL.worker
    if not gpu:  # its devices share memory: what they exchange is added up there
        speed = device.memory_bytes_per_s / _PASSES_OF_A_SUM
        worker = Link(device.start_s, speed, "measured: sums in memory")
    return Machine(", ".join(fingerprint.hardware()), device, worker, host, NOMINAL.network)


def table(machine):
    """A Machine in words, a line for each figure."""
    device = machine.device
    lines = ["%s" % machine.name]
    for dtype, speeds in device.products:
        told = ", ".join("%.3g of %.1g" % (speed / 1e9, flops) for flops, speed in speeds)
        lines.append("  products in %s, billions of operations a second: %s operations" % (dtype, told))
    lines.append("  memory %.3g GB/s, element by element %.3g GB/s" % _giga(device))
    lines.append("  starting an operation %.3g us" % (device.start_s * 1e6))
    if device.cores:
        lines.append("  %d cores, which all devices of the host share" % device.cores)
    for name in ("worker", "host", "network"):
        link = getattr(machine, name)
        told = name, link.latency_s * 1e6, link.bytes_per_s / 1e9, link.source
        lines.append("  link %s: %.3g us, %.3g GB/s (%s)" % told)
    return "\n".join(lines)


def _giga(device):
    return device.memory_bytes_per_s / 1e9, device.elementwise_bytes_per_s / 1e9
