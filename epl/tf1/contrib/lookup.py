"""`tf.contrib.lookup`: the tables of TensorFlow under their first names."""

from epl.tf1.gathered import gathered

_TABLES = "tensorflow.python.ops.lookup_ops:"

__getattr__, __dir__ = gathered(
    __name__,
    modules=("tensorflow.python.ops.lookup_ops",),
    names={
        "HashTable": _TABLES + "StaticHashTableV1",
        "MutableDenseHashTable": _TABLES + "DenseHashTable",
        "string_to_index_table_from_file": _TABLES + "index_table_from_file",
        "string_to_index_table_from_tensor": _TABLES + "index_table_from_tensor",
    },
)
