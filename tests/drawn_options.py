"""python -m tests.drawn_options: documented options, layouts and models drawn together; how many are refused?

Each is drawn by its number, so that `python -m tests.drawn_options 1234` is one of them again. What compiles is trained
too (--plan: not), in as many workers and devices as it is for, and compared with one device: to rounding, or coarsely
where an option rounds to 16 bits; what takes other steps by its nature, such as LocalSGD, has to give numbers.
"""

import argparse
import collections
import os
import random
import shutil
import sys
import tempfile

import numpy as np

import epl
from epl.config import Config
from epl.errors import EplError
from tests.draws import ERROR, HANG, REFUSED, RIGHT, WRONG, is_refusal
from tests.helpers import planning
from tests.helpers.checks import assert_numbers, assert_same, assert_same_state
from tests.helpers.forks import Template
from tests.helpers.programs import drawn as program
from tests.helpers.remote import Job, RemoteError

TRAIN = "tests.helpers.programs.drawn:train"
PLANNED = "planned"
_LIMIT_S = 240

# scopes, workers, devices of each, copies of the model, configuration
Layout = collections.namedtuple("Layout", "scopes workers devices copies config")
LAYOUTS = {
    "two devices": Layout(["replicate(1)"], 1, 2, 2, {}),
    "two workers": Layout(["replicate(1)"], 2, 1, 2, {}),
    "two by two": Layout(["replicate(1)"], 2, 2, 4, {}),
    "shared batches": Layout(["replicate(2)"], 1, 2, 1, {}),
    "weights": Layout(["replicate(2)"], 1, 2, 1, {"cluster.device_weights": [1, 3]}),
    "stages": Layout(["replicate(1)"] * 2, 1, 2, 1, {}),
    "stages in two workers": Layout(["replicate(1)"] * 2, 2, 1, 1, {}),
    "copies of stages": Layout(["replicate(1)"] * 2, 2, 2, 2, {}),
    "uneven stages": Layout(["replicate(2)", "replicate(1)"], 1, 3, 1, {}),
    "chosen stages": Layout([""], 1, 2, 1, {"auto.auto_parallel": True, "pipeline.num_stages": 2}),
    "split": Layout(["replicate(2)", "split(2)"], 1, 2, 1, {"cluster.colocate_split_and_replicate": True}),
    "split in two workers": Layout(
        ["replicate(2)", "split(2)"], 2, 1, 1, {"cluster.colocate_split_and_replicate": True}
    ),
}

