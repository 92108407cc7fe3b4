"""`tf.contrib.training`: hyperparameters, batches by length, and training loops of tf_slim."""

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__,
    modules=("epl.tf1.hparam", "epl.tf1.buckets", "tf_slim.training.training", "tf_slim.training.evaluation"),
    names={
        "GreedyLoadBalancingStrategy": "tensorflow.python.training.device_setter:GreedyLoadBalancingStrategy",
        "byte_size_load_fn": "tensorflow.python.training.device_setter:byte_size_load_fn",
        "FeedingQueueRunner": "tensorflow_estimator.python.estimator.inputs.queues.feeding_queue_runner:"
        "_FeedingQueueRunner",
        "hparam": "epl.tf1.hparam",
        "python": __name__,
        "training": __name__,
    },
)
