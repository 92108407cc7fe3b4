"""`tf.contrib.slim`: the package tf_slim."""

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__,
    modules=("tf_slim", "tf_slim.layers", "tf_slim.ops.variables"),
    names={
        "data": "tf_slim.data",
        "dataset": "tf_slim.data.dataset",
        "dataset_data_provider": "tf_slim.data.dataset_data_provider",
        "layers": "tf_slim.layers",
        "nets": "epl.tf1.contrib.slim_nets",
        "parallel_reader": "tf_slim.data.parallel_reader",
        "prefetch_queue": "tf_slim.data.prefetch_queue",
        "python": __name__,
        "slim": __name__,
        "tfexample_decoder": "tf_slim.data.tfexample_decoder",
        "utils": "tf_slim.layers.utils",
        "variable": "tf_slim.ops.variables:variable",
    },
)
