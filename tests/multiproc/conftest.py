"""Fixtures of the tests with processes."""

import os

import pytest

from tests.helpers import others
from tests.helpers.launching import launch_fixture

__all__ = ["launch_fixture"]


@pytest.fixture(scope="session")
def packages():
    """Skips a test where the packages of others cannot be, or are not; in a check of everything they are wanted."""
    from epl import tf_compat  # some of the tests here run where TensorFlow cannot be imported

    if tf_compat.line() != "tf1":
        pytest.skip("the packages need TensorFlow 1.15")
    if not os.path.isdir(others.PACKAGES):
        reason = "the packages are not installed: scripts/setup_others.sh"
        assert os.environ.get("STRICT") != "1", reason
        pytest.skip(reason)
