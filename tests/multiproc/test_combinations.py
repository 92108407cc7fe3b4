"""Options that promise not to change numbers keep the promise, whatever else is on.

A run with some of them is compared with one device; where an option is on besides that does change numbers, such as 16
bits on the wire, with the run of that option alone.
"""

import collections
import itertools

import pytest

from epl import tf_compat
from tests.helpers.checks import assert_same_training
from tests.helpers.covering import covering
from tests.numerics.test_pipelines import ATOL, PIPELINES

pytestmark = pytest.mark.each_line  # which of them need not is marked below

Layout = collections.namedtuple("Layout", "workers devices stages micro_batches replicas strategy")
LAYOUTS = collections.OrderedDict(
    two_devices=Layout(1, 2, 1, 1, 2, "PreferBackward"),
    two_workers=Layout(2, 1, 1, 1, 2, "PreferBackward"),
    accumulation=Layout(2, 1, 1, 3, 2, "PreferBackward"),
    stages_in_a_worker=Layout(1, 2, 2, 4, 1, "ZeroBubble"),
    stages_in_two_workers=Layout(2, 1, 2, 4, 1, "PreferBackward"),
    two_by_two=Layout(2, 2, 2, 2, 2, "PreferForward"),
)
# They change no number.
EXACT = collections.OrderedDict(
    recomputation={"gradient_checkpoint__type": "auto"},
    state={"zero__level": "v0"},
    gradients={"zero__level": "v1"},
    parameters_once={"zero__level": "v2"},
    parameters={"zero__level": "v3", "zero__segment_mb": 1e-4},
    groups={"optimizer__num_apply_group": 3},
    small_messages={"communication__fuse_size_mb": 1e-4},
    clip_later={"communication__clip_after_allreduce": True},
    variables_on_host={"offload__level": "v0"},
    host={"offload__level": "v1"},
    state_on_host={"offload__level": "state"},
    kept={"gradient_checkpoint__offload": True},
)
# They do.
OTHERS = collections.OrderedDict(
    plain={},
    wire={"communication__fp16": True},
    bfloat16={"amp__level": "O1", "amp__dtype": "bfloat16"},
    float16={"amp__level": "O1", "amp__dtype": "float16", "amp__loss_scale": 128.0},
    lamb={"optimizer__lamb": True},
)
MODELS = ("tied_mlp", "batch_norm_cnn")
LEVELS = ("none", "state", "gradients", "parameters_once", "parameters")  # of ZeRO, of which there is one at a time
PLACES = (None, "variables_on_host", "host", "state_on_host")  # the same of offload
SWITCHES = tuple(name for name in EXACT if name not in LEVELS + PLACES)


def possible(combination):
    """Whether everything in it goes together, on this line."""
    return tf_compat.line() == "tf2" or "bfloat16" not in combination  # TensorFlow 1.15 has no kernels


def combinations():
    """(layout, other, model, level, switches that are on ...), of which each pair that goes together is in one."""
    switches = [PLACES] + [(None, name) for name in SWITCHES]
    everything = [each for each in itertools.product(LAYOUTS, OTHERS, MODELS, LEVELS, *switches) if possible(each)]
    some = covering(everything, 2)
    on_both_lines = covering(some, 1)
    rest = [pytest.param(each, marks=pytest.mark.exhaustive) for each in everything if each not in some]
    return [each if each in on_both_lines else pytest.param(each, marks=pytest.mark.once) for each in some] + rest


def arguments(layout, model, names):
    """Those of the program `train`; names of layouts and what is on anyhow add nothing."""
    config = {}
    for name in names:
        config.update(EXACT.get(name, OTHERS.get(name, {})))
    return layout.devices, model, layout.stages, layout.micro_batches, layout.replicas, layout.strategy, 1, config


@pytest.fixture(scope="module")
def trained(jobs):
    """trained(layout, model, names): what the workers of a layout make of a model with these options."""

    def train(name, model, names):
        layout = LAYOUTS[name]
        *shape, config = arguments(layout, model, names)
        return jobs[layout.workers, layout.devices](PIPELINES + "train", *shape, **config)

    return train


@pytest.fixture(scope="module")
def alone(trained, by_hand):
    """alone(layout, model, other): what an option that changes numbers gives by itself; each is computed once."""
    known = {}

    def ask(name, model, other):
        if other == "plain":
            return by_hand(model, LAYOUTS[name].micro_batches, LAYOUTS[name].replicas)
        if (name, model, other) not in known:
            known[name, model, other] = trained(name, model, [other])[0]
        return known[name, model, other]

    return ask


@pytest.mark.parametrize("combination", combinations(), ids=lambda each: "-".join(filter(None, each)))
def test_promises_are_kept(trained, alone, combination):
    layout, other, model = combination[:3]
    want = alone(layout, model, other)
    for got in trained(layout, model, [name for name in combination[1:] if name]):
        assert_same_training(got, want, atol=ATOL)


def of_split():
    """What is on besides `epl.split`; those that run hold each pair that goes together."""
    found = []
    for level, *names in itertools.product(LEVELS, ("", "recomputation"), ("", "groups"), ("", "clip_later")):
        each = tuple(name for name in names + [level] if name in EXACT)
        clips_later = level in ("gradients", "parameters")
        some = names[:2] == ["recomputation", "groups"] and clips_later == bool(names[2]) and level != "none"
        found.append(pytest.param(each, marks=pytest.mark.once if some else pytest.mark.exhaustive))
    beside = ["recomputation", "state", "kept"], ["kept", "gradients"], ["kept", "parameters_once"], ["parameters"]
    for number, (place, rest) in enumerate(itertools.product(PLACES[1:], beside)):
        some = (place == "host") == bool(number % 2)
        found.append(pytest.param((place, *rest), marks=pytest.mark.once if some else pytest.mark.exhaustive))
    return found


@pytest.mark.parametrize("names", of_split(), ids="-".join)
def test_a_divided_classifier_keeps_promises(jobs, by_hand, names):
    """Each of two workers has a copy of the model, of which its two devices divide the classes."""
    *shape, config = arguments(LAYOUTS["two_workers"]._replace(devices=2), "classifier", names)
    want = by_hand("classifier", 1, 2)
    for got in jobs[2, 2](PIPELINES + "train", *shape, split=2, **config):
        assert_same_training(got, want, atol=ATOL)
