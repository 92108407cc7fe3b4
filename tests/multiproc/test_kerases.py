"""Each Keras that a process may have is one of EPL's: losses, callbacks and files are those of the whole job."""

import pytest

from epl import tf_compat
from tests.helpers.checks import assert_same, pairs
from tests.helpers.remote import RemoteError

KERASES = "tests.helpers.programs.kerases:"
OF_TF2 = pytest.mark.skipif(tf_compat.line() == "tf1", reason="TensorFlow 1.15 has one Keras")


def assert_alike(got, want, *names):
    for name in names:
        for one, other in pairs(got[name], want[name]):
            assert_same(one, other, what=name)


@OF_TF2
@pytest.mark.parametrize("package", ["tf_keras", "tensorflow.python.keras"])
def test_callbacks_and_files(two_workers, plain, tmp_path, package):
    if package == "tf_keras":
        pytest.importorskip(package)
    want = plain(KERASES + "trained", package, str(tmp_path / "plain"))
    assert len(want["loss"]) == 5 and len(set(want["rates"])) > 2  # the callbacks have done something
    results = two_workers(KERASES + "trained", package, str(tmp_path / "epl"))
    for got in results:
        assert len(got["loss"]) == len(want["loss"]) and got["rates"] == want["rates"]
        assert_alike(got, want, "loss", "weights")
        assert_same(got["evaluated"], want["evaluated"], what="evaluated")
    assert [got["files"] for got in results] == [want["files"], []]


@OF_TF2
def test_clipping(two_workers, plain, tmp_path):
    pytest.importorskip("tf_keras")
    want = plain(KERASES + "trained", "tf_keras", str(tmp_path / "plain"), clips=True)
    config = {"communication.clip_after_allreduce": True}
    for got in two_workers(KERASES + "trained", "tf_keras", str(tmp_path / "epl"), clips=True, config=config):
        assert_alike(got, want, "loss", "rates", "weights")


@OF_TF2
@pytest.mark.parametrize("layout", [(1, 2), (2, 1)], ids=str)
def test_two_optimizers_of_one_model(jobs, plain, layout):
    want = plain(KERASES + "wide_and_deep")
    for got in jobs[layout](KERASES + "wide_and_deep"):
        assert_alike(got, want, "losses", "weights")
        assert_same(got["tested"], want["tested"], what="tested")


@pytest.mark.each_line
@pytest.mark.parametrize("layout", [(1, 2), (2, 1)], ids=str)
def test_training_functions_of_users(jobs, plain, layout):
    want = plain(KERASES + "own_function")
    for got in jobs[layout](KERASES + "own_function"):
        assert_alike(got, want, "losses", "weights")


def test_one_that_is_not_known(two_devices):
    with pytest.raises(RemoteError) as caught:
        two_devices(KERASES + "unknown")
    assert "UnsupportedError" in caught.value.bases
    assert caught.value.message.startswith("the Keras of the package private_keras is none that EPL knows, so losses,")
