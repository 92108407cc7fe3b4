"""`tf.contrib.tpu`: the estimator of TPUs, which programs use on CPUs and GPUs too (`use_tpu=False`)."""

from epl.tf1.gathered import gathered

__getattr__, __dir__ = gathered(
    __name__,
    modules=("tensorflow_estimator.python.estimator.tpu.tpu_estimator", "tensorflow.python.tpu.tpu"),
    names={
        "CrossShardOptimizer": "tensorflow:tpu.CrossShardOptimizer",
        "InputPipelineConfig": "tensorflow:estimator.tpu.InputPipelineConfig",
        "RunConfig": "tensorflow:estimator.tpu.RunConfig",
        "TPUConfig": "tensorflow:estimator.tpu.TPUConfig",
        "TPUEstimator": "tensorflow:estimator.tpu.TPUEstimator",
        "TPUEstimatorSpec": "tensorflow:estimator.tpu.TPUEstimatorSpec",
        "batch_parallel": "tensorflow:tpu.batch_parallel",
        "bfloat16_scope": "tensorflow:tpu.bfloat16_scope",
        "core": "tensorflow:tpu.core",
        "cross_replica_sum": "tensorflow:tpu.cross_replica_sum",
        "device_assignment": "tensorflow.python.tpu.device_assignment:device_assignment",
        "error_handling": "tensorflow_estimator.python.estimator.tpu.error_handling",
        "initialize_system": "tensorflow:tpu.initialize_system",
        "outside_compilation": "tensorflow:tpu.outside_compilation",
        "python": __name__,
        "replicate": "tensorflow:tpu.replicate",
        "rewrite": "tensorflow:tpu.rewrite",
        "shard": "tensorflow:tpu.shard",
        "shutdown_system": "tensorflow:tpu.shutdown_system",
        "tensor_tracer": "tensorflow.python.tpu.tensor_tracer",
        "tpu": "tensorflow.python.tpu.tpu",
        "tpu_config": "tensorflow_estimator.python.estimator.tpu.tpu_config",
        "tpu_context": "tensorflow_estimator.python.estimator.tpu.tpu_context",
        "tpu_estimator": "tensorflow_estimator.python.estimator.tpu.tpu_estimator",
        "tpu_feed": "tensorflow.python.tpu.tpu_feed",
        "training_loop": "tensorflow.python.tpu.training_loop",
        "util": "tensorflow_estimator.python.estimator.tpu.util",
    },
)
