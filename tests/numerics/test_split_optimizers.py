"""Every optimizer, and layers of Keras and slim, train a divided model as one device does."""

import os

import pytest

from tests.numerics.test_split_models import check

PROGRAM = "tests.helpers.programs.split_optimizers:all_of"
only_tf1 = pytest.mark.skipif(os.environ.get("LINE") == "tf2", reason="TensorFlow 2 has no tf.contrib")
TRAIN = (
    "Adadelta",
    "AdagradDA",
    "Ftrl",
    "Nesterov",
    "ProximalAdagrad",
    "ProximalGradientDescent",
    "RMSProp",
    "centered RMSProp",
)
CONTRIB = (
    "AdaMax",
    "AddSign",
    "GGT",
    "LARS",
    "LazyAdam",
    "Nadam",
    "PowerSign",
    "RegAdagrad",
    "VariableClipping",
)


def assert_as_one_device(got, want, names, divided):
    """The same training by each optimizer, with `divided` among the variables that lie in parts."""
    assert set(got) == set(want) == set(names)
    for name in names:
        check(got[name][0], want[name][0])
        assert divided in got[name][1], (name, got[name][1])


def assert_two_devices_train(plain, two_devices, names, divided, **options):
    want = plain(PROGRAM, 1, names, **options)
    assert_as_one_device(two_devices(PROGRAM, 2, names, **options), want, names, divided)


@pytest.mark.parametrize("resource", [False, True])
def test_optimizers_of_tf_train(plain, two_devices, resource):
    assert_two_devices_train(plain, two_devices, TRAIN[resource::2], "model/second/kernel", resource=resource)


@only_tf1
@pytest.mark.parametrize("resource", [False, True])
def test_optimizers_of_tf_contrib(plain, two_devices, resource):
    assert_two_devices_train(plain, two_devices, CONTRIB[resource::2], "model/second/kernel", resource=resource)


def test_averages_of_variables(plain, two_devices):
    """Their first values are the variables' own, which a branch reads."""
    assert_two_devices_train(plain, two_devices, ["Adam"], "model/second/kernel", averaged=True)


def test_layers_of_keras(plain, two_devices):
    assert_two_devices_train(plain, two_devices, ["Adam"], "model/dense_1/kernel", kind="keras")


@only_tf1
def test_layers_of_slim(plain, two_devices):
    assert_two_devices_train(plain, two_devices, ["Adam"], "model/fully_connected/weights", kind="slim")
