"""Config: values from dicts, variables and files, and the errors for everything else."""

import copy
import os
import pickle
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epl.config import Config, as_variables, read_yaml
from epl.config import config as config_module
from epl.config.key import INTEGERS, NUMBERS
from epl.config.keys import BOOL, CATEGORIES, INTEGER, KEYS, NUMBER, keys
from epl.errors import ConfigError, EplError

pytestmark = pytest.mark.once

# They contradict some values of other keys, see test_impossible_pairs.
DEPENDENT = tuple(key.name for key in KEYS if key.category == "amp" and key.name != "amp.level") + (
    "communication.fp16_scale",
    "io.unbalanced_io_slicing",
    "io.drop_last_files",
    "io.equal_steps",
    "checkpoint.data_position",
    "pipeline.num_stages",
    "gradient_checkpoint.end_taskgraph",
    "gradient_checkpoint.memory_limit_mb",
    "optimizer.lamb_weight_decay",
    "optimizer.lars_weight_decay",
    "optimizer.lars_coeff",
    "optimizer.epsilon",
    "optimizer.exclude_from_weight_decay",
    "local_sgd.k_steps",
    "local_sgd.begin_step",
    "local_sgd.average_slots",
    "local_sgd.adaptive",
    "local_sgd.init_k_steps",
    "local_sgd.overlap",
    "communication.fp16",
    "communication.wire_dtype",
    "dgc.sparsity",
    "dgc.rampup_begin_step",
    "dgc.rampup_step",
    "dgc.min_elements",
    "dgc.clip_norm",
    "dgc.save_residuals",
    "gradient_checkpoint.check_gradients",
    "zero.degree",
    "zero.segment_mb",
    "zero.segment_anchors",
)


def legal_values(key):
    """Values that `key` accepts."""
    if key.choices:
        return st.sampled_from(key.choices)
    if key.type == BOOL:
        return st.booleans()
    if key.type == INTEGER:
        return st.integers(key.minimum, 10**6)
    if key.type == NUMBER:
        return st.floats(1e-3, 1e9, allow_nan=False) | st.integers(1, 10**6)
    if key.type == INTEGERS:
        return st.lists(st.integers(key.minimum, 100), max_size=4).map(tuple)
    return st.lists(st.integers(0, 31), unique=True, max_size=4).map(lambda items: ",".join(map(str, items)))


def settings_of(some_keys):
    free = [key for key in some_keys if key.name not in DEPENDENT]
    return st.fixed_dictionaries({}, optional={key.name: legal_values(key) for key in free})


# --- the table ---


