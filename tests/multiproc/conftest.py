"""Fixtures of the tests with processes."""

from tests.helpers.launching import launch_fixture

__all__ = ["launch_fixture"]
