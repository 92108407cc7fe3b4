"""Machines of round figures."""

from epl.cluster.machine import NOMINAL, Device, Link, Machine, flat


def simple_machine(flops=15.7e12, memory=900e9, link=15.7e9, start=0.0, latency=0.0, computed=None, **others):
    """A Machine of one speed for all products, one for all memory (`computed` for what is computed element by element)
    and one for all links."""
    way = Link(latency, link)
    device = Device(flat(flops), memory, memory if computed is None else computed, start, **others)
    return Machine("simple", device, way, way, way)


# So that each collective costs what it sends alone; and sums between products stay whole.
FREE_COLLECTIVES = simple_machine(15.7e12, 900e9, computed=float("inf"))
# So that what lies between products is computed in parts, however small it is.
SLOW_BETWEEN = Machine(
    "slow between",
    Device(NOMINAL.device.products, 900e9, NOMINAL.worker.bytes_per_s / 100, NOMINAL.device.start_s),
    NOMINAL.worker,
    NOMINAL.host,
    NOMINAL.network,
)
