"""Which 16 bits amp.dtype="auto" chooses, and what the plan says of it."""

import pytest
import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture.record import make_program
from epl.config import Config
from epl.errors import UnsupportedError
from epl.plan.precision.sixteen_bits import choose_sixteen_bits
from epl.plan.report.plan_table import plan_table
from tests.helpers.planning import capture, compiled

BFLOAT16, FLOAT16 = 14, 19
HAS_BFLOAT16 = tf_compat.has_kernel_of_type("Conv2D", "CPU", "T", BFLOAT16)


def conv_net(optimizer=True):
    x = tf.layers.conv2d(tf.placeholder(tf.float32, [None, 6, 6, 3], "x"), 4, 3)
    loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.layers.flatten(x), 2)))
    if optimizer:
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    else:
        kernel = tf.trainable_variables()[0]
        tf.assign_sub(kernel, 0.1 * tf.gradients(loss, [kernel])[0])


def chosen(device_type, missing=(), optimizer=True, **config):
    """The SixteenBits of a model of convolutions where TensorFlow lacks (operation type, DataType number) kernels."""
    with capture() as graph:
        conv_net(optimizer)
    values = Config(dict({"amp.level": "O1"}, **{key.replace("__", "."): value for key, value in config.items()}))

    def has_kernel(op, _, __, dtype):
        return (op, dtype) not in missing

    return choose_sixteen_bits(make_program(graph), values, device_type, tf_compat.op_def, has_kernel)[0]


NO_CONV = (("Conv2D", BFLOAT16),)


@pytest.mark.parametrize(
    "device_type, missing, config, text",
    [
        ("CPU", (), {}, "bfloat16, as the device has its kernels"),
        ("CPU", NO_CONV, {}, "float16, as TensorFlow has no bfloat16 kernel of Conv2D for the CPU"),
        ("CPU", (), {"amp__loss_scale": 128}, "float16, as a key about the loss scale is set"),
        ("CPU", (), {"amp__loss_scale": 1}, "float16, as a key about the loss scale is set"),
        ("CPU", (), {"amp__incr_ratio": 4.0}, "float16, as a key about the loss scale is set"),
        ("CPU", (), {"amp__loss_scale": 128, "amp__dtype": "float16"}, "float16"),
        ("GPU", (), {}, "float16, as the device is a GPU"),
        ("GPU", NO_CONV, {}, "float16, as the device is a GPU"),
        ("GPU", (), {"amp__dtype": "bfloat16"}, "bfloat16"),
        ("GPU", (("MatMul", FLOAT16),), {}, "bfloat16, as TensorFlow has no float16 kernel of MatMul for the GPU"),
        (
            "GPU",
            (),
            {"communication__wire_dtype": "int8"},
            "bfloat16, as float16's loss scale does not go together with communication.wire_dtype",
        ),
        (
            "GPU",
            (),
            {"optimizer": False},
            "bfloat16, as float16 needs a loss scale, which does not fit this program",
        ),
    ],
)
def test_what_is_chosen_and_why(device_type, missing, config, text):
    assert str(chosen(device_type, missing, **config)) == text


@pytest.mark.parametrize(
    "missing, config, texts",
    [
        (
            NO_CONV + (("MatMul", FLOAT16),),
            {},
            ["has no bfloat16 kernel of Conv2D for the device type CPU", "has no float16 kernel of MatMul for the"],
        ),
        (
            NO_CONV,
            {"communication__wire_dtype": "int8"},
            ["float16: its loss scale does not go together with communication.wire_dtype", "at 'float32'"],
        ),
        (NO_CONV, {"optimizer": False}, ["but the program assigns what it makes of gradients to variables itself"]),
    ],
)
def test_where_neither_serves_both_reasons_are_given(missing, config, texts):
    with pytest.raises(UnsupportedError, match='amp.dtype="auto" finds no 16 bits for this program') as error:
        chosen("CPU", missing, **config)
    assert all(text in str(error.value) for text in texts)


@pytest.mark.parametrize("scale", ["dynamic", 128])
def test_documented_configurations_train_and_the_plan_says_in_what(scale):
    with capture() as graph:
        conv_net()
    plan = compiled(graph, devices=1, amp__level="O1", amp__loss_scale=scale).plan
    wanted = "float16" if scale == 128 or not HAS_BFLOAT16 else "bfloat16"
    keys = [strategy.key for strategy in plan.strategies]
    assert keys == ["amp.level=O1"] + (["amp.loss_scale=%s" % scale] if wanted == "float16" else [])
    assert plan.strategies[0].effect.startswith("products in %s, as " % wanted)
    assert "products in %s, as" % wanted in plan_table(plan)
