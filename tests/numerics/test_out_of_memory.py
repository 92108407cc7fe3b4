"""TensorFlow's own error for a device without enough memory, as a program's session raises it."""

import re

import pytest

from tests.helpers.programs.out_of_memory import ROWS


@pytest.mark.each_line
def test_the_error_says_what_the_step_was_expected_to_need(two_devices):
    got = two_devices("tests.helpers.programs.out_of_memory:run")
    assert got["type"] == "ResourceExhaustedError" and "OOM when allocating" in got["message"]
    # Two devices share the rows that were fed.
    assert "EPL expects of a training step with %d rows in a micro-batch, as were fed:" % (ROWS // 2) in got["message"]
    rows = re.findall(r"^  (CPU:\d) +[\d.]+ ", got["message"], re.M)
    assert rows == ["CPU:0", "CPU:1"]
    assert "pipeline.num_micro_batch=2" in got["message"]
