"""checkpoint.keep and checkpoint.every_s: what stays of a program's checkpoints, and when it saves."""

import pytest

PROGRAM = "tests.helpers.programs.checkpoint_keys:"
TRAIN = PROGRAM + "train"


def test_so_many_checkpoints_stay(two_workers, plain, tmp_path):
    assert plain(TRAIN, str(tmp_path / "plain"), {}, 6, save_checkpoint_steps=1)[1] == [2, 3, 4, 5, 6]
    folder = str(tmp_path / "epl")
    kept = [stays for _, stays in two_workers(TRAIN, folder, {"checkpoint.keep": 3}, 6, save_checkpoint_steps=1)]
    assert kept[0] == [4, 5, 6]
    # Of those that are there when it goes on, too.
    kept = [stays for _, stays in two_workers(TRAIN, folder, {"checkpoint.keep": 2}, 7, save_checkpoint_steps=1)]
    assert kept[0] == [6, 7]


@pytest.mark.parametrize("every_s, saves", [(1e-9, [0, 1, 2, 3]), (1e6, [0, 3])])
def test_all_workers_save_by_the_time_that_the_key_says(two_workers, tmp_path, every_s, saves):
    """A step always takes longer than a nanosecond, and training less than 11 days; the program says two steps."""
    config = {"checkpoint.every_s": every_s}
    for saved, kept in two_workers(TRAIN, str(tmp_path), config, 3):
        assert saved == kept == saves


def test_what_has_no_such_hook_or_saver_is_refused(two_devices, tmp_path):
    by_time = two_devices(PROGRAM + "unsaved", str(tmp_path), {"checkpoint.every_s": 5})
    assert by_time.startswith("UnsupportedError: checkpoint.every_s=5 has no effect in this session: no Checkpoint")
    kept = two_devices(PROGRAM + "unsaved", str(tmp_path), {"checkpoint.keep": 2})
    assert kept.startswith("UnsupportedError: tf.train.Checkpoint saves under names that the program gives")
    assert two_devices(PROGRAM + "unsaved", str(tmp_path), {}) is None
