"""What devices and the links between them can do, measured or given: plain data, without TensorFlow.

A Machine is a name (`machine("V100")`), what `python -m epl.calibrate` has measured, or a file that one writes by hand.
All that plans decide by cost goes by one of them; where none is named, by `NOMINAL`.
"""

import difflib
import json
import math
import os
from dataclasses import asdict, dataclass, replace
from typing import Optional, Tuple

import yaml

from epl.cluster.fingerprint import hardware, machine_file
from epl.errors import ConfigError

# What `python -m epl.calibrate` has measured on this hardware, as a name.
MEASURED = "measured"
# Where a link is: between devices of a worker, between workers of a host, between hosts.
WORKER, HOST, NETWORK = "worker", "host", "network"
LINKS = (WORKER, HOST, NETWORK)
FLOAT32, FLOAT16, BFLOAT16 = "float32", "float16", "bfloat16"


@dataclass(frozen=True)
class Link:
    """A way between devices or workers.

    Attributes:
      latency_s: seconds that the smallest exchange of two takes, through the operation.
      bytes_per_s: that each of them sends of a large one.
      source: where the figures come from, in words.
    """

    latency_s: float
    bytes_per_s: float
    source: str = "measured"

    @property
    def start_bytes(self):
        """What an exchange costs before it has sent anything, as bytes that could have been sent."""
        return round(self.latency_s * self.bytes_per_s)


@dataclass(frozen=True)
class Device:
    """What one device can do.

    Attributes:
      products: (dtype, ((floating-point operations of a product, operations per second), …)) pairs; between two sizes
        of product the speed follows a straight line over the logarithm of the size, beyond them it stays.
      memory_bytes_per_s: of what is read and written one byte after the other.
      elementwise_bytes_per_s: of what is read and written by operations that compute element by element.
      start_s: seconds for starting one operation.
      memory_bytes: size of its memory; None where that is not known.
      cores: of a host, which all of its devices compute with, as CPU devices do; 0: each device computes by itself.
    """

    products: Tuple[Tuple[str, Tuple[Tuple[float, float], ...]], ...]
    memory_bytes_per_s: float
    elementwise_bytes_per_s: float
    start_s: float
    memory_bytes: Optional[int] = None
    cores: int = 0

    def flops_per_s(self, flops, dtype=FLOAT32):
        """Operations per second in a product of so many; of a dtype that is not known, as in float32."""
        speeds = dict(self.products)
        points = speeds.get(dtype, speeds[FLOAT32])
        for (small, slow), (large, fast) in zip(points, points[1:]):
            if small < flops < large:
                part = math.log(flops / small) / math.log(large / small)
                return slow + part * (fast - slow)
        return points[0][1] if flops <= points[0][0] else points[-1][1]

    @property
    def most_flops_per_s(self):
        """Operations per second in the largest products in float32."""
        return self.flops_per_s(float("inf"))


@dataclass(frozen=True)
class Machine:
    """What a cluster can do.

    Attributes:
      name: for people.
      device: the Device of which there are several.
      worker, host, network: the Links between two devices of a worker, two workers of a host, and two hosts.
    """

    name: str
    device: Device
    worker: Link
    host: Link
    network: Link

    def link_between(self, hosts):
        """The slowest Link between workers.

        Args:
          hosts: the address "host:port" of each worker.
        """
        return self.host if len({host.rsplit(":", 1)[0] for host in hosts}) <= 1 else self.network

    @property
    def flops_per_link_byte(self):
        """Floating-point operations that take as long as to send a byte to another device of the worker."""
        return self.device.most_flops_per_s / self.worker.bytes_per_s

    @property
    def link_bytes_per_computed_byte(self):
        """Bytes that are sent there in the time in which an operation computes a byte, element by element."""
        return self.worker.bytes_per_s / self.device.elementwise_bytes_per_s

    def to_dict(self):
        """The machine as `from_dict` reads it."""
        device, links = self.device, {link: asdict(getattr(self, link)) for link in LINKS}
        products = {dtype: {"%g" % flops: speed for flops, speed in points} for dtype, points in device.products}
        return {"name": self.name, "device": dict(asdict(device), products=products), "links": links}


def flat(flops_per_s, **others):
    """The products of a Device whose speed does not depend on the size, by dtype."""
    speeds = dict(float32=flops_per_s, **others)
    return tuple((dtype, ((1.0, float(speed)),)) for dtype, speed in sorted(speeds.items()))


