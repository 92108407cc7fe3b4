"""Made data: points around the centres of very many classes, as what is known of faces lies around persons.

Nothing is stored: the same seed, class and step give the same numbers anywhere.
"""

import numpy as np


class Faces(object):
    """Points of `classes` classes in `width` dimensions.

    Args:
      classes: how many there are.
      width: numbers of a point.
      noise: how far points lie from the centre of their class, which is about 1 from zero.
      seed: of the centres.
    """

    def __init__(self, classes, width=32, noise=0.3, seed=1):
        centres = np.random.RandomState(seed).normal(size=[classes, width])
        self._centres = (centres / np.linalg.norm(centres, axis=1, keepdims=True)).astype(np.float32)
        self._noise, self._seed = noise, seed

    def batch(self, step, size):
        """The batch of a step: (points float32 [size, width], their classes int64 [size])."""
        rng = np.random.RandomState((self._seed, step))
        labels = rng.randint(0, len(self._centres), size)
        spread = rng.normal(size=[size, self._centres.shape[1]]) * self._noise / np.sqrt(self._centres.shape[1])
        return self._centres[labels] + spread.astype(np.float32), labels.astype(np.int64)
