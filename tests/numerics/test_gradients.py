"""How the gradients of several devices become one: clipping, mean and sum, half precision, sparse gradients, scopes."""

import pytest

from tests.helpers.checks import assert_same, assert_same_state, assert_same_training, differs

GRADIENTS = "tests.helpers.programs.gradients:"


def test_clip_after_all_reduce_equals_one_device(plain, two_devices):
    want = plain(GRADIENTS + "clipped", 1)
    assert_same_training(two_devices(GRADIENTS + "clipped", 2, after=True), want)


def test_clip_before_all_reduce_is_the_mean_of_clipped_gradients(plain, two_devices):
    want = plain(GRADIENTS + "clipped", 2)
    assert differs(want, plain(GRADIENTS + "clipped", 1), 1e-3)  # the two ways are not the same here
    assert_same_training(two_devices(GRADIENTS + "clipped", 2), want)


def test_clip_before_all_reduce_over_four(plain, four_devices):
    assert_same_training(four_devices(GRADIENTS + "clipped", 4), plain(GRADIENTS + "clipped", 4))


def test_sum_is_the_mean_times_the_replicas(plain, two_devices, four_devices):
    config = {"communication.gradients_reduce_method": "sum"}
    for devices, call in ((2, two_devices), (4, four_devices)):
        want = plain(GRADIENTS + "classifier", optimizer="sgd", gradient_scale=float(devices))
        assert_same_training(call(GRADIENTS + "classifier", config, optimizer="sgd"), want)
    assert differs(want, plain(GRADIENTS + "classifier", optimizer="sgd"), 1e-2)


@pytest.mark.parametrize("max_splits", [1, 3, 100])
@pytest.mark.parametrize("communicators", [1, 3])
def test_number_of_groups_does_not_matter(plain, two_devices, max_splits, communicators):
    config = {"communication.max_splits": max_splits, "communication.num_communicators": communicators}
    assert_same_training(two_devices(GRADIENTS + "classifier", config), plain(GRADIENTS + "classifier"))


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(plain, two_devices, as_dense):
    config = {"communication.sparse_as_dense": as_dense}
    assert_same_training(two_devices(GRADIENTS + "embedding", config), plain(GRADIENTS + "embedding"))


def test_half_precision_on_the_wire_is_close(plain, two_devices):
    want = plain(GRADIENTS + "classifier")
    assert_same_training(
        two_devices(GRADIENTS + "classifier", {"communication.fp16": True}), want, rtol=5e-3, atol=5e-3
    )


def test_no_annotation_is_data_parallel(plain, two_devices):
    assert_same_training(two_devices(GRADIENTS + "classifier", annotate=False), plain(GRADIENTS + "classifier"))


@pytest.mark.parametrize("device_count", [2, 4])
def test_micro_batch_divided_over_devices(plain, four_devices, device_count):
    want = plain(GRADIENTS + "classifier")
    assert_same_training(four_devices(GRADIENTS + "classifier", device_count=device_count), want)


@pytest.mark.parametrize("device_count", [1, 2, 4])
def test_batches_of_a_data_set_divided_over_devices(plain, four_devices, device_count):
    want = plain(GRADIENTS + "from_dataset", 1)
    got = four_devices(GRADIENTS + "from_dataset", device_count)
    assert_same(got["losses"], want["losses"])
    assert_same_state(got["state"], want["state"])
    # 8 rows a step: each model replica pulls its batch once, and its devices see equal parts of it.
    assert all(list(sizes) == [2, 2, 2, 2] for sizes in got["sizes"])


@pytest.mark.parametrize("kind", ["Lamb", "Lars"])
def test_norms_are_those_of_the_whole_batch(plain, two_devices, two_workers, kind):
    want = plain(GRADIENTS + "large_batch", kind)
    # LAMB divides by the root of small squares, as Adam does.
    assert_same_training(two_devices(GRADIENTS + "large_batch", kind), want, atol=5e-6)
    for got in two_workers(GRADIENTS + "large_batch", kind, micro_batches=2):
        assert_same_training(got, want, atol=5e-6)
