"""python -m tests.draws: random models, layouts and options that change no numbers, against one device.

Each is drawn by its number, so that `python -m tests.draws 1234` is one of them again.
"""

import argparse
import collections
import os
import random
import shutil
import sys
import tempfile

from tests.helpers.checks import assert_same_training
from tests.helpers.forks import Template
from tests.helpers.programs import random_models
from tests.helpers.remote import Job, RemoteError
from tests.multiproc.test_combinations import EXACT, LAYOUTS, LEVELS, PLACES, SWITCHES, arguments
from tests.numerics.test_pipelines import ATOL, PIPELINES

SYNC = {"communication__sync_batch_norm": True}
RIGHT, WRONG, HANG, REFUSED, ERROR = "right", "wrong", "hang", "refused", "error"
_REFUSALS = ("PlanError", "UnsupportedError", "ConfigError", "CaptureError")
_LIMIT_S = 240


def drawn(seed):
    """(name of a layout, of a model, names of options, whether copies normalise together)."""
    draw = random.Random(seed)
    names = [draw.choice(LEVELS), draw.choice(PLACES)] + draw.sample(SWITCHES, draw.randint(0, 3))
    model = "%s%d" % (random_models.PREFIX, seed)
    return draw.choice(list(LAYOUTS)), model, [name for name in names if name in EXACT], draw.random() < 0.5


def trained(jobs, seed, **options):
    """What all workers make of what is drawn by a seed; `jobs`: {(workers, devices): Job}."""
    name, model, names, together = drawn(seed)
    layout = LAYOUTS[name]
    *shape, config = arguments(layout, model, names)
    config.update(SYNC if together else {})
    return jobs[layout.workers, layout.devices](PIPELINES + "train", *shape, **config, **options)


def on_one_device(by_hand, seed):
    """The same without EPL; `by_hand`: the program of that name."""
    name, model, _, together = drawn(seed)
    return by_hand(model, LAYOUTS[name].micro_batches, LAYOUTS[name].replicas, together=together)


def is_refusal(names):
    """Whether an error says that something is not served; `names`: of its class and of all bases of that."""
    return not set(_REFUSALS).isdisjoint(names)


def outcome(jobs, seed):
    """(RIGHT, WRONG, HANG, REFUSED or ERROR, why)."""
    plain = jobs["plain"]
    want = on_one_device(lambda *given, **more: plain(PIPELINES + "by_hand", *given, **more)[0], seed)
    try:
        found = trained(jobs, seed, timeout_s=_LIMIT_S)
    except RemoteError as error:
        return REFUSED if is_refusal([error.kind] + list(error.bases)) else ERROR, str(error)
    except AssertionError as error:  # a worker has ended, or has not answered in time
        return HANG if ": None" in str(error).partition("\n")[0] else ERROR, str(error)
    for got in found:
        try:
            assert_same_training(got, want, atol=ATOL)
        except AssertionError as error:
            return WRONG, str(error)
    return RIGHT, ""


def main(given):
    parser = argparse.ArgumentParser(prog="python -m tests.draws", description=__doc__.partition(": ")[2])
    parser.add_argument("--count", type=int, default=300, help="how many are drawn (default 300)")
    parser.add_argument("--seed", type=int, help="number of the first; printed, random if it is left out")
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER", help="these instead")
    options = parser.parse_args(given)
    first = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    seeds = options.numbers or range(first, first + options.count)
    if not options.numbers:
        print("%d combinations, drawn with --seed %d" % (len(seeds), first), flush=True)
    counts, folder = collections.Counter(), tempfile.mkdtemp(prefix="draws")
    with Template() as template:
        shapes = sorted({(layout.workers, layout.devices) for layout in LAYOUTS.values()})
        jobs = {shape: Job(template.python, folder, *shape) for shape in shapes}
        jobs["plain"] = Job(template.python, folder, plain=True)
        try:
            for seed in seeds:
                kind, why = outcome(jobs, seed)
                counts[kind] += 1
                name, _, names, together = drawn(seed)
                what = "-".join([name] + names + ["sync"] * together)
                print("%d %s %s %s" % (seed, kind, what, "\n    ".join([""] + why[-3000:].splitlines())), flush=True)
        finally:
            for job in jobs.values():
                job.stop()
            shutil.rmtree(folder, ignore_errors=True)
    print("; ".join("%s: %d" % (kind, counts[kind]) for kind in (RIGHT, WRONG, HANG, REFUSED, ERROR)))
    return 1 if counts[WRONG] + counts[HANG] + counts[ERROR] or counts[REFUSED] > 0.05 * len(seeds) else 0


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.exit(main(sys.argv[1:]))