# By which plans are made where no machine is named: products and memory of a Tesla V100's data sheet, the link of a
# PCIe 3.0 slot within a worker, what benchmarks/op_latency.py measures within a host, 10 Gbit/s with what TCP makes of
# it between hosts. Element by element operations reach a part of the memory's speed alone.
NOMINAL = Machine(
    "nominal",
    Device(flat(15.7e12), 900e9, 16 * 15.7e9, 5e-6),
    worker=Link(16 * 1024 / 15.7e9, 15.7e9, "assumed within a worker"),
    host=Link(13e-6, 5e9, "assumed within a machine"),
    network=Link(200e-6, 1.25e9, "assumed between machines"),
)

_GIB = 1 << 30


def _gpu(name, float32, float16, memory, gib, nvlink):
    """A machine of GPUs by their data sheets: products reach some 70 % of these, and memory 85 %."""
    products = flat(0.7 * float32, float16=0.7 * float16, bfloat16=0.7 * float16)
    sheet = "data sheet of %s" % name
    return Machine(
        name,
        Device(products, 0.85 * memory, 0.85 * memory, 5e-6, gib * _GIB),
        worker=Link(10e-6, nvlink, sheet),
        host=Link(15e-6, nvlink, sheet),
        network=Link(30e-6, 10e9, "assumed: 100 Gbit/s"),
    )


# float32 as TensorFlow 2 computes it, in TF32 where the device has it; the V100 has no bfloat16, and is as in float32.
_NAMED = {
    "nominal": NOMINAL,
    "V100": _gpu("V100", 15.7e12, 125e12, 900e9, 16, 130e9),
    "A100": _gpu("A100", 156e12, 312e12, 2039e9, 80, 250e9),
    "H100": _gpu("H100", 494e12, 989e12, 3350e9, 80, 370e9),
    "H200": _gpu("H200", 494e12, 989e12, 4800e9, 141, 370e9),
    # A core of a server with AVX-512, and its part of the memory's speed.
    "CPU": Machine(
        "CPU",
        Device(flat(60e9), 8e9, 6e9, 8e-6, None, cores=1),
        worker=Link(20e-6, 4e9, "assumed within a process"),
        host=Link(13e-6, 5e9, "assumed within a machine"),
        network=Link(200e-6, 1.25e9, "assumed between machines"),
    ),
}
_NAMED["V100"] = replace(
    _NAMED["V100"], device=replace(_NAMED["V100"].device, products=flat(11e12, float16=87e12, bfloat16=11e12))
)


def names():
    """The machines that have names."""
    return tuple(_NAMED)


def machine(text):
    """The Machine of a name, or of a file.

    Args:
      text: one of `names()`, in any case; "measured" for what `python -m epl.calibrate` keeps of this hardware; or a
        path that ends in .yaml, .yml or .json.

    Raises:
      ConfigError: there is none of them; or the file cannot be read, or lacks a figure, which is named.
    """
    if text.lower() == MEASURED:
        text = machine_file()
        if not os.path.isfile(text):
            raise ConfigError(
                "nothing has been measured on this machine (%s): there is no file %s. Run python -m epl.calibrate, or "
                "name another machine: %s." % (", ".join(hardware()), text, ", ".join(_NAMED))
            )
    known = {name.lower(): name for name in _NAMED}
    if text.lower() in known:
        return _NAMED[known[text.lower()]]
    if not text.endswith((".yaml", ".yml", ".json")):
        near = difflib.get_close_matches(text.lower(), known, n=1, cutoff=0.5)
        raise ConfigError(
            "There is no machine '%s'.%s Known are %s; a file with one ends in .yaml or .json."
            % (text, " Did you mean '%s'?" % known[near[0]] if near else "", ", ".join((*_NAMED, MEASURED)))
        )
    try:
        with open(text, encoding="utf-8") as file:
            values = json.load(file) if _is_json(text) else yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError("The machine file %s cannot be read: %s" % (text, error))
    return from_dict(values, "The machine file %s" % text)


def measured():
    """The Machine that `python -m epl.calibrate` keeps of this hardware; None where it has not run.

    Raises:
      ConfigError: the file cannot be read, or lacks a figure.
    """
    return machine(MEASURED) if os.path.isfile(machine_file()) else None


