"""Every optimizer, and layers of Keras and slim, train a model that two workers or four devices divide."""

import pytest

from tests.numerics.test_split_models import check
from tests.numerics.test_split_optimizers import CONTRIB, PROGRAM, TRAIN, only_tf1

LAYOUTS = [(2, 1), (1, 4)]


def compare(plain, call, devices, names, divided, **options):
    want = plain(PROGRAM, 1, names, **options)
    found = call(PROGRAM, devices, names, **options)
    for got in found:
        for name in names:
            check(got[name][0], want[name][0])
            assert divided in got[name][1], (name, got[name][1])


@pytest.mark.once
@pytest.mark.parametrize("layout", LAYOUTS)
def test_some_optimizers(plain, jobs, layout):
    compare(plain, jobs[layout], layout[0] * layout[1], ["Ftrl", "RMSProp"], "model/second/kernel")


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize(
    "names", [pytest.param(TRAIN, id="tf.train"), pytest.param(CONTRIB, id="tf.contrib", marks=only_tf1)]
)
def test_all_optimizers(plain, jobs, layout, resource, names):
    compare(plain, jobs[layout], layout[0] * layout[1], names, "model/second/kernel", resource=resource)


@only_tf1
@pytest.mark.parametrize("layout", [(2, 1), pytest.param((1, 4), marks=pytest.mark.exhaustive)])
def test_averages_that_an_optimizer_keeps(plain, jobs, layout):
    compare(
        plain, jobs[layout], layout[0] * layout[1], ["MovingAverage"], "model/second/kernel/ExponentialMovingAverage"
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_and_averages(plain, jobs, layout):
    devices = layout[0] * layout[1]
    compare(plain, jobs[layout], devices, ["Adam"], "model/dense_1/kernel", kind="keras")
    compare(plain, jobs[layout], devices, ["Adam"], "model/second/kernel", averaged=True)


@only_tf1
@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_of_slim(plain, jobs, layout):
    compare(plain, jobs[layout], layout[0] * layout[1], ["Adam"], "model/fully_connected/weights", kind="slim")
