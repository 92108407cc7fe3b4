"""`tf.contrib.util`."""

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__,
    names={
        "constant_value": "tensorflow:get_static_value",
        "make_ndarray": "tensorflow:make_ndarray",
        "make_tensor_proto": "tensorflow:make_tensor_proto",
        "ops_used_by_graph_def": "tensorflow.python.framework.meta_graph:ops_used_by_graph_def",
        "stripped_op_list_for_graph": "tensorflow.python.framework.meta_graph:stripped_op_list_for_graph",
    },
)
