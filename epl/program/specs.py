"""What is known of tensors before they are computed."""

import collections

from epl.graph.index import parse_input

# shape: tuple of ints, -1 where unknown, or None when the rank is unknown; dtype: DataType number.
TensorSpec = collections.namedtuple("TensorSpec", "shape dtype")


def specs_like(specs, tensor):
    """TensorSpecs of the outputs of a node that stands for another one: the first is like `tensor`, an output of that.

    Args:
      specs: dict of node to a tuple with the TensorSpec of each output.
      tensor: name of the tensor, or of the node.
    """
    name, place = parse_input(tensor)
    known = specs.get(name, ())
    return (known[place] if place < len(known) else None,) + known[1:]
