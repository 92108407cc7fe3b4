"""What a device of this machine can do, measured with TensorFlow's own operations: products, memory, starts."""

import tensorflow.compat.v1 as tf

from epl.calibrate.timing import steady, times_of
from epl.cluster import fingerprint
from epl.cluster.machine import BFLOAT16, FLOAT16, FLOAT32, Device

_SIDES = (64, 256, 1024)  # of square matrices
_CHAIN_FLOPS = 2e7  # small products come in chains of so many operations together
_LARGE = 1 << 20  # float32 numbers, 4 MiB: as large as tensors of a layer
_CHAINS, _CHAIN = 100, 10  # operations of one number, side by side and one after the other
_PASSES = 8  # operations of large tensors
# Of a thin product: rows of the small factor, and the side of the other one, of which there are several, as of layers.
_ROWS, _SIDE, _LAYERS = 4, 1024, 8
_DTYPES = ((FLOAT32, tf.float32), (BFLOAT16, tf.bfloat16), (FLOAT16, tf.float16))
_CAN_BE_SLOWER = 0.1  # than float32, by this part: no more is measured of a dtype that this device only imitates


def measure_device(gpu):
    """The epl.cluster.machine.Device that one GPU is, or this host's processors together.

    Args:
      gpu: whether the GPU is meant.
    """
    name = "/GPU:0" if gpu else "/CPU:0"
    start_s = steady(lambda: times_of(_chains, [1], device=name), "starting operations") / (_CHAINS * _CHAIN)
    products, fastest = [], 0.0
    for key, dtype in _DTYPES:
        speeds = _products(key, dtype, name, start_s, fastest)
        if speeds:
            products.append((key, speeds))
            fastest = max(fastest, speeds[-1][1])
    computed = steady(lambda: times_of(_computed, [_LARGE], device=name), "operations element by element")
    read = steady(lambda: times_of(_thin, [_LAYERS * _SIDE, _SIDE], device=name), "products of few rows")
    return Device(
        products=tuple(sorted(products)),
        # Each multiplication reads and writes as much as there is; the sum reads all of them.
        elementwise_bytes_per_s=(3 * _PASSES + 1) * 4.0 * _LARGE / computed,
        memory_bytes_per_s=_LAYERS * 4.0 * _SIDE**2 / read,
        start_s=start_s,
        memory_bytes=None if gpu else fingerprint.memory_bytes() or None,
        cores=0 if gpu else fingerprint.cores(),
    )


def _products(key, dtype, device, start_s, fastest):
    """((operations of a product, operations per second), …) of a dtype; empty where there are no such products, or
    these are far slower than the fastest."""
    found = []
    for side in _SIDES:
        flops = 2.0 * side**3
        count = max(1, int(_CHAIN_FLOPS / flops))

        def chain(x, count=count):
            y = x
            for _ in range(count):
                y = tf.matmul(y, x)
            return y

        def times(side=side, chain=chain):
            return times_of(chain, [side, side], dtype, device)

        try:
            taken = steady(times, "products of %d x %d in %s" % (side, side, key)) / count
        except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnimplementedError):
            return ()  # no kernel
        speed = flops / max(taken - start_s, taken / 2)
        if key != FLOAT32 and side >= 256 and speed < _CAN_BE_SLOWER * fastest:
            return ()
        found.append((flops, speed))
    return tuple(found)


def _chains(x):
    ends = []
    for number in range(_CHAINS):
        y = x * (1.0 + number)
        for _ in range(_CHAIN - 1):
            y = y + 1.0
        ends.append(y)
    return tf.add_n(ends)


def _computed(x):
    # All are alive until they are added up, as a forward pass keeps what its backward pass takes.
    return tf.add_n([x * (1.0 + number) for number in range(_PASSES)])


def _thin(x):
    y = x[:_ROWS]
    for number in range(_LAYERS):
        y = tf.matmul(y, x[number * _SIDE : (number + 1) * _SIDE])
    return y
