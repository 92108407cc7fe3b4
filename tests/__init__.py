"""Tests. This file makes `tests.helpers` importable and puts the repository on the path of the tests."""
