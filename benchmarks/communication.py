"""The table and the picture of docs/communication.md: all-reduce between two processes of one machine.

    python benchmarks/communication.py --measure [--horovod_python VENV/bin/python] [--rounds 3]
    python benchmarks/communication.py

The first measures (all_reduce, op_latency.py; all in turn, the best of the rounds) and writes
docs/images/communication.json; both draw docs/images/communication.svg from that file and print the table.
"""

import argparse
import json
import math
import os
import sys
import tempfile

import jobs
import op_latency
from all_reduce import run as c_level

IMAGES = os.path.join(jobs.ROOT, "docs", "images")
DATA = os.path.join(IMAGES, "communication.json")
PICTURE = os.path.join(IMAGES, "communication.svg")
# series: (key, what it is called, colour, dashes)
SERIES = (
    ("shm", "EPL, shared memory", "#1a6fb5", ""),
    ("op", "EPL, TensorFlow operation", "#1a6fb5", "6 4"),
    ("tcp", "EPL, TCP", "#2a9d4a", ""),
    ("openmpi", "OpenMPI 4.1, shared memory", "#d2691e", ""),
    ("gloo", "EPL over Gloo's connections", "#888", ""),
    ("horovod", "Horovod 0.28.1 with Gloo, operation", "#b5301a", "6 4"),
)


def measure(rounds, horovod_python):
    """{series: {bytes: best microseconds}}"""
    found = {key: {} for key, _, _, _ in SERIES}

    def note(key, results):
        for size, values in results.items():
            found[key][size] = min(values[0], found[key].get(size, values[0]))

    with tempfile.TemporaryDirectory() as folder:
        c_level.build_epl(folder)
        with_mpi = c_level.build_mpi(folder)
        program, count = os.path.join(folder, "epl"), str(jobs.WORKERS)
        for _ in range(rounds):
            for backend in ("shm", "tcp", "gloo"):
                note(backend, c_level.measure([program, count, backend]))
            if with_mpi:
                note("openmpi", c_level.measure(c_level.mpi_command(folder, jobs.WORKERS)))
    for size, row in op_latency.compare(rounds, horovod_python, favoured=True).items():
        for key in ("op", "horovod"):
            if key in row:
                found[key][size] = row[key]
    return {key: values for key, values in found.items() if values}


def name_of(size):
    return "%d MiB" % (size >> 20) if size >= 1 << 20 else "%d KiB" % (size >> 10)


def table(series):
    """Markdown: microseconds by size."""
    columns = [(key, name) for key, name, _, _ in SERIES if key in series]
    lines = ["| bytes | " + " | ".join(name for _, name in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for size in sorted({size for values in series.values() for size in values}):
        cells = [series[key].get(size) for key, _ in columns]
        lines.append("| %s | %s |" % (name_of(size), " | ".join("" if c is None else "%.4g" % c for c in cells)))
    return "\n".join(lines)


def draw(series, machine):
    """An SVG: microseconds over bytes, both on logarithmic scales."""
    left, top, width, height = 70, 30, 560, 380
    sizes = sorted({size for values in series.values() for size in values})
    times = [time for values in series.values() for time in values.values()]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))

    def x(size):
        return left + width * math.log(float(size) / sizes[0]) / math.log(float(sizes[-1]) / sizes[0])

    def y(time):
        return top + height * (high - math.log10(time)) / (high - low)

    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 470" font-family="Helvetica, Arial, sans-serif" '
        'font-size="13" role="img" aria-labelledby="title">',
        '<title id="title">Time of an all-reduce between two processes, by size</title>',
        '<rect width="960" height="470" fill="#fff"/>',
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        out.append('<path d="M%d,%.1f h%d" stroke="#ddd"/>' % (left, at, width))
        label = "%g us" % 10**power if power < 3 else "%g ms" % 10 ** (power - 3)
        out.append('<text x="%d" y="%.1f" text-anchor="end">%s</text>' % (left - 8, at + 4, label))
    for size in sizes:
        out.append('<path d="M%.1f,%d v%d" stroke="#eee"/>' % (x(size), top, height))
        where = (x(size), top + height + 20)
        out.append('<text x="%.1f" y="%d" text-anchor="middle">%s</text>' % (where + (name_of(size),)))
    shown = [each for each in SERIES if each[0] in series]
    for row, (key, name, colour, dashes) in enumerate(shown):
        points = sorted(series[key].items())
        style = 'stroke="%s" stroke-width="2" fill="none" stroke-dasharray="%s"' % (colour, dashes)
        path = " ".join("%s%.1f,%.1f" % ("L" if i else "M", x(s), y(t)) for i, (s, t) in enumerate(points))
        out.append('<path d="%s" %s/>' % (path, style))
        out.extend('<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>' % (x(s), y(t), colour) for s, t in points)
        at = top + 20 + 24 * row
        out.append('<path d="M650,%d h34" %s/><text x="692" y="%d">%s</text>' % (at, style, at + 4, name))
    out.append(
        '<text x="%d" y="455" fill="#556" font-size="12">float32, 2 processes; %s</text></svg>' % (left, machine)
    )
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--horovod_python", help="the interpreter of the environment that has Horovod")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.measure:
        jobs.save(DATA, {"microseconds": measure(args.rounds, args.horovod_python)})
    with open(DATA) as source:
        data = json.load(source)
    series = {key: {int(size): time for size, time in values.items()} for key, values in data["microseconds"].items()}
    with open(PICTURE, "w") as target:
        target.write(draw(series, data["machine"]))
    print(table(series))
    return 0


if __name__ == "__main__":
    sys.exit(main())
