"""Compares two checkpoints."""

from dataclasses import dataclass
from typing import Dict, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.errors import VerifyError


@dataclass(frozen=True)
class Compared:
    """Two checkpoints.

    Attributes:
      only_first, only_second: names of the variables that one of them alone has.
      shapes: {variable: (shape in the first, in the second)} of those that differ in it.
      differences: {variable: (largest difference of an element, the same in units of one rounding of the largest
        element)} of those that both have; 0 where they are the same to the last bit.
    """

    only_first: Tuple[str, ...]
    only_second: Tuple[str, ...]
    shapes: Dict[str, Tuple]
    differences: Dict[str, Tuple[float, float]]

    @property
    def equal(self):
        """Whether they are the same to the last bit."""
        apart = self.only_first or self.only_second or self.shapes
        return not apart and not any(largest for largest, _ in self.differences.values())

    def __str__(self):
        lines = ["only in the first: %s" % name for name in self.only_first]
        lines += ["only in the second: %s" % name for name in self.only_second]
        lines += ["%s: shape %s and %s" % ((name,) + shapes) for name, shapes in sorted(self.shapes.items())]
        ordered = sorted(self.differences.items(), key=lambda each: -each[1][1])
        lines += ["%s: %.2g (%.3g roundings)" % ((name,) + found) for name, found in ordered if found[0]]
        return "\n".join(lines) or "the same to the last bit"


def compare(checkpoint_a, checkpoint_b):
    """The Compared of two checkpoints.

    Args:
      checkpoint_a, checkpoint_b: paths without the endings, or folders, of which the latest checkpoint counts.

    Raises:
      VerifyError: there is no checkpoint.
    """
    readers = [_reader(path) for path in (checkpoint_a, checkpoint_b)]
    maps = [reader.get_variable_to_shape_map() for reader in readers]
    both = sorted(set(maps[0]).intersection(maps[1]))
    shapes = {name: (maps[0][name], maps[1][name]) for name in both if maps[0][name] != maps[1][name]}
    differences = {}
    for name in both:
        if name not in shapes:
            differences[name] = _difference(*(np.asarray(reader.get_tensor(name)) for reader in readers))
    only = [tuple(sorted(set(own).difference(other))) for own, other in (maps, maps[::-1])]
    return Compared(only[0], only[1], shapes, differences)


def _reader(path):
    path = str(path)
    found = tf.train.latest_checkpoint(path) if tf.gfile.IsDirectory(path) else path
    if not found or not tf.train.checkpoint_exists(found):
        raise VerifyError(
            "there is no checkpoint '%s'. Give what Saver.save returned, such as 'logs/model.ckpt-100', or the folder "
            "that holds it." % path
        )
    return tf.train.load_checkpoint(found)


def _difference(value, other):
    if value.dtype == other.dtype and value.tobytes() == other.tobytes():
        return 0.0, 0.0
    if value.dtype.kind not in "fciub" or other.dtype.kind not in "fciub":
        return (0.0, 0.0) if np.array_equal(value, other) else (float("inf"), float("inf"))
    with np.errstate(invalid="ignore"):
        off = np.abs(value.astype(np.complex128) - other.astype(np.complex128))
    off = np.where((value == other) | (np.isnan(value) & np.isnan(other)), 0.0, np.where(np.isnan(off), np.inf, off))
    largest = float(off.max()) if off.size else 0.0
    if not largest:
        return 0.0, 0.0
    size = float(np.nanmax(np.abs(value.astype(np.complex128))))
    eps = float(np.finfo(value.dtype).eps) if value.dtype.kind in "fc" else 1.0
    unit = eps * size if size and value.dtype.kind in "fc" else eps
    return largest, largest / unit
