"""State that a program means to share between workers, each of which would have its own."""

import json

import pytest
import tensorflow.compat.v1 as tf

from epl.errors import UnsupportedError
from tests.helpers import planning

SHARED = {
    "queue": lambda name: tf.FIFOQueue(2, [tf.float32], shapes=[()], shared_name=name),
    "padding": lambda name: tf.PaddingFIFOQueue(2, [tf.float32], shapes=[()], shared_name=name),
    "table": lambda name: tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64, shared_name=name),
}


@pytest.mark.parametrize("made", sorted(SHARED))
@pytest.mark.parametrize(
    "workers, device, name, is_refused",
    [
        (2, "/job:ps/task:0/cpu:0", "exits", True),
        (2, "/job:ps/task:0/cpu:0", None, False),
        (2, "/cpu:0", "exits", False),
        (1, "/job:ps/task:0/cpu:0", "exits", False),
    ],
)
def test_state_that_all_workers_are_to_share(monkeypatch, made, workers, device, name, is_refused):
    hosts = ["127.0.0.1:%d" % (20000 + i) for i in range(workers)]
    config = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with planning.capture(), tf.device(device):
        if not is_refused:
            assert SHARED[made](name) is not None
            return
        with pytest.raises(UnsupportedError) as caught:
            SHARED[made](name)
    assert (
        "is to be one for all workers (shared_name='exits' on /job:ps), but with EPL each of them has its own"
        in str(caught.value)
    )