def test_documented_keys_have_their_documented_defaults():
    assert Config(environ={}).to_dict() == {
        "checkpoint.verify": True,
        "checkpoint.data_position": "",
        "checkpoint.async": False,
        "checkpoint.keep": 0,
        "checkpoint.every_s": 0.0,
        "pipeline.num_micro_batch": 1,
        "pipeline.num_stages": None,
        "pipeline.strategy": "PreferBackward",
        "gradient_checkpoint.type": "",
        "gradient_checkpoint.end_taskgraph": -1,
        "gradient_checkpoint.memory_limit_mb": 0.0,
        "gradient_checkpoint.check_gradients": False,
        "gradient_checkpoint.offload": False,
        "zero.level": "",
        "zero.degree": 0,
        "zero.segment_mb": 32.0,
        "zero.segment_anchors": "",
        "offload.level": "",
        "amp.level": "",
        "amp.debug_log": False,
        "amp.loss_scale": "dynamic",
        "amp.init_loss_scale": 32768.0,
        "amp.incr_every_n_steps": 2000,
        "amp.decr_every_n_nan_or_inf": 1,
        "amp.incr_ratio": 2.0,
        "amp.decr_ratio": 0.5,
        "amp.dtype": "auto",
        "amp.custom_white_list": "",
        "amp.custom_black_list": "",
        "optimizer.num_apply_group": 1,
        "io.stats": False,
        "io.equal_steps": "",
        "io.autotune": False,
        "io.prefetch_to_device": False,
        "execution.xla": False,
        "execution.num_threads": 0,
        "execution.inter_op_threads": 0,
        "execution.steps_per_run": 1,
        "optimizer.lamb": False,
        "optimizer.lars": False,
        "optimizer.lamb_weight_decay": 0.01,
        "optimizer.lars_weight_decay": 0.0001,
        "optimizer.lars_coeff": 0.001,
        "optimizer.epsilon": None,
        "optimizer.exclude_from_weight_decay": "",
        "local_sgd.k_steps": 0,
        "local_sgd.begin_step": 0,
        "local_sgd.average_slots": True,
        "local_sgd.adaptive": False,
        "local_sgd.init_k_steps": None,
        "local_sgd.overlap": False,
        "dgc.sparsity": (),
        "dgc.rampup_begin_step": 0,
        "dgc.rampup_step": 1,
        "dgc.min_elements": 16384,
        "dgc.clip_norm": 0.0,
        "dgc.save_residuals": False,
        "cluster.device_place_prefer_intra_node": True,
        "cluster.run_visible_devices": "",
        "cluster.machine": "",
        "cluster.colocate_split_and_replicate": False,
        "cluster.device_weights": (),
        "communication.num_communicators": 2,
        "communication.sparse_as_dense": False,
        "communication.max_splits": 5,
        "communication.fuse_size_mb": 0.0,
        "communication.fp16": False,
        "communication.fp16_scale": 128,
        "communication.wire_dtype": "float32",
        "execution.fetch_every": 1,
        "communication.clip_after_allreduce": False,
        "communication.gradients_reduce_method": "auto",
        "communication.check_replicas_every": 0,
        "communication.sync_batch_norm": False,
        "communication.timeout_s": 600.0,
        "communication.start_timeout_s": 600.0,
        "pipeline.num_chunks": 1,
        "communication.stall_warning_s": 60.0,
        "communication.stopped_s": 60.0,
        "communication.backend": "auto",
        "communication.nccl_library": "",
        "communication.cuda_library": "",
        "communication.hierarchical": "auto",
        "estimator.evaluate_on": "all",
        "io.slicing": False,
        "io.unbalanced_io_slicing": False,
        "io.drop_last_files": False,
        "io.shard_dataset": False,
        "graph.harmless_ops": "",
        "auto.auto_parallel": False,
        "auto.search": False,
        "auto.memory_limit_mb": 0.0,
        "auto.batch": 0,
        "auto.amp": False,
    }


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_the_default_passes_its_own_check(key):
    assert key.check(key.default) == key.default
    assert key.doc.endswith(".")
    assert Config({key.name: key.default}, {}) == Config(environ={})


# --- properties ---


@settings(max_examples=30)
@given(values=settings_of(KEYS))
def test_file_round_trip(values, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("yaml") / "strategy.yaml")
    config = Config(values, {})
    config.to_yaml(path)
    # Other variables must not leak into a saved strategy: the file holds all keys.
    assert Config(environ=as_variables(read_yaml(path))) == config
    assert Config.from_yaml(path, {"EPL_COMMUNICATION_MAX_SPLITS": "77"}) == config
    assert os.listdir(os.path.dirname(path)) == ["strategy.yaml"]


@given(values=settings_of(KEYS))
def test_copies_are_equal_and_independent(values):
    config = Config(values, {})
    for twin in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config)), eval(repr(config))):
        assert twin == config
        twin.communication.max_splits = config.communication.max_splits + 1
        assert twin != config


@given(given_dict=settings_of(KEYS), variables=settings_of(KEYS))
def test_dict_wins_over_environment_wins_over_default(given_dict, variables):
    config = Config(given_dict, as_variables(variables))
    for name, value in config.to_dict().items():
        if name in given_dict:
            assert value == given_dict[name]
        elif name in variables:
            assert value == pytest.approx(variables[name]) if isinstance(value, float) else value == variables[name]
        else:
            assert value == keys()[name].default


