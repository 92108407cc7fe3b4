"""Variables that passes add: who gives them values and when, and what checkpoints hold. The workers' part is
tests/multiproc/test_added_variables_workers.py."""

from tests.helpers.added import ADDED, COUNT, PASS, TRAINED, check_values


def test_two_devices(plain, two_devices, tmp_path):
    foreign = str(tmp_path / "foreign")
    plain(ADDED + "save", foreign)
    path, names, found = two_devices(PASS + "train", str(tmp_path), foreign)
    check_values(found, 0, 1, 2, TRAINED)
    held, own = plain(ADDED + "restore", path)
    assert sorted(names) == own
    assert sorted(held) == sorted(own + [COUNT]) and held[COUNT] == []


def test_values_by_assignments(two_devices):
    check_values([two_devices(PASS + "assigned")], 0, 1, 2, [(6, [0])])
