"""What the workers of test_gpu_plan.py run: gpu_script.py FOLDER. Trains as on two GPUs a worker, which are made up:
TensorFlow finds no GPU and puts everything on the CPU, and NCCL and CUDA are the doubles of csrc/tests/gpu.

Every worker leaves FOLDER/result.<index>: what carries the data, and the weights after each step.
"""

import json
import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from epl.cluster import Cluster
from epl.session import hooks

STEPS, ROWS, GPUS = 3, 8, 2


def rows(step, worker):
    random = np.random.RandomState(10 * step + worker)
    return random.normal(size=(ROWS, 3)).astype(np.float32), random.normal(size=(ROWS, 1)).astype(np.float32)


def pretend_gpus():
    """Makes every worker of the job one with GPUs of its own."""
    usual = Cluster.from_environment.__func__

    def from_environment(cls, *args, **kwargs):
        found = usual(cls, *args, **kwargs)
        hosts = ["127.0.0.1:0"] * found.worker_num
        hosts[0] = found.bootstrap_address
        index = found.worker_index
        own = ",".join(str(index * GPUS + i) for i in range(GPUS))
        return Cluster(found.worker_num, index, GPUS, hosts, "GPU", os.environ["EPL_JOB_TOKEN"], own)

    Cluster.from_environment = classmethod(from_environment)


def main(folder):
    tf.disable_v2_behavior()
    pretend_gpus()
    epl.init(
        epl.Config(
            {
                "communication.nccl_library": os.environ["FAKE_NCCL"],
                "communication.cuda_library": os.environ["FAKE_CUDA"],
            }
        )
    )
    index = epl.Env.get().cluster.worker_index
    with epl.replicate(1):
        x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 1])
        w = tf.get_variable("w", [3, 1], initializer=tf.zeros_initializer())
        b = tf.get_variable("b", [1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    weights = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for step in range(STEPS):
            fed_x, fed_y = rows(step, index)
            session.run(train, {x: fed_x, y: fed_y})
            weights.append(session.run(w).ravel().tolist())
        backend = hooks.current_job().pool.backend
    with open(os.path.join(folder, "result.%d" % index), "w") as file:
        json.dump({"backend": backend, "weights": weights}, file)


if __name__ == "__main__":
    main(sys.argv[1])
