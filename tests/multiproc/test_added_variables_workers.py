"""Variables that passes add, on several workers."""

from tests.helpers.added import ADDED, PASS, TRAINED, check_values


def test_two_workers_with_two_devices(plain, two_by_two, tmp_path):
    foreign = str(tmp_path / "foreign")
    plain(ADDED + "save", foreign)
    for worker, (_, _, found) in enumerate(two_by_two(PASS + "train", str(tmp_path), foreign)):
        check_values(found, worker, 2, 2, TRAINED)
    for worker, values in enumerate(two_by_two(PASS + "assigned")):
        check_values([values], worker, 2, 2, [(6, [0])])
