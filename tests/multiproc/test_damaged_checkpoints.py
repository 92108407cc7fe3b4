"""Training goes on from the newest checkpoint that can be read."""

import numpy as np
import pytest

PROGRAM = "tests.helpers.programs.damaged:train"


@pytest.mark.parametrize("damage", ["flip", "cut", "garbage", "no_index", "no_data"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(two_workers, plain, tmp_path, damage):
    (_, _, warnings), _ = two_workers(PROGRAM, str(tmp_path), 4)
    assert warnings == []
    results = two_workers(PROGRAM, str(tmp_path), 3, [damage])
    assert [began for began, _, _ in results] == [3, 3]
    (warning,) = results[0][2]
    assert "model.ckpt-3, as a later one cannot be read" in warning and "model.ckpt-4 (" in warning
    _, wanted, _ = plain(PROGRAM, str(tmp_path / "plain"), 6)
    for _, value, _ in results:
        np.testing.assert_allclose(value, wanted, rtol=1e-5)


def test_several_damaged_ones(two_devices, tmp_path):
    two_devices(PROGRAM, str(tmp_path), 4)
    began, _, (warning,) = two_devices(PROGRAM, str(tmp_path), 1, ["flip", "no_index"])
    assert began == 2 and "model.ckpt-4 (" in warning and "model.ckpt-3 (" in warning


@pytest.mark.parametrize("verify", [True, False])
def test_tensorflow_says_what_is_wrong_where_none_is_left_or_none_is_read(two_devices, tmp_path, verify):
    two_devices(PROGRAM, str(tmp_path), 2)
    damages = ["flip"] * (3 if verify else 1)
    with pytest.raises(Exception, match="(?i)checksum|data_?loss"):
        two_devices(PROGRAM, str(tmp_path), 1, damages, verify)
