"""Jobs to which things happen at random instants, and which start again: do they end as if nothing had happened?

    python -m tests.faults.restarts --count 50 --seed 1

One seed is one job: of how many attempts something becomes, to which worker, what, and when.
"""

import argparse
import json
import os
import random
import re
import sys
import tempfile

import numpy as np

from tests.helpers import processes

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "restarted.py")
WORKERS, MOST_FAULTS, STEPS = 2, 3, 30
END_S = 400
# One thread, so that sums have one order; and whoever is stopped is given up soon.
VARIABLES = dict(
    OMP_NUM_THREADS=1,
    TF_NUM_INTRAOP_THREADS=1,
    TF_NUM_INTEROP_THREADS=1,
    EPL_COMMUNICATION_STOPPED_S=4,
    EPL_DEVICE="cpu",
    STEPS=STEPS,
)


def faults_of(seed):
    """Faults of a job, one for each attempt until the last one: [worker, what, when], see restarted.py."""
    draw = random.Random(seed)
    found = []
    for _ in range(draw.randint(1, MOST_FAULTS)):
        what = draw.choice(("kill", "stop", "exit", "error"))
        when = draw.randint(1, STEPS - 1) if what == "error" else round(draw.uniform(0, 0.8), 3)
        found.append([draw.randrange(WORKERS), what, when])
    return found


def run(start, folder, faults, *options):
    """The values with which a job ends, by variable, and what it printed.

    Args:
      start: as for `faults.job.Job`.
      folder: of its own.
      faults: as `faults_of` gives them.
      *options: of epl-launch.
    """
    folder = str(folder)
    os.makedirs(folder, exist_ok=True)
    arguments = [
        "-m",
        "epl.launch",
        "--num_workers",
        WORKERS,
        "--device",
        "cpu",
        "--max_restarts",
        MOST_FAULTS,
        *options,
    ]
    arguments += ["--log_dir", os.path.join(folder, "logs"), SCRIPT, folder]
    environ = processes.clean_environment(FAULTS=json.dumps(faults), **VARIABLES)
    ended = start(arguments, environ, os.path.join(folder, "output")).wait(END_S)
    assert ended.code == 0, "faults %s: %s" % (faults, ended.output[-5000:])
    with np.load(os.path.join(folder, "final.npz")) as found:
        return {name: found[name] for name in found.files}, ended.output


def assert_bit_equal(found, want):
    assert sorted(found) == sorted(want)
    for name, value in want.items():
        assert value.dtype == found[name].dtype and value.tobytes() == found[name].tobytes(), name


def restarts_of(output):
    return len(re.findall(r"starting again", output))


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        want, _ = run(processes.python, os.path.join(folder, "undisturbed"), [])
        total = 0
        for seed in range(options.seed, options.seed + options.count):
            faults = faults_of(seed)
            found, output = run(processes.python, os.path.join(folder, str(seed)), faults)
            assert_bit_equal(found, want)
            total += restarts_of(output)
            print("seed %d: %s: bit-equal after %d restarts" % (seed, faults, restarts_of(output)), flush=True)
    print("%d jobs, %d restarts: all ended with the variables of the undisturbed one" % (options.count, total))


if __name__ == "__main__":
    main(sys.argv[1:])
