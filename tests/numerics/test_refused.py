"""What programs ask of TensorFlow that EPL does in another way: refused at once and by name, or right."""

import collections

import numpy as np
import pytest

from epl import tf_compat
from epl.capture import refusals
from epl.errors import UnsupportedError
from tests.helpers.checks import assert_same, assert_same_state, assert_same_training, pairs

REFUSED = "tests.helpers.programs.refused:"
contrib = pytest.mark.skipif(tf_compat.line() == "tf2", reason="TF 2.15 has no tf.contrib")


def refused(call, program, *args, **kwargs):
    """What the refusal says."""
    kind, message = call(REFUSED + "refusal", program, *args, **kwargs)
    assert kind in ("UnsupportedError", "CaptureError")
    return message


@pytest.mark.parametrize(
    "name",
    [
        "MirroredStrategy",
        "OneDeviceStrategy",
        "CentralStorageStrategy",
        "MultiWorkerMirroredStrategy",
        pytest.param("contrib", marks=contrib),
    ],
)
def test_strategies(two_devices, name):
    message = refused(two_devices, "distributes", name)
    assert "cannot be used with EPL" in message and "epl.replicate" in message
    assert "tf.distribute's" in message and "Strategy" in message


def test_strategy_from_before_the_start(two_devices):
    assert "without strategy.scope()" in refused(two_devices, "scope_of_an_older_strategy")
    assert "RunConfig(train_distribute=...)" in refused(two_devices, "run_config_replaced")


def test_server(two_devices):
    message = refused(two_devices, "server")
    assert "tf.train.Server" in message and "epl-launch" in message


@pytest.mark.parametrize("monitored", [False, True])
def test_target(two_devices, monitored):
    message = refused(two_devices, "target", monitored)
    assert "grpc://127.0.0.1:2222" in message and "without a target" in message


@pytest.mark.parametrize(
    "name",
    ["SyncReplicasOptimizer", "CrossShardOptimizer", "Horovod"]
    + [
        pytest.param(name, marks=contrib)
        for name in (
            "DropStaleGradientOptimizer",
            "ElasticAverageOptimizer",
            "ModelAverageOptimizer",
            "AGNOptimizer",
        )
    ],
)
def test_optimizers(two_devices, name):
    message = refused(two_devices, "optimizer", name).lower()
    assert name.lower() in message and "use the optimizer inside of it" in message


@pytest.mark.parametrize(
    "name, advice",
    [
        ("accumulator", "pipeline.num_micro_batch"),
        ("collective", "epl.ops"),
        ("nccl", "epl.ops"),
        ("tpu_system", "without the functions of tf.tpu"),
        ("tpu_rewrite", "without the functions of tf.tpu"),
    ],
)
def test_operations(two_devices, name, advice):
    assert advice in refused(two_devices, "operation", name)


@pytest.mark.parametrize("op", ["HorovodAllreduce", "HorovodBroadcast", "HorovodAllgather"])
def test_operations_of_horovod(op):
    with pytest.raises(UnsupportedError, match="Remove the calls of Horovod"):
        refusals.check_operation(collections.namedtuple("Operation", "type name")(op, "some/name"))


def test_tpu_estimator(two_devices):
    assert "Pass use_tpu=False" in refused(two_devices, "tpu_estimator")
    assert "Pass use_tpu=False" in refused(two_devices, "tpu_estimator", use_tpu=True)
    two_devices(REFUSED + "tpu_estimator", use_tpu=False)


def test_eager_mode_after_the_start(two_devices):
    assert "tf.enable_eager_execution()" in refused(two_devices, "eager_after_init")


def test_partial_run(two_devices):
    assert "use session.run with all feeds and fetches" in refused(two_devices, "partial_run")


def test_metadata_of_a_callable(two_devices):
    assert "use session.run" in refused(two_devices, "metadata_of_a_callable")


def test_supervisor_that_waits_for_another(two_devices):
    assert "Pass is_chief=True on all workers" in refused(two_devices, "supervisor_of_another")


# ---------------------------------------------------------------------------------------------------------------------
# What serves.


@pytest.mark.parametrize("layout", [(1, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("program", ["own_class_of_that_name", "parameter_server_devices", "towers", "by_hand"])
def test_programs_that_serve(jobs, plain, layout, program):
    want = plain(REFUSED + program)
    for got in jobs[layout](REFUSED + program):
        assert_same_training(got, want)


@pytest.mark.parametrize("layout", [(1, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("kind", ["dynamic", "fixed", "outside", pytest.param("contrib", marks=contrib)])
def test_scaled_losses(jobs, plain, layout, kind):
    """A step is left out everywhere when the gradients of one copy of the model are not finite."""
    want = plain(REFUSED + "loss_scale", kind)
    for got in jobs[layout](REFUSED + "loss_scale", kind):
        np.testing.assert_allclose(got["losses"], want["losses"], rtol=1e-5)  # one of them is no number
        for one, other in pairs(got["states"], want["states"]):
            assert_same_state(one, other)


@pytest.mark.parametrize("layout, kind", [((1, 2), "fixed"), ((2, 1), "dynamic")], ids=str)
def test_scaled_losses_of_float16(jobs, plain, layout, kind):
    """With `amp.loss_scale=1` it is the program that scales, and that leaves steps out."""
    want = plain(REFUSED + "loss_scale", kind)
    config = {"amp.level": "O1", "amp.dtype": "float16", "amp.loss_scale": 1}
    for got in jobs[layout](REFUSED + "loss_scale", kind, config):
        np.testing.assert_allclose(got["losses"], want["losses"], rtol=0.02)
        assert not np.array_equal(got["losses"], want["losses"])
        for before, after, wanted in pairs(got["states"][:-1], got["states"][1:], want["states"][1:]):
            assert_same_state(after, wanted, rtol=0.02, atol=0.005)
            same = [
                np.array_equal(before[n], after[n]) for n in after if "loss_scale" not in n and "good_steps" not in n
            ]
            assert len(same) > 3 and all(same) == np.array_equal(wanted["global_step"], before["global_step"])


def test_tape(two_devices, plain):
    assert_same_state(two_devices(REFUSED + "tape"), plain(REFUSED + "tape"))


def test_python_functions_run_for_each_copy(two_devices, plain):
    want, whole = plain(REFUSED + "counting_py_func")
    got, parts = two_devices(REFUSED + "counting_py_func")
    assert_same(got, want)
    assert whole == [8] and parts == [4, 4]
