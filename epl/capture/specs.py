"""Shapes and types of the tensors of a tf.Graph, as plain data for plans."""

from epl.plan.cost import TensorSpec


def spec_reader(tf_graph):
    """A function of a canonical tensor name ("a", "a:1") to its TensorSpec; None for tensors that are not there."""

    def spec_of(name):
        try:
            tensor = tf_graph.get_tensor_by_name(name if ":" in name else name + ":0")
        except KeyError:
            return None  # an operation without results, or a node that a pass made
        rank = tensor.shape.ndims
        shape = None if rank is None else tuple(-1 if d is None else d for d in tensor.shape.as_list())
        return TensorSpec(shape, tensor.dtype.as_datatype_enum)

    return spec_of
