"""What the variables of tests/helpers/programs/added_pass.py are to be."""

import numpy as np

from tests.helpers.programs import common

ADDED, PASS = "tests.helpers.programs.added:", "tests.helpers.programs.added_pass:"
COUNT, OWN = "added/count", "added/own"
# For each thing that added_pass.train returns: the count, and the numbers of the batches since first values.
TRAINED = [(8, [0, 1, 2]), (9, [0, 1, 2, 3]), (9, [4]), (6, [5]), (7, [6, 7])]


def check_values(found, worker, workers, copies, expected):
    """Whether all copies of a worker hold what they should."""
    assert len(found) == len(expected)
    for values, (count, batches) in zip(found, expected):
        assert values[COUNT] == [count] * copies
        for copy, own in enumerate(values[OWN]):
            parts = [np.split(common.batch(number)[0], workers * copies)[worker * copies + copy] for number in batches]
            np.testing.assert_allclose(own, np.add([0.5, 1.5], sum(part.mean() for part in parts)), rtol=1e-5)
