"""Config: keys that depend on each other."""

import pytest

from epl.config import Config
from epl.errors import ConfigError

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    "values, message",
    [
        ({"io.slicing": True, "io.unbalanced_io_slicing": True, "io.drop_last_files": True}, "contradict each other"),
        ({"io.drop_last_files": True}, "io.drop_last_files=True has no effect while io.slicing=False"),
        ({"io.unbalanced_io_slicing": True}, "has no effect while io.slicing=False"),
        ({"optimizer.lars": True, "optimizer.lamb_weight_decay": 0.1}, "has no effect while optimizer.lamb=False"),
        ({"local_sgd.begin_step": 3}, "local_sgd.begin_step=3 has no effect without local_sgd.k_steps"),
        ({"local_sgd.overlap": True}, "local_sgd.overlap=True has no effect without local_sgd.k_steps"),
        (
            {"local_sgd.k_steps": 2, "local_sgd.overlap": True},
            "local_sgd.overlap=True cannot be used with local_sgd.average_slots=True",
        ),
        (
            {
                "local_sgd.k_steps": 2,
                "local_sgd.overlap": True,
                "local_sgd.average_slots": False,
                "local_sgd.adaptive": True,
            },
            "local_sgd.overlap=True cannot be used with local_sgd.adaptive=True",
        ),
        ({"local_sgd.k_steps": 2, "communication.fp16": True}, "cannot be used with local_sgd.k_steps=2"),
        ({"local_sgd.k_steps": 2, "communication.fp16": True}, "cannot be used with local_sgd.k_steps=2"),
        ({"communication.wire_dtype": "int8", "communication.fp16": True}, "two forms for the same gradients"),
        ({"communication.fp16_scale": 64}, "has no effect while communication.fp16=False"),
        ({"dgc.clip_norm": 1.0}, "dgc.clip_norm=1.0 has no effect without dgc.sparsity"),
        ({"dgc.sparsity": [0.9], "zero.level": "v1"}, r"zero.level='v1' cannot be used with dgc.sparsity=\[0.9\]"),
        ({"dgc.sparsity": [0.9], "local_sgd.k_steps": 2}, "local_sgd.k_steps=2 cannot be used with dgc.sparsity="),
        ({"dgc.sparsity": [0.9], "amp.level": "O1", "amp.dtype": "float16"}, 'cannot be used with amp.dtype="float16"'),
        (
            {"communication.wire_dtype": "int8", "amp.level": "O1", "amp.loss_scale": 8},
            'cannot be used with amp.dtype="float16"',
        ),
        ({"amp.debug_log": True}, "has no effect while amp.level=''"),
        ({"amp.custom_black_list": "Mul"}, "has no effect while amp.level=''"),
        (
            {"amp.level": "O1", "amp.custom_white_list": "Mul", "amp.custom_black_list": "Add, Mul"},
            "both name 'Mul'",
        ),
        ({"optimizer.lars_coeff": 0.1}, "has no effect while optimizer.lars=False"),
        ({"optimizer.epsilon": 0.1}, "has no effect without optimizer.lamb=True or optimizer.lars=True"),
        ({"optimizer.lamb": True, "optimizer.exclude_from_weight_decay": "a, (b"}, r"'\(b', which is no regular"),
        ({"pipeline.num_stages": 2}, "has no effect while auto.auto_parallel=False"),
        ({"gradient_checkpoint.type": "collection", "gradient_checkpoint.end_taskgraph": 1}, "has no effect while"),
        ({"gradient_checkpoint.memory_limit_mb": 10}, "has no effect while gradient_checkpoint.type=''"),
        ({"cluster.run_visible_devices": "1,0,1"}, "names a device twice"),
    ],
)
def test_impossible_pairs(values, message):
    with pytest.raises(ConfigError, match=message):
        Config(values, {})
    config = Config({}, {})
    for name, value in values.items():
        category, attribute = name.split(".")
        setattr(getattr(config, category), attribute, value)
    with pytest.raises(ConfigError, match=message):
        config.validate()


def test_possible_pairs():
    assert Config({"io.slicing": True, "io.drop_last_files": True}, {}).io.drop_last_files
    assert Config({"auto.auto_parallel": True, "pipeline.num_stages": 2}, {}).pipeline.num_stages == 2
    Config(
        {
            "gradient_checkpoint.type": "auto",
            "gradient_checkpoint.end_taskgraph": 1,
            "gradient_checkpoint.check_gradients": True,
        },
        {},
    )


def test_loss_scale_kinds():
    for value in (128, 0.5, "dynamic"):
        float16 = {"amp.level": "O1", "amp.dtype": "float16"}
        assert Config(dict(float16, **{"amp.loss_scale": value}), {}).amp.loss_scale == value
        assert Config(float16, {"EPL_AMP_LOSS_SCALE": str(value)}).amp.loss_scale == value


@pytest.mark.parametrize(
    "values, name, text",
    [
        ({"amp.level": "O1", "amp.custom_white_list": ["Softmax"]}, "amp.custom_white_list", "Softmax"),
        ({"amp.level": "O1", "amp.custom_black_list": ("Mul", "BiasAdd")}, "amp.custom_black_list", "Mul,BiasAdd"),
        ({"optimizer.exclude_from_weight_decay": []}, "optimizer.exclude_from_weight_decay", ""),
        (
            {"optimizer.lamb": True, "optimizer.exclude_from_weight_decay": ["LayerNorm", "bias"]},
            "optimizer.exclude_from_weight_decay",
            "LayerNorm,bias",
        ),
    ],
)
def test_lists_of_words_may_be_lists(values, name, text):
    assert Config(values, {}).to_dict()[name] == text
