"""Gradients in fewer bits between workers (communication.wire_dtype, .fp16): the numbers of a simulation in NumPy."""

import numpy as np
import pytest

from tests.helpers.checks import assert_same_training, pairs
from tests.helpers.programs import wire
from tests.helpers.references import Half, Wire

TRAIN = "tests.helpers.programs.wire:train"
STEPS = 20
HALF = "fp16"  # communication.fp16, beside the values of communication.wire_dtype
FACTOR = 8


def config_of(form):
    if form == HALF:
        return {"communication.fp16": True, "communication.fp16_scale": FACTOR}
    return {"communication.wire_dtype": form}


def sum_of(form, shape, workers, is_owned=False):
    return Half(FACTOR) if form == HALF else Wire(form, np.zeros(shape, np.float32), workers, is_owned)


class Parts(object):
    """The sum of a gradient whose parts travel by themselves, each device's of its own (epl.split): along the first
    dimension, of which the first parts have one more where it does not divide."""

    def __init__(self, form, shape, workers, count, is_owned):
        self._count = count
        self._sums = [sum_of(form, part.shape, workers, is_owned) for part in self._cut(np.zeros(shape))]

    def _cut(self, tensor):
        return np.array_split(tensor, self._count)

    def sum(self, gradients, scale):
        cut = [[self._cut(one) for one in own] for own in gradients]
        sums = [each.sum([[one[n] for one in own] for own in cut], scale) for n, each in enumerate(self._sums)]
        return np.concatenate(sums)


def simulated(form, workers, replicas=1, steps=STEPS, resumed=None, parts=1, is_owned=False):
    """What each worker computes: {"losses", "states"}.

    Args:
      resumed: the step at which it goes on from a checkpoint, with nothing left over.
      parts: of each gradient, that travel by themselves.
      is_owned: one worker alone gets each gradient.
    """
    zeros = {name: np.zeros(shape, np.float32) for name, shape in wire.SHAPES.items()}
    variables, slots = dict(zeros), dict(zeros)
    found = [{"losses": [], "states": []} for _ in range(workers)]
    for number in range(steps):
        if number in (0, resumed):
            sums = {name: Parts(form, shape, workers, parts, is_owned) for name, shape in wire.SHAPES.items()}
        batch = wire.batch(number, workers)
        for rank, own in enumerate(found):
            mine = {name: rows[wire.ROWS * rank : wire.ROWS * (rank + 1)] for name, rows in batch.items()}
            squares = [np.sum(np.square(variables[name] - rows.astype(np.float64))) for name, rows in mine.items()]
            own["losses"].append(np.float32(sum(squares) / 2 / wire.ROWS))
        for name, rows in batch.items():
            of_rows = (variables[name] - rows) / np.float32(wire.ROWS / replicas)
            gradients = [list(part) for part in np.split(of_rows, workers)]
            if replicas == 1:  # one device adds up its rows by itself
                gradients = [[one + other] for one, other in gradients]
            mean = sums[name].sum(gradients, np.float32(1.0 / workers / replicas))
            slots[name] = np.float32(wire.MOMENTUM) * slots[name] + mean
            variables[name] = variables[name] - np.float32(wire.RATE) * slots[name]
        state = dict(variables, **{name + "/Momentum": value for name, value in slots.items()})
        for own in found:
            own["states"].append(state)
    return found


@pytest.mark.parametrize("form, scope", [("int8", "stages"), ("float16", "rows")])
def test_stages_and_devices_that_share_a_batch(two_by_two, form, scope):
    """In each worker a pipeline, or two devices that have a row each."""
    results = two_by_two(TRAIN, config_of(form), STEPS, True, scope)
    for got, want in pairs(results, simulated(form, 2, 1 if scope == "stages" else 2)):
        if scope == "rows":
            got["losses"] = want["losses"]  # those of a worker's first device are not those of its whole batch
        assert_same_training(got, want)


