"""How much one device has of the tensors of a model that devices divide (epl.split)."""

from epl.plan.cost.cost import tensor_sizes
from epl.program.placement import WHOLE

_IN_FULL = frozenset(["whole", "partial"])  # a partial tensor is as large as what it adds up to


def whole_of(program, tensor):
    """The tensor, by its canonical name, that one stands for which was brought into another placement; else itself."""
    done = program.partitioned
    return done.brought[tensor][0] if done is not None and tensor in done.brought else tensor


def own_part(program, tensor, num_bytes):
    """Of the bytes of a whole tensor, those of one device; of all bytes where nothing divides the model.

    Args:
      program: an epl.program.program.Program, with one copy of the model.
      tensor: its canonical name, or a variable's.
      num_bytes: of the whole.
    """
    done = program.partitioned
    if done is None:
        return num_bytes
    placement = done.brought[tensor][1] if tensor in done.brought else done.placements.get(tensor, WHOLE)
    return num_bytes if placement.kind in _IN_FULL else -(-num_bytes // done.shards)


def own_sizes(program):
    """A function of a canonical tensor name to the bytes, estimated, of a device; 0 where nothing is known."""
    whole = tensor_sizes(program.spec_of)
    return lambda tensor: own_part(program, tensor, whole(whole_of(program, tensor)))