# Of each of these, one value is drawn: documented keys. Those that stand together say in different words what one key
# would, such as how gradients travel.
OPTIONS = {
    "exchange": [
        {"communication.fp16": True},
        {"communication.fp16": True, "communication.fp16_scale": 64},
        {"communication.wire_dtype": "float16"},
        {"communication.wire_dtype": "bfloat16"},
        {"communication.wire_dtype": "int8"},
        {"dgc.sparsity": [0.5, 0.75], "dgc.min_elements": 16},
        {"local_sgd.k_steps": 2},
        {"local_sgd.k_steps": 2, "local_sgd.average_slots": False, "local_sgd.overlap": True},
        {"local_sgd.k_steps": 2, "local_sgd.adaptive": True},
    ],
    "groups": [
        {"communication.max_splits": 1},
        {"communication.fuse_size_mb": 0.0001},
        {"communication.num_communicators": 1},
        {"communication.hierarchical": "off"},
    ],
    "dense": [{"communication.sparse_as_dense": True}],
    "clipping": [{"communication.clip_after_allreduce": True}],
    "means": [{"communication.gradients_reduce_method": "mean"}, {"communication.gradients_reduce_method": "sum"}],
    "checks": [{"communication.check_replicas_every": 1}],
    "norms": [{"communication.sync_batch_norm": True}],
    "precision": [
        {"amp.level": "O1"},
        {"amp.level": "O1", "amp.loss_scale": 128},
        {"amp.level": "O1", "amp.dtype": "bfloat16"},
        {"amp.level": "O2"},
    ],
    "zero": [
        {"zero.level": "v0"},
        {"zero.level": "v1"},
        {"zero.level": "v2"},
        {"zero.level": "v3"},
        {"zero.level": "v3", "zero.segment_mb": 0.0001},
        {"zero.level": "v3", "zero.segment_anchors": ["model/block_0/MatMul:0"]},
    ],
    "offload": [{"offload.level": "v0"}, {"offload.level": "v1"}, {"offload.level": "state"}],
    "kept": [{"gradient_checkpoint.offload": True}],
    "recomputation": [
        {"gradient_checkpoint.type": "auto"},
        {"gradient_checkpoint.type": "auto", "gradient_checkpoint.check_gradients": True},
    ],
    "updates": [{"optimizer.num_apply_group": 2}, {"optimizer.num_apply_group": 3}],
    "large batches": [{"optimizer.lamb": True}, {"optimizer.lars": True}],
    "micro-batches": [{"pipeline.num_micro_batch": 2}, {"pipeline.num_micro_batch": 4}],
    "schedule": [
        {"pipeline.strategy": "PreferForward", "pipeline.num_micro_batch": 2},
        {"pipeline.strategy": "ZeroBubble", "pipeline.num_micro_batch": 2},
    ],
    "steps": [{"execution.steps_per_run": 2}],
    "fetches": [{"execution.fetch_every": 2}],
    "data": [
        {"io.autotune": True},
        {"io.prefetch_to_device": True},
        {"io.stats": True},
        {"io.shard_dataset": True},
        {"io.equal_steps": "drop"},
        {"io.equal_steps": "repeat"},
    ],
}
_HALF = ("amp.level", "communication.fp16", "communication.wire_dtype")
_OWN_STEPS = ("dgc.sparsity", "local_sgd.k_steps")
# What one device does not do, so that numbers are compared with one copy of the model that has these too.
_BESIDES = ("optimizer.lamb", "optimizer.lars")


def drawn(seed):
    """(words for it, the draw as tests.helpers.programs.drawn takes it)."""
    draw = random.Random(seed)
    name = draw.choice(list(LAYOUTS))
    layout, options, names = LAYOUTS[name], {}, draw.sample(sorted(OPTIONS), draw.randint(1, 4))
    for each in names:
        options.update(draw.choice(OPTIONS[each]))
    blocks = [draw.choice(sorted(program.BLOCKS)) for _ in range(draw.randint(2, 4))]
    # Some options are for one optimizer, or for data that is read, by their documentation.
    optimizer = draw.choice(sorted(program.OPTIMIZERS))
    optimizer = "momentum" if {"optimizer.lars", "dgc.sparsity"} & set(options) else optimizer
    optimizer = "adam" if "optimizer.lamb" in options else optimizer
    data = draw.choice(["fed", "read", "fixed"])
    if data == "fed" and {"execution.steps_per_run", "io.shard_dataset", "io.equal_steps"} & set(options):
        data = "read"
    if data == "fixed" and layout.config.get("cluster.device_weights"):
        data = "read"  # documented: devices that divide fixed batches have equal parts
    found = dict(
        layout._asdict(), options=dict(layout.config, **options), blocks=blocks, optimizer=optimizer, data=data
    )
    found.pop("config")
    found.update(loss=draw.choice(sorted(program.LOSSES)), clips=draw.random() < 0.3, resource=draw.random() < 0.5)
    values = ", ".join("%s=%r" % each for each in sorted(options.items()))
    model = "%s %s %s%s %s" % ("+".join(blocks), found["loss"], optimizer, " clipped" * found["clips"], data)
    return "%s: %s: %s" % (name, values, model), found


def planned(draw):
    """(PLANNED or REFUSED, why): whether each worker's graph can be made."""
    try:
        Config(draw["options"])
        with planning.capture(seed=1) as graph:
            epl.Env.get().reset(Config(draw["options"]))
            epl.Env.get()._cluster = planning.cluster(draw["workers"], draw["devices"])
            program.build(epl, draw)
        for index in range(draw["workers"]):
            options = {key.replace(".", "__"): value for key, value in draw["options"].items()}
            planning.compiled(graph, draw["workers"], draw["devices"], index, **options)
    except EplError as error:
        kind = REFUSED if is_refusal([c.__name__ for c in type(error).__mro__]) else ERROR
        return kind, "%s: %s" % (type(error).__name__, error)
    return PLANNED, ""


