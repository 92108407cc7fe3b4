"""The hooks of epl.profiler over worker processes: the chief's files show all of them."""

from tests.helpers import profile_checks


def test_hooks(two_by_two, tmp_path):
    profile_checks.check(two_by_two("tests.helpers.programs.profiles:run", str(tmp_path)), devices=2)
