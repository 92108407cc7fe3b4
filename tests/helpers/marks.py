"""Marks of tests that do not run everywhere."""

import pytest

from epl import tf_compat

needs_bfloat16 = pytest.mark.skipif(tf_compat.line() == "tf1", reason="TF 1.15 has no kernels for bfloat16")