@given(data=st.data())
def test_one_slip_of_the_pen_still_finds_the_key(data):
    key = data.draw(st.sampled_from(KEYS)).name
    place = data.draw(st.integers(0, len(key) - 1))
    slip = key[:place] + data.draw(st.sampled_from(["", "x", "_"])) + key[place + 1 :]
    assume(slip not in keys())
    with pytest.raises(ConfigError) as error:
        Config({slip: 1}, {})
    assert '"%s"' % key in str(error.value)


@given(
    key=st.sampled_from(KEYS),
    value=st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.lists(st.integers(), max_size=2),
        st.just(object()),
    ),
)
def test_any_value_is_taken_or_refused_with_the_name_of_the_key(key, value):
    try:
        taken = Config({key.name: value}, {}).to_dict()[key.name]
    except EplError as error:
        assert key.name in str(error)
        assert repr(key.default) in str(error)
    else:
        assert isinstance(taken, bool) == (key.type == BOOL)
        given = tuple(value) if key.type in (NUMBERS, INTEGERS) else value
        given = ",".join(value) if key.many and isinstance(value, list) else given
        assert taken == given or str(taken).lower() == str(given).lower()


# --- wrong keys and values ---


@pytest.mark.parametrize(
    "name, hint",
    [
        ("num_micro_batch", '"pipeline.num_micro_batch"'),
        ("pipelin.num_micro_batch", '"pipeline.num_micro_batch"'),
        ("comm.max_splits", '"communication.max_splits"'),
        ("amp.zzzz", "amp.level, amp.debug_log, amp.loss_scale"),
        ("q", "categories: " + ", ".join(CATEGORIES)),
        (3, "categories: "),
    ],
)
def test_unknown_key(name, hint):
    with pytest.raises(ConfigError, match="unknown configuration key") as error:
        Config({name: 1}, {})
    assert hint in str(error.value)


@pytest.mark.parametrize(
    "name, value, allowed",
    [
        ("communication.max_splits", 0, "an integer >= 1"),
        ("communication.max_splits", True, "an integer >= 1"),
        ("communication.max_splits", 2.0, "an integer >= 1"),
        ("communication.max_splits", "2", "an integer >= 1"),
        ("communication.max_splits", None, "an integer >= 1."),
        ("communication.timeout_s", 0, "a number > 0"),
        ("communication.timeout_s", float("inf"), "a number > 0"),
        ("communication.timeout_s", float("nan"), "a number > 0"),
        ("communication.fp16", 1, "True or False"),
        ("communication.fp16", "true", "True or False"),
        ("communication.gradients_reduce_method", "max", 'one of "auto", "mean", "sum"'),
        ("communication.backend", 3, 'one of "auto", "shm", "tcp", "gloo"'),
        ("pipeline.num_stages", 0, "an integer >= 1 or None"),
        ("amp.loss_scale", "static", 'a number > 0 or "dynamic"'),
        ("amp.loss_scale", True, 'a number > 0 or "dynamic"'),
        ("cluster.run_visible_devices", "0;1", "device indices separated by commas"),
        ("amp.custom_white_list", ["Mul,Add"], "a string, or a list of strings without commas"),
        ("amp.custom_white_list", ["Mul", 1], "a string, or a list of strings without commas"),
        ("zero.level", ["v1"], 'one of "", "v0"'),
    ],
)
def test_wrong_value_says_what_is_allowed(name, value, allowed):
    with pytest.raises(ConfigError) as error:
        Config({name: value}, {})
    assert isinstance(error.value, ValueError)
    assert str(error.value).startswith("%s=%r" % (name, value))
    assert allowed in str(error.value)


def test_a_dict_is_wanted():
    with pytest.raises(ConfigError, match="param_dict must be a mapping.*not list"):
        Config(["communication.fp16"], {})


