"""Faults drawn from the table happen to real jobs. The seed is that of the session: see its first lines."""

import pytest

from tests.faults import table
from tests.faults.injection import inject, problems

CI_COUNT = 8


def pytest_generate_tests(metafunc):
    """Drawn ones in every run; with --exhaustive the whole table."""
    sample = table.drawn(CI_COUNT, metafunc.config.fault_seed)
    rest = [pytest.param(each, marks=pytest.mark.exhaustive) for each in table.ALL if each not in sample]
    metafunc.parametrize("injection", sample + rest, ids=str)


@pytest.mark.alone
@pytest.mark.once
def test_the_table_holds(template, tmp_path, injection):
    outcome = inject(template.python, injection, tmp_path)
    # How soon jobs end is a measure of speed, for `python -m tests.faults`; here it says whether they do.
    wrong = [each for each in problems(injection, outcome) if each[0] != "late"]
    assert not wrong, "%s\n%s" % (wrong, outcome.output[-6000:])
