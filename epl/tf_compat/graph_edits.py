"""Changes of a tf.Graph that TensorFlow's public interface has no call for, for epl.tf1's graph editor."""


def copy_operation(op, graph, name, inputs):
    """Adds a copy of an operation to a graph.

    Args:
      op: the tf.Operation.
      graph: the tf.Graph that gets it.
      name: of the copy.
      inputs: its inputs.

    Returns:
      The new tf.Operation, without control inputs.
    """
    attributes = {key: value for key, value in op.node_def.attr.items() if key != "_class"}
    with graph.as_default(), graph.control_dependencies(None), graph.device(op.device):
        return graph._create_op_internal(
            op.type,
            list(inputs),
            dtypes=[
                output.dtype.base_dtype if not output.dtype._is_ref_dtype else output.dtype for output in op.outputs
            ],
            input_types=[each.dtype for each in op.inputs],
            name=name + "/",  # as it is, whatever scope is open
            attrs=attributes,
            op_def=op.op_def,
        )


def update_input(op, index, tensor):
    """Lets an operation take another tensor as its input of a number."""
    op._update_input(index, tensor)


def add_control_inputs(op, others):
    """Lets an operation wait for others."""
    op._add_control_inputs(list(others))


def control_outputs(op):
    """The operations that wait for one."""
    return op._control_outputs
