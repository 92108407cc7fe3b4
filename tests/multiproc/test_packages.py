"""Programs with packages of others on several devices and workers, against plain TensorFlow on the same batches."""

import numpy as np
import pytest

from tests.multiproc.test_programs_by_others import LAYOUTS, assert_same_training

LIMIT_S = 300
pytestmark = [pytest.mark.usefixtures("packages"), pytest.mark.timeout(4 * LIMIT_S)]
MICRO = {"pipeline.num_micro_batch": 4}

# Name: whether the program writes to a folder, and whether it runs with micro-batches too. Those that take over ten
# seconds of a core run with --exhaustive alone.
PACKAGES = {
    "gpt2": (False, True),
    "gpt2_accumulated": (False, False),
    "deepfm": (False, True),
    "deepfm_estimator": (True, False),
    "ppo2": (False, False),
    "sonnet": (False, True),
    "opennmt": (True, False),
    "keras_package": (False, True),
    "bert4keras": (False, False),
    "tensorpack": (True, False),
}
KINDS = {
    "adversarial": (False, True),
    "graphs": (False, True),
    "speech": (False, True),
    "segmentation": (False, False),
    "ranking": (True, False),
    "private": (False, False),
    "second_order": (False, False),
    "text": (False, True),
    "own_trainer": (False, False),
    "detection": (False, False),
}
QUICK = ("ppo2", "private")


def cases():
    for module, programs in (("packages", PACKAGES), ("kinds", KINDS)):
        for name, (writes, micro) in programs.items():
            marks = [] if name in QUICK else [pytest.mark.exhaustive]
            function = "tests.helpers.programs.%s:%s" % (module, name)
            yield pytest.param(function, writes, micro, id=name, marks=marks)


@pytest.mark.parametrize("function, writes, micro", list(cases()))
def test_programs(jobs, plain, tmp_path, function, writes, micro):
    def arguments(name):
        return [str(tmp_path / name)] if writes else []

    want = plain(function, *arguments("plain"), timeout_s=LIMIT_S)
    assert want["states"]
    for layout in LAYOUTS:
        for config in (None, MICRO) if micro else (None,):
            extra = {"config": config} if config else {}
            results = jobs[layout](function, *arguments("%d_%d" % layout), timeout_s=LIMIT_S, **extra)
            assert results[0]["states"]
            for got in results:
                assert_same_training(got, want)
                np.testing.assert_array_equal(got.get("actions", ()), want.get("actions", ()))


@pytest.mark.exhaustive
def test_a_table_in_one_element(two_workers, plain):
    """tensorrec's data set has one element, of which each device of a worker would take one."""
    want = plain("tests.helpers.programs.kinds:recommendation", timeout_s=LIMIT_S)
    for got in two_workers("tests.helpers.programs.kinds:recommendation", timeout_s=LIMIT_S):
        assert_same_training(got, want)
        np.testing.assert_allclose(got["predictions"], want["predictions"], rtol=1e-5, atol=1e-6)