@pytest.mark.parametrize("text, value", [("true", True), ("True", True), ("1", True), ("FALSE", False), (" 0 ", False)])
def test_bool_from_environment(text, value):
    config = Config({"communication.fp16": not value}, {})
    assert config.communication.fp16 is not value
    assert Config({}, {"EPL_COMMUNICATION_FP16": text}).communication.fp16 is value


@pytest.mark.parametrize(
    "text, value",
    [("0.75,0.999", (0.75, 0.999)), ("[0.75, 0.999]", (0.75, 0.999)), ("[]", ()), ("", ())],
)
def test_list_from_environment(text, value):
    assert Config({}, {"EPL_DGC_SPARSITY": text}).dgc.sparsity == value


@pytest.mark.parametrize(
    "variable, text, message",
    [
        ("EPL_COMMUNICATION_FP16", "yes", '"true", "false", "1", "0"'),
        (
            "EPL_COMMUNICATION_MAX_SPLITS",
            "many",
            "from environment variable EPL_COMMUNICATION_MAX_SPLITS.*an integer >= 1",
        ),
        ("EPL_COMMUNICATION_MAX_SPLITS", "1.5", "an integer >= 1"),
        ("EPL_COMMUNICATION_TIMEOUT_S", "nan", "a number > 0"),
        ("EPL_DGC_SPARSITY", "[0.75, 1]", "a list of numbers >= 0 and < 1"),
        ("EPL_COMMUNICATION_MAX_SPLIT", "3", "EPL_COMMUNICATION_MAX_SPLITS"),
        ("EPL_PIPELINE_NUM_MICRO_BATCHES", "3", "EPL_PIPELINE_NUM_MICRO_BATCH"),
        ("EPL_IO_X", "3", "belongs to no configuration key"),
        ("EPL_NUM_MICRO_BATCH", "3", 'Did you mean "EPL_PIPELINE_NUM_MICRO_BATCH"'),
        ("EPL_MAX_SPLIT", "3", 'Did you mean "EPL_COMMUNICATION_MAX_SPLITS"'),
        ("EPL_GPUS_PER_WORKER", "3", 'Did you mean "EPL_GPU_PER_WORKER"'),
    ],
)
def test_wrong_variable(variable, text, message):
    with pytest.raises(ConfigError, match=message):
        Config({}, {variable: text})


def test_other_variables_are_ignored():
    others = {
        "EPL_JOB_TOKEN": "x",
        "EPL_GPU_PER_WORKER": "2",
        "EPL_DEVICE": "cpu",
        "EPL_DUMP_DIR": "d",
        "EPL_BOOTSTRAP_PORT": "1",
        "EPL_LOG_LEVEL": "INFO",
        "EPL_OF_SOMEBODY": "1",
        "PIPELINE_NUM_STAGES": "3",
        "EPLX_IO_SLICING": "1",
    }
    assert Config({}, others) == Config({}, {})


def test_a_variable_that_the_dict_overrides_is_not_even_read():
    assert Config({"communication.fp16": True}, {"EPL_COMMUNICATION_FP16": "maybe"}).communication.fp16 is True


def test_none_from_environment():
    for text in ("none", "None", ""):
        assert Config({}, {"EPL_PIPELINE_NUM_STAGES": text}).pipeline.num_stages is None


@pytest.mark.parametrize("config", [({"pipeline.num_stages": -1}, {}), ({}, {"EPL_PIPELINE_NUM_STAGES": "-1"})])
def test_minus_one_stages_are_none(config):
    assert Config(*config).pipeline.num_stages is None
    with pytest.raises(ConfigError, match=r"num_stages=-2 .* or None \(or -1, which means None\)"):
        Config({"pipeline.num_stages": -2}, {})


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("EPL_COMMUNICATION_MAX_SPLITS", "9")
    assert Config().communication.max_splits == 9


# --- attributes ---


