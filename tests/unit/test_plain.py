"""Values that workers send each other: nothing but data comes out, whatever comes in."""

import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from epl.errors import UnsupportedError
from epl.session import plain

_KEYS = st.text(max_size=5) | st.integers() | st.binary(max_size=5)
_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_there_and_back(value):
    assert plain.unpack(plain.pack(value)) == value


@pytest.mark.parametrize(
    "array",
    [
        np.float32(0.1),
        np.int64(3),
        np.bool_(True),
        np.arange(6, dtype=np.float64).reshape(2, 3)[:, ::2],
        np.zeros([0, 2], np.int32),
        np.array(["a", "bc"]),
        np.array(b"bytes"),
        np.array([np.nan, np.inf], np.float16),
    ],
)
def test_arrays(array):
    found = plain.unpack(plain.pack({"metric": array}))["metric"]
    assert type(found) is type(array) and found.dtype == array.dtype and found.shape == array.shape
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("value", [object(), {1: [object()]}, {1, 2}, np.array([object()]), len])
def test_what_is_no_data_is_refused_by_its_sender(value):
    with pytest.raises(UnsupportedError, match="cannot be sent to the other workers"):
        plain.pack(value)


RAN = []


class Evil(object):
    def __reduce__(self):
        return RAN.append, ("was run",)


@given(st.binary())
def test_nothing_runs(data):
    for received in (data, pickle.dumps(Evil()), b'{"kind": "array", "dtype": "O", "shape": [1], "value": ""}'):
        try:
            plain.unpack(received)
        except (ValueError, KeyError, TypeError):
            continue
    assert RAN == []