def from_dict(values, what="The machine"):
    """A Machine of the dict that `Machine.to_dict` makes.

    Raises:
      ConfigError: a figure is missing, is no positive number, or is not known; says which.
    """
    reader = _Reader(what)
    top = reader.part(values, "", ("name", "device", "links"))
    given = reader.part(top["device"], "device", _DEVICE, optional=("memory_bytes", "cores"))
    links = reader.part(top["links"], "links", LINKS)
    found = {}
    for link in LINKS:
        figures = reader.part(links[link], "links.%s" % link, ("latency_s", "bytes_per_s"), optional=("source",))
        numbers = [reader.number(figures[key], "links.%s.%s" % (link, key)) for key in ("latency_s", "bytes_per_s")]
        found[link] = Link(*numbers, source=str(figures.get("source", "given")))
    numbers = {key: reader.number(given[key], "device.%s" % key) for key in _DEVICE[1:]}
    memory, cores = given.get("memory_bytes"), given.get("cores", 0)
    device = Device(
        products=reader.products(given["products"]),
        memory_bytes=None if memory is None else int(reader.number(memory, "device.memory_bytes")),
        cores=int(reader.number(cores, "device.cores")) if cores else 0,
        **numbers,
    )
    return Machine(str(top["name"]), device, **found)


_DEVICE = ("products", "memory_bytes_per_s", "elementwise_bytes_per_s", "start_s")


def write(made, path):
    """Writes a Machine to a file, in one step.

    Args:
      made: the Machine.
      path: a name that ends in .yaml, .yml or .json.
    """
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "w", encoding="utf-8") as file:
        if _is_json(path):
            json.dump(made.to_dict(), file, indent=2)
        else:
            yaml.safe_dump(made.to_dict(), file, default_flow_style=False, sort_keys=False)
    os.replace(temporary, path)


def _is_json(path):
    return path.endswith(".json")


class _Reader(object):
    """Looks at what a file says, and names what is wrong in it.

    Args:
      what: the file, as the subject of a sentence.
    """

    def __init__(self, what):
        self._what = what

    def part(self, values, where, keys, optional=()):
        """A dict that has some keys, and perhaps others."""
        if not isinstance(values, dict):
            raise ConfigError("%s: %s has to hold %s." % (self._what, where or "it", ", ".join(keys)))
        prefix = where + "." if where else ""
        for key in keys:
            if key not in values:
                raise ConfigError("%s lacks %s%s; it has to say %s." % (self._what, prefix, key, _MEANING[key]))
        for key in values:
            if key not in keys + tuple(optional):
                known = ", ".join(keys + tuple(optional))
                raise ConfigError("%s: %s%s is not known; known are %s." % (self._what, prefix, key, known))
        return values

    def number(self, value, where):
        """A positive number; texts such as "9e11" count, which YAML takes for text."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = 0.0
        if isinstance(value, bool) or not 0 < number < float("inf"):
            raise ConfigError("%s: %s=%r is no positive number." % (self._what, where, value))
        return number

    def products(self, values):
        """The products of a Device: of each dtype a speed, or speeds by the operations of a product."""
        self.part(values, "device.products", (FLOAT32,), optional=(FLOAT16, BFLOAT16))
        found = []
        for dtype, speeds in sorted(values.items()):
            where = "device.products.%s" % dtype
            speeds = speeds if isinstance(speeds, dict) and speeds else {1.0: speeds}
            points = [(self.number(n, where), self.number(s, "%s.%s" % (where, n))) for n, s in speeds.items()]
            found.append((dtype, tuple(sorted(points))))
        return tuple(found)


_MEANING = {
    "name": "what people call it",
    "device": "what a device can do",
    "links": "how devices and workers reach each other (%s)" % ", ".join(LINKS),
    "products": "floating-point operations per second in matrix products, by dtype",
    "float32": "floating-point operations per second in float32",
    "memory_bytes_per_s": "bytes per second between the device and its memory",
    "elementwise_bytes_per_s": "bytes per second that operations element by element read and write",
    "start_s": "seconds for starting an operation",
    "worker": "the link between two devices of a worker",
    "host": "the link between two workers of a host",
    "network": "the link between two hosts",
    "latency_s": "seconds of the smallest exchange",
    "bytes_per_s": "bytes per second that each device sends",
}
