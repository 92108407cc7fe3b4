"""How fast this worker's devices are: how often they do some products and passes over memory in a second."""

import time

import numpy as np
import tensorflow.compat.v1 as tf

from epl.capture.caught import INNER

# Side of square matrices, and float32 numbers that are computed element by element, so that a round takes milliseconds.
_SIZES = {"CPU": (512, 1 << 20), "GPU": (4096, 1 << 26)}
_PRODUCTS, _PASSES = 2, 4
# Rounds are counted in so many spans of time. Those of a worker are longer than the periods in which a system gives
# processes their shares of a processor (100 ms in Linux).
_SPANS, _ALL_S, _WARM_UP_S = 5, 1.1, 0.1


def device_speeds(mesh, proto):
    """Rounds a second of each of this worker's devices: a list. It takes some 1.3 s.

    Args:
      mesh: the Mesh.
      proto: the ConfigProto with which the program's session is made too.
    """
    # Devices of the kind "CPU" are the same cores.
    count = mesh.devices_per_worker if mesh.device_type == "GPU" else 1
    graph = tf.Graph()
    setattr(graph, INNER, True)
    rounds, initializers = [], []
    with graph.as_default():
        for index in range(count):
            with tf.device(mesh.device(index)):
                made, initializer = _round(mesh.device_type, index)
            rounds.append(made)
            initializers.append(initializer)
        options = tf.ConfigProto()
        options.CopyFrom(proto)
        options.graph_options.rewrite_options.disable_meta_optimizer = True  # it would fold what is constant
        with tf.Session(config=options) as session:
            session.run(initializers)
            found = [median_rate(session.make_callable(each), _ALL_S / count, _WARM_UP_S / count) for each in rounds]
    return found * (mesh.devices_per_worker // count)


def _round(device_type, index):
    """(operation that computes for some milliseconds, operation that must have run before)."""
    side, numbers = _SIZES[device_type]
    data = [
        tf.get_variable("%s_%d" % each, shape, initializer=tf.ones_initializer(), trainable=False, use_resource=True)
        for each, shape in ((("matrix", index), [side, side]), (("vector", index), [numbers]))
    ]
    matrix, vector = (tf.identity(each) for each in data)
    product = matrix
    for _ in range(_PRODUCTS):
        product = tf.matmul(product, matrix) * (1.0 / side)
    for _ in range(_PASSES):
        vector = vector * 0.5 + 1.0
    return tf.group(product.op, vector.op), tf.group([each.initializer for each in data])


def median_rate(run, all_s, warm_up_s, clock=time.perf_counter):
    """How often a function can be called in a second: the median of some spans of time.

    Args:
      run: the function.
      all_s: seconds of all spans; each has one call at least.
      warm_up_s: seconds before the first, the same.
      clock: function that gives the time in seconds.
    """
    _rate(run, warm_up_s, clock)
    return float(np.median([_rate(run, all_s / _SPANS, clock) for _ in range(_SPANS)]))


def _rate(run, span_s, clock):
    began, count = clock(), 0
    while True:
        run()
        count += 1
        taken = clock() - began
        if taken >= span_s:
            return count / max(taken, 1e-9)