@pytest.mark.parametrize(
    "job, form, scope, apart, config",
    [
        ((4, 1), "int8", "stages", 2, {}),
        ((4, 1), "float16", "stages", 2, {"pipeline.num_micro_batch": 2}),
        ((2, 2), "float16", "split", 1, {}),
        ((4, 1), "float16", "split", 2, {}),
        ((2, 2), "int8", "split", 1, {}),
    ],
)
def test_copies_in_several_workers_and_parts_of_tensors(jobs, job, form, scope, apart, config):
    results = jobs[job](TRAIN, dict(config_of(form), **config), STEPS, True, scope, apart)
    parts = 2 if scope == "split" else 1
    for rank, got in enumerate(results):
        want = simulated(form, 2, parts=parts)[rank // apart]
        if config:
            got["losses"] = want["losses"]  # those of the last micro-batch
        assert_same_training(got, want)


@pytest.mark.parametrize("form, resource", [("float16", False), ("bfloat16", False), ("int8", True), (HALF, True)])
def test_two_workers(two_workers, form, resource):
    results = two_workers(TRAIN, config_of(form), STEPS, resource)
    for got, want in pairs(results, simulated(form, 2)):
        assert_same_training(got, want)


@pytest.mark.parametrize("form", ["float16", "bfloat16", "int8", HALF])
def test_four_workers(jobs, form):
    results = jobs[4, 1](TRAIN, config_of(form), STEPS)
    for got, want in pairs(results, simulated(form, 4)):
        assert_same_training(got, want)


def test_devices_of_a_worker_add_up_what_they_send(two_by_two):
    want = simulated("int8", 2, replicas=2)
    for rank, got in enumerate(two_by_two(TRAIN, {"communication.wire_dtype": "int8"}, STEPS, True)):
        got["losses"] = want[rank]["losses"]  # those of a worker's first device are not those of its whole batch
        assert_same_training(got, want[rank])


@pytest.mark.parametrize(
    "config",
    [
        {"pipeline.num_micro_batch": 2, "optimizer.num_apply_group": 2},
        {"zero.level": "v0", "communication.clip_after_allreduce": True},
    ],
)
def test_what_else_divides_the_work_changes_no_numbers(two_workers, config):
    results = two_workers(TRAIN, dict({"communication.wire_dtype": "int8"}, **config), STEPS)
    for got, want in pairs(results, simulated("int8", 2)):
        # A loss that is fetched is that of a micro-batch.
        assert_same_training(trained(got), trained(want))


def trained(history):
    """A history with what is trained alone: of slots a worker has those of its part."""
    states = [{name: state[name] for name in wire.SHAPES} for state in history["states"]]
    return {"states": states, "losses": []}


@pytest.mark.parametrize(
    "job, form, level, config",
    [
        ((2, 1), "int8", "v1", {}),
        ((2, 1), "bfloat16", "v2", {"pipeline.num_micro_batch": 2, "optimizer.num_apply_group": 2}),
        ((2, 1), "float16", "v3", {"communication.clip_after_allreduce": True}),
        ((4, 1), "int8", "v1", {"communication.max_splits": 1}),
        ((2, 2), "int8", "v2", {}),
    ],
)
def test_owners_add_up_their_own(jobs, job, form, level, config):
    """With more workers than gradients some get none, and others' shares differ in length."""
    config = dict({"communication.wire_dtype": form, "zero.level": level}, **config)
    wanted = simulated(form, job[0], replicas=job[1], is_owned=True)
    for got, want in pairs(jobs[job](TRAIN, config, STEPS, True), wanted):
        assert_same_training(trained(got), trained(want))


@pytest.mark.parametrize(
    "job, scope, apart, config",
    [
        ((4, 1), "stages", 2, {}),
        ((4, 1), "split", 2, {}),
        ((2, 2), "split", 1, {}),
    ],
)
def test_owners_of_stages_and_of_parts_of_tensors(jobs, job, scope, apart, config):
    config = dict({"communication.wire_dtype": "int8", "zero.level": "v1"}, **config)
    wanted = simulated("int8", 2, parts=2 if scope == "split" else 1, is_owned=True)
    for rank, got in enumerate(jobs[job](TRAIN, config, STEPS, True, scope, apart)):
        assert_same_training(trained(got), trained(wanted[rank // apart]))


def test_owners_in_groups_of_workers_get_sums_as_without(jobs):
    config = {"communication.wire_dtype": "int8", "zero.level": "v2", "zero.degree": 2}
    for got, want in pairs(jobs[4, 1](TRAIN, config, STEPS, True), simulated("int8", 4)):
        assert_same_training(trained(got), trained(want))


@pytest.mark.parametrize(
    "form, level", [("float16", ""), ("bfloat16", ""), ("int8", ""), (HALF, ""), ("int8", "v1"), ("float16", "v3")]
)
def test_a_monitored_session_goes_on_with_nothing_left_over(two_workers, tmp_path, form, level):
    program, config = "tests.helpers.programs.wire:monitored", dict(config_of(form), **{"zero.level": level})
    first, second = (two_workers(program, config, str(tmp_path), until) for until in (10, STEPS))
    for one, other, want in pairs(first, second, simulated(form, 2, resumed=10, is_owned=bool(level))):
        assert_same_training({key: one[key] + other[key] for key in want}, want)


def test_stages_that_divide_tensors(jobs):
    """What is rounded is sent later: near to what float32 comes to."""
    job, args = jobs[2, 4], ("tests.helpers.programs.split:stages", 2, "momentum", ("split", "split"), False)
    wanted = job(*args)
    for got, want in pairs(job(*args, communication__wire_dtype="float16"), wanted):
        for step, wanted_step in pairs(got, want):
            for one, other in pairs(step, wanted_step):
                np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3)