def outcome(jobs, draw):
    """(RIGHT, WRONG, HANG, REFUSED or ERROR, why), of training."""
    try:
        found = jobs[draw["workers"], draw["devices"]](TRAIN, draw, timeout_s=_LIMIT_S)
    except RemoteError as error:
        return REFUSED if is_refusal([error.kind] + list(error.bases)) else ERROR, str(error)
    except AssertionError as error:  # a worker has ended, or has not answered in time
        return HANG if ": None" in str(error).partition("\n")[0] else ERROR, str(error)
    try:
        _check(jobs, draw, found)
    except AssertionError as error:
        return WRONG, str(error)
    return RIGHT, ""


def _check(jobs, draw, found):
    options = draw["options"]
    for losses, state in found:
        for values in [np.asarray(losses)] + list(state.values()):
            assert_numbers(values)
    # "mean" takes sums for means, by its documentation.
    how = options.get("communication.gradients_reduce_method", "auto")
    sums = how == "sum" or how == "mean" and draw["loss"] == "summed"
    # Each copy of the model normalises, and clips, what it has.
    early = draw["clips"] and not options.get("communication.clip_after_allreduce")
    if sums or early or program.NORMS & set(draw["blocks"]) or any(options.get(key) for key in _OWN_STEPS):
        return
    alone = {key: options[key] for key in _BESIDES if key in options}
    one = dict(draw, options=alone, scopes=["replicate(1)"], workers=1, devices=1, copies=1)
    losses, want = (jobs[1, 1] if alone else jobs["plain"])(TRAIN, one)[0]
    rtol, atol = (0.1, 0.1) if any(options.get(key) for key in _HALF) else (1e-5, 2e-6)
    for got, state in found:
        # Of a sum the mean over copies is fetched, which is what one device computes only of a mean.
        apart = {"execution.steps_per_run", "execution.fetch_every"} & set(options)
        if not apart and draw["loss"] != "summed":
            assert_same(got, losses, rtol, atol, "losses")
        assert_same_state(state, want, rtol, atol)


def main(given):
    parser = argparse.ArgumentParser(prog="python -m tests.drawn_options", description=__doc__.partition(": ")[2])
    parser.add_argument("--count", type=int, default=200, help="how many are drawn (default 200)")
    parser.add_argument("--seed", type=int, help="number of the first; printed, random if it is left out")
    parser.add_argument("--plan", action="store_true", help="make plans and graphs only")
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER", help="these instead")
    options = parser.parse_args(given)
    first = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    seeds = options.numbers or range(first, first + options.count)
    if not options.numbers:
        print("%d draws, --seed %d" % (len(seeds), first), flush=True)
    counts, folder = collections.Counter(), tempfile.mkdtemp(prefix="draws")
    with Template() as template:
        shapes = sorted({(layout.workers, layout.devices) for layout in LAYOUTS.values()} | {(1, 1)})
        jobs = {shape: Job(template.python, folder, *shape) for shape in shapes}
        jobs["plain"] = Job(template.python, folder, plain=True)
        try:
            for seed in seeds:
                words, draw = drawn(seed)
                kind, why = planned(draw)
                if kind == PLANNED and not options.plan:
                    kind, why = outcome(jobs, draw)
                counts[kind] += 1
                print("%d %s %s %s" % (seed, kind, words, "\n    ".join([""] + why[-3000:].splitlines())), flush=True)
        finally:
            for job in jobs.values():
                job.stop()
            shutil.rmtree(folder, ignore_errors=True)
    print("; ".join("%s: %d" % (kind, counts[kind]) for kind in (PLANNED, RIGHT, WRONG, HANG, REFUSED, ERROR)))
    return 1 if counts[WRONG] + counts[HANG] + counts[ERROR] or counts[REFUSED] > 0.04 * len(seeds) else 0


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.exit(main(sys.argv[1:]))
