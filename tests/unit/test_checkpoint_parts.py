"""How parts of variables are written in checkpoints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epl.partition.checkpoints import slice_size, slice_text
from epl.partition.conversion import shard_sizes, shard_starts


@pytest.mark.once  # though it needs TensorFlow, which makes constants
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 5), st.data())
def test_parts_are_all_of_a_tensor(shape, shards, data):
    dim = data.draw(st.integers(0, len(shape) - 1))
    starts, sizes = shard_starts(shape[dim], shards), shard_sizes(shape[dim], shards)
    texts = [slice_text(shape, dim, start, size) for start, size in zip(starts, sizes)]
    total = 1
    for size in shape:
        total *= size
    assert sum(map(slice_size, texts)) == total
    for text, start, size in zip(texts, starts, sizes):
        *dims, parts = text.decode().split()
        assert list(map(int, dims)) == shape
        assert [part == "-" for part in parts.split(":")] == [each != dim for each in range(len(shape))]
        assert parts.split(":")[dim] == "%d,%d" % (start, size)
