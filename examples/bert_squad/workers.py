"""What the script has to know of the other workers."""

import json

import numpy as np
import tensorflow.compat.v1 as tf

import epl


def place():
    """(number of this worker, number of workers, copies of the model in all of them)."""
    cluster = epl.Env.get().cluster
    return cluster.worker_index, cluster.worker_num, cluster.worker_num * cluster.gpu_num_per_worker


def merged(own):
    """One dict out of those of all workers, on every worker; values are what JSON can hold."""
    with tf.Graph().as_default(), tf.Session() as session:
        text = np.frombuffer((json.dumps(own) + "\n").encode(), np.uint8)
        whole = session.run(epl.ops.all_gather(tf.constant(text)))
    found = {}
    for line in whole.tobytes().decode().splitlines():
        found.update(json.loads(line))
    return found
