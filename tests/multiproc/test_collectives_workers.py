"""What workers exchange in a step is what the plan's list says, counted where it is handed to the library."""

import collections

import pytest

from epl.program.collective import ALL_REDUCE, BROADCAST
from tests.helpers.exchanging import CASES, NOT_PLANNED
from tests.helpers.programs.counted import STEPS

COUNTED = "tests.helpers.programs.counted:counted"
AGREEMENT = -1  # of workers on the step that comes; it has no tag


@pytest.mark.parametrize("case", sorted(c for c in CASES if CASES[c][1][0] > 1))
@pytest.mark.once
def test_a_step_makes_the_calls_of_the_list(jobs, case):
    for planned, messages, made in jobs[CASES[case][1]](COUNTED, case):
        due = [each for each in planned if each["takes_part"] and each["workers"] > 1 and each["times"]]
        of_no_step = set(messages) | {AGREEMENT} | {tag for kind, _, _, tag in made if kind == BROADCAST}
        made = [call for call in made if call[-1] not in of_no_step and not call[1].startswith(NOT_PLANNED)]
        want = {each["tag"]: each["times"] * STEPS // each["every"] for each in due}
        got, names = collections.Counter(tag for _, _, _, tag in made), {tag: name for _, name, _, tag in made}
        assert got == want, [(names.get(tag), got[tag], want.get(tag, 0)) for tag in got.keys() | want.keys()]
        # With those of other types a word travels that says whether all numbers fit.
        reduced = [each for each in due if each["operation"] == ALL_REDUCE and each["wire_dtype"] is None]
        reduced = {each["tag"]: each["num_bytes"] for each in reduced}
        sizes = {tag: size for kind, _, size, tag in made if kind == ALL_REDUCE and tag in reduced}
        assert sizes == reduced
