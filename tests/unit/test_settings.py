"""The configuration that all workers must have in common."""

import pytest

from epl.config import Config
from epl.config.keys import keys
from epl.errors import ConfigError
from epl.session.settings import check_same, is_line, lines, told

pytestmark = pytest.mark.once


def test_the_same_is_the_same():
    given = {"cluster.device_weights": [1, 2], "communication.nccl_library": "here"}
    check_same(told(Config(given, {})), told(Config(dict(given, **{"communication.nccl_library": "there"}), {})), 1)


def test_each_key_that_differs_is_named_with_both_values():
    own, chiefs = (told(Config(values, {})) for values in ({"zero.level": "v1"}, {"pipeline.num_micro_batch": 2}))
    with pytest.raises(ConfigError) as error:
        check_same(own, chiefs, 3)
    text = str(error.value)
    assert text.startswith("the configurations of the workers differ: worker 3 has pipeline.num_micro_batch=1, but ")
    assert "worker 0 has 2; zero.level='v1', but worker 0 has ''" in text
    assert "(EPL_PIPELINE_NUM_MICRO_BATCH, EPL_ZERO_LEVEL)" in text


def test_lines():
    found = lines(Config({"zero.level": "v1"}, {}))
    assert 'zero.level="v1"' in found and all(map(is_line, found))
    assert len(found) == sum(not key.per_worker for key in keys().values())
    assert not is_line("gradients = MatMul(x, y) {}")
