"""Which gradients stay in 16 bits until they are aggregated (amp.level "O2")."""

from dataclasses import dataclass
from typing import Tuple

from epl.config import composes
from epl.graph import types
from epl.graph.index import canonical_tensor
from epl.graph.types import FLOAT32
from epl.plan.precision.precision import DTYPES, O2
from epl.plan.sync.gradients import returned_gradients


@dataclass(frozen=True)
class ShortGradients:
    """Gradients that are aggregated in 16 bits.

    Attributes:
      dtype: DataType number of the 16-bit type.
      gradients: (number of the ApplyCall, canonical name of the tensor that tf.gradients returned, (node, input
        position) pairs that take it for the call) of each.
    """

    dtype: int
    gradients: Tuple[Tuple[int, str, Tuple[Tuple[str, int], ...]], ...]


def plan_short_gradients(program, target):
    """The ShortGradients of a program: its dense gradients of float32 variables; None without amp.level "O2".

    Raises:
      UnsupportedError: the program assigns to variables what it makes of gradients itself.
    """
    if target.config.amp.level != O2 or not program.apply_calls:
        return None
    by_hand = [call for call in program.apply_calls if call.between is not None]
    if by_hand:
        raise composes.refused(composes.BY_HAND, composes.O2, variable=by_hand[0].gradients[0][1])
    found = []
    for call, gradients in returned_gradients(program):
        for gradient, variable, consumers in gradients:
            if gradient.indices is None and types.base(program.variables[variable].dtype) == FLOAT32:
                tensor = canonical_tensor(gradient.values)
                # Where the scale is on it is not known of what a branch returns.
                if not program.scaled or tensor in program.unscaled:
                    found.append((call.index, tensor, tuple(consumers)))
    return ShortGradients(DTYPES[program.sixteen_bits.name], tuple(found))
