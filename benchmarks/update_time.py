"""How long LAMB's and LARS' updates take, as ratios to Adam's and Momentum's.

    python benchmarks/update_time.py [--rounds 9] [--millions 5]

One process with TensorFlow alone: the same variables for each optimizer, with gradients that are computed already. They
take turns with a block of updates each, so that whatever else the machine does meets all. Printed are the medians over
the blocks of the milliseconds of an update, of the clock and of the processor, and their ratios.
"""

import argparse
import statistics
import time

import numpy as np
import tensorflow.compat.v1 as tf

from epl.optimizers import LambOptimizer, LarsOptimizer

UPDATES = 5  # of a block
WIDTH = 1024
PAIRS = (("lamb", "adam"), ("lars", "momentum"))


def optimizers():
    return {
        "adam": tf.train.AdamOptimizer(1e-3),
        "lamb": LambOptimizer(1e-3),
        "momentum": tf.train.MomentumOptimizer(1e-3, 0.9),
        "lars": LarsOptimizer(1e-3),
    }


def updates(millions):
    """dict of name to the operation that updates variables of its own, layers of a matrix and a bias."""
    layers = max(1, round(millions * 1e6 / (WIDTH * (WIDTH + 1))))
    rng, found = np.random.RandomState(0), {}
    values = [rng.normal(size=shape).astype(np.float32) for shape in [(WIDTH, WIDTH), (WIDTH,)] * layers]
    gradients = [tf.get_variable("gradient_%d" % i, initializer=value) for i, value in enumerate(values)]
    for name, optimizer in optimizers().items():
        with tf.variable_scope(name):
            variables = [tf.get_variable("w%d" % i, initializer=value) for i, value in enumerate(values)]
        found[name] = optimizer.apply_gradients(zip([tf.identity(each) for each in gradients], variables))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--millions", type=float, default=5.0, help="of parameters")
    args = parser.parse_args()
    tf.disable_v2_behavior()
    todo = updates(args.millions)
    clock, processor = {name: [] for name in todo}, {name: [] for name in todo}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for each in todo.values():
            session.run(each)
        for _ in range(args.rounds):
            for name, each in todo.items():
                began, spent = time.perf_counter(), time.process_time()
                for _ in range(UPDATES):
                    session.run(each)
                clock[name].append(1e3 * (time.perf_counter() - began) / UPDATES)
                processor[name].append(1e3 * (time.process_time() - spent) / UPDATES)
    for name, of in PAIRS:
        for what, times in (("clock", clock), ("processor", processor)):
            mine, other = statistics.median(times[name]), statistics.median(times[of])
            print("%-5s %-9s %7.2f ms, %s %7.2f ms: %.2f x" % (name, what, mine, of, other, mine / other))


if __name__ == "__main__":
    main()
