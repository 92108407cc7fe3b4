"""Every optimizer, and layers of Keras and slim, train a model that two workers or four devices divide."""

import pytest

from tests.numerics.test_split_optimizers import CONTRIB, PROGRAM, TRAIN, assert_as_one_device, only_tf1

LAYOUTS = [(2, 1), (1, 4)]


def assert_workers_train(plain, jobs, layout, names, divided, **options):
    want = plain(PROGRAM, 1, names, **options)
    found = jobs[layout](PROGRAM, layout[0] * layout[1], names, **options)
    assert len(found) == layout[0]
    for got in found:
        assert_as_one_device(got, want, names, divided)


@pytest.mark.once
@pytest.mark.parametrize("layout", LAYOUTS)
def test_some_optimizers(plain, jobs, layout):
    assert_workers_train(plain, jobs, layout, ["Ftrl", "RMSProp"], "model/second/kernel")


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize(
    "names", [pytest.param(TRAIN, id="tf.train"), pytest.param(CONTRIB, id="tf.contrib", marks=only_tf1)]
)
def test_all_optimizers(plain, jobs, layout, resource, names):
    assert_workers_train(plain, jobs, layout, names, "model/second/kernel", resource=resource)


@only_tf1
@pytest.mark.parametrize("layout", [(2, 1), pytest.param((1, 4), marks=pytest.mark.exhaustive)])
def test_averages_that_an_optimizer_keeps(plain, jobs, layout):
    divided = "model/second/kernel/ExponentialMovingAverage"
    assert_workers_train(plain, jobs, layout, ["MovingAverage"], divided)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_and_averages(plain, jobs, layout):
    assert_workers_train(plain, jobs, layout, ["Adam"], "model/dense_1/kernel", kind="keras")
    assert_workers_train(plain, jobs, layout, ["Adam"], "model/second/kernel", averaged=True)


@only_tf1
@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_of_slim(plain, jobs, layout):
    assert_workers_train(plain, jobs, layout, ["Adam"], "model/fully_connected/weights", kind="slim")
