"""The documentation says which keys that save memory go together, as compiling finds it."""

import os

import pytest

from tests.helpers import composes

_PAGE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "memory.md")


@pytest.mark.once
def test_the_documentation_has_what_composes():
    with open(_PAGE) as page:
        documented = [line for line in page.read().split("\n") if line.count("|") > 5]
    found = [line for line in composes.tables() if line]
    first = documented.index(found[0])  # `python -m tests.helpers.composes` prints what has to be there
    assert documented[first : first + len(found)] == found