def test_attributes_read_and_write():
    config = Config({"communication.max_splits": 3}, {})
    assert config.communication.max_splits == 3
    config.communication.max_splits = 4
    assert config.to_dict()["communication.max_splits"] == 4
    assert repr(config) == "Config({'communication.max_splits': 4})"
    with pytest.raises(ConfigError, match="an integer >= 1"):
        config.communication.max_splits = "4"
    assert config.communication.max_splits == 4


def test_unknown_attributes():
    config = Config({}, {})
    with pytest.raises(ConfigError, match='"communication.max_splits"'):
        config.communication.max_split = 3
    with pytest.raises(ConfigError, match='"communication.max_splits"'):
        print(config.communication.max_split)
    with pytest.raises(ConfigError, match='no category.*"pipeline"'):
        print(config.pipelin)
    with pytest.raises(ConfigError, match="no category"):
        config.max_splits = 3
    with pytest.raises(ConfigError, match="category and cannot be replaced.*config.zero.level"):
        config.zero = "v1"
    assert not hasattr(config, "pipelin")
    assert not hasattr(config.zero, "levels")


def test_choices_ignore_case():
    assert Config({"pipeline.strategy": "preferforward"}, {}).pipeline.strategy == "PreferForward"
    assert Config({"communication.backend": "SHM"}, {}).communication.backend == "shm"


def test_config_is_not_hashable_and_unlike_other_things():
    with pytest.raises(TypeError):
        hash(Config({}, {}))
    assert Config({}, {}) != {}


# --- files ---


def test_hand_written_file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("# mine\ncommunication.max_splits: 3\n")
    config = Config.from_yaml(str(path), {"EPL_COMMUNICATION_MAX_SPLITS": "8", "EPL_COMMUNICATION_FP16": "1"})
    assert (config.communication.max_splits, config.communication.fp16) == (3, True)


@pytest.mark.parametrize(
    "text, message",
    [
        ("communication.max_splits: &a 3\nzero.degree: *a", r"a.yaml has the alias \*a in line 2. Write the value out"),
        ("a: " + "[" * 5000, r"a.yaml is nested too deeply"),
        ("# " + "x" * 70000, r"a.yaml has more than 65536 characters"),
        ("communication.max_split: 3", r"a.yaml.*\"communication.max_splits\""),
        ("communication.max_splits: many", r"a.yaml.*an integer >= 1"),
        ("\nzero.level: v9", r"zero.level='v9' \(from .*a.yaml, line 2\) is not valid"),
        ("zero.level: v1\n\nzero.level: v2", "a.yaml has 'zero.level' twice, in lines 1 and 3. Leave one of them out"),
        ("dgc:\n  sparsity: [0.9]", r"'dgc' \(from .*a.yaml, line 1\) is a category.*: \"dgc.sparsity: \[0.9\]\""),
        ("- 3", "a.yaml must be a mapping.*not list"),
        ("a: [", "a.yaml is not valid YAML"),
        ("!!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_wrong_file(tmp_path, text, message):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="(?s)" + message):
        Config.from_yaml(str(path), {})


def test_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot read configuration file .*none.yaml"):
        Config.from_yaml(str(tmp_path / "none.yaml"))


def test_a_failed_write_keeps_the_earlier_file(tmp_path, monkeypatch):
    path = tmp_path / "a.yaml"
    Config({}, {}).to_yaml(str(path))
    before = path.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        Config({"communication.max_splits": 3}, {}).to_yaml(str(path))
    assert path.read_text() == before
    assert os.listdir(str(tmp_path)) == ["a.yaml"]


def test_variables_that_belong_to_no_key_are_listed():
    """What the sources read from the environment is no misspelt key to them."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(config_module.__file__)))
    read = set()
    for folder, _, names in os.walk(package):
        for name in names:
            if name.endswith(".py"):
                with open(os.path.join(folder, name), encoding="utf-8") as source:
                    read.update(re.findall(r'"(EPL_[A-Z_]+)"', source.read()))
    assert "EPL_DEVICE" in read
    assert Config({}, dict.fromkeys(read - {key.variable for key in keys().values()}, "1")) == Config({}, {})
