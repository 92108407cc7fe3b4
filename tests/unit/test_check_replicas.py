"""Comparing copies of variables: what is found, and who is told; nothing is run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epl.errors import WorkerError
from epl.plan.facts.names import read_name
from epl.session import replicas

pytestmark = pytest.mark.once

VALUES = {"a": np.arange(3.0), "b": np.array(2, np.int32)}


def own(values, copies=2, changed=None, rounded=False):
    """The digests of a worker; `changed` (variable, copy) holds another value."""
    nodes = {read_name(variable, copy): (variable, copy) for variable in values for copy in range(copies)}

    def read(names):
        found = [nodes[name[: -len(":0")]] for name in names]
        return [values[variable] + ((variable, copy) == changed) for variable, copy in found]

    return replicas.digests(read, nodes, set(values), 3, rounded=rounded)


def test_equal_copies():
    assert replicas.first_difference([own(VALUES), own(VALUES, 1)]) is None


@given(st.sampled_from(sorted(VALUES)), st.integers(0, 2), st.integers(0, 1))
def test_the_first_that_differs_is_named(variable, worker, copy):
    everyone = [own(VALUES, changed=(variable, copy) if w == worker else None) for w in range(3)]
    name, first, other = replicas.first_difference(everyone)
    # The first of all stands for the others, so where it is the odd one its neighbour is named.
    assert name == variable
    assert (first, other) == (((0, 0), (0, 1)) if (worker, copy) == (0, 0) else ((0, 0), (worker, copy)))


def test_what_a_worker_does_not_have_is_not_compared():
    assert replicas.first_difference([own({"a": VALUES["a"]}), own({"b": VALUES["b"]})]) is None


@pytest.mark.parametrize("odd, found", [(None, None), (3, ("a", (0, 1), (0, 3))), (2, ("a", (0, 0), (0, 2)))])
def test_copies_of_one_part_are_compared(odd, found):
    """Copies 0 and 2 of a divided variable have one part of it, 1 and 3 the other."""
    names = [read_name("a", copy) + ":0" for copy in range(4)]

    def read(wanted):
        return [np.array([names.index(name) % 2, 5 if names.index(name) == odd else 0]) for name in wanted]

    nodes = {name[: -len(":0")] for name in names}
    assert replicas.first_difference([replicas.digests(read, nodes, {"a"}, 4, lambda _, copy: copy % 2)]) == found


@pytest.mark.parametrize("other", [np.arange(3.0, dtype=np.float32), np.arange(3.0)[None], np.array([0, 1, -2.0])])
def test_type_shape_and_bits_count(other):
    assert replicas.first_difference([own({"a": VALUES["a"]}, 1), own({"a": other}, 1)]) is not None


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 50, 200000]), st.sampled_from(["f2", "f4", "f8"]))
def test_copies_on_gpus_may_differ_by_rounding(seed, size, dtype):
    random = np.random.RandomState(seed)
    value = random.normal(size=size)
    rounded, updated = value * (1 + 1e-6 * random.normal(size=size)), value + 0.02 * random.normal(size=size)
    one, near, far = ([own({"a": each.astype(dtype)}, 1, rounded=True)] for each in (value, rounded, updated))
    assert replicas.first_difference(one + near) is None
    # By chance a single number may hardly have changed.
    assert size == 1 or replicas.first_difference(one + far) == ("a", (0, 0), (1, 0))


@pytest.mark.parametrize("one, other", [(3, 4), (1.0, np.nan), (0.0, 1e-9), (1.0, 1.01)])
def test_what_is_no_rounding_counts_on_gpus(one, other):
    found = [own({"a": np.array([each, each])}, 1, rounded=True) for each in (one, other)]
    assert replicas.first_difference(found) == ("a", (0, 0), (1, 0))


def test_all_workers_are_told_the_same():
    everyone = [own(VALUES), own(VALUES, changed=("b", 1))]
    told = []
    for worker in (0, 1):
        with pytest.raises(WorkerError) as caught:
            replicas.check(everyone[worker], lambda _: [replicas.plain.pack(each) for each in everyone], 12)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert told[0].startswith(
        "variable 'b' is not the same everywhere after 12 training steps: worker 0, copy 0 and worker 1, copy 1 hold"
    )
