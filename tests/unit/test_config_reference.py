"""docs/configuration.md says what epl/config/keys.py says."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.once

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def test_the_page_is_in_step():
    result = subprocess.run(
        [sys.executable, os.path.join(ROOT, "scripts", "config_reference.py"), "--check"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout
