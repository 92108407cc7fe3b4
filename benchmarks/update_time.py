"""How long LAMB's and LARS' updates take, as ratios to Adam's and Momentum's.

    python benchmarks/update_time.py [--rounds 9] [--millions 5]
    python benchmarks/update_time.py --elements 1000 [--variables 1]
    python benchmarks/update_time.py --bert 4

One process with TensorFlow alone: the same variables for each optimizer, with gradients that are computed already. They
take turns with a block of updates each, so that whatever else the machine does meets all. Printed are the medians over
the blocks of the milliseconds of an update, of the clock and of the processor, and their ratios.

Variables are layers of a matrix and a bias with 5 million numbers in all, or some of so many elements each, or those of
so many layers of BERT (768 wide; biases and normalisations have neither decay nor a step of their own there).
"""

import argparse
import statistics
import time

import numpy as np
import tensorflow.compat.v1 as tf

from epl.optimizers import LambOptimizer, LarsOptimizer

UPDATES = 5  # of a block, for a million numbers and more
WIDTH, BERT_WIDTH = 1024, 768
PAIRS = (("lamb", "adam"), ("lars", "momentum"))


def optimizers():
    """dict of name to an optimizer. Excluded are "vector" variables."""
    return {
        "adam": tf.train.AdamOptimizer(1e-3),
        "lamb": LambOptimizer(1e-3, exclude_from_weight_decay=["vector"]),
        "momentum": tf.train.MomentumOptimizer(1e-3, 0.9),
        "lars": LarsOptimizer(1e-3, exclude_from_weight_decay=["vector"]),
    }


def shapes_of(args):
    """[(name, shape)] of the variables."""
    if args.bert:
        wide = 4 * BERT_WIDTH
        matrices = [(BERT_WIDTH, BERT_WIDTH)] * 4 + [(BERT_WIDTH, wide), (wide, BERT_WIDTH)]
        layer = [("kernel", shape) for shape in matrices] + [("vector", (shape[1],)) for shape in matrices]
        return (layer + [("vector", (BERT_WIDTH,))] * 4) * args.bert
    if args.elements:
        return [("w", (args.elements,))] * args.variables
    layers = max(1, round(args.millions * 1e6 / (WIDTH * (WIDTH + 1))))
    return [("w", (WIDTH, WIDTH)), ("w", (WIDTH,))] * layers


def updates(shapes):
    """dict of name to the operation that updates variables of its own."""
    rng, found = np.random.RandomState(0), {}
    values = [rng.normal(size=shape).astype(np.float32) for _, shape in shapes]
    gradients = [tf.get_variable("gradient_%d" % i, initializer=value) for i, value in enumerate(values)]
    for name, optimizer in optimizers().items():
        with tf.variable_scope(name):
            names = ["%s%d" % (shape[0], i) for i, shape in enumerate(shapes)]
            variables = [tf.get_variable(name, initializer=value) for name, value in zip(names, values)]
        found[name] = optimizer.apply_gradients(zip([tf.identity(each) for each in gradients], variables))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--millions", type=float, default=5.0, help="of parameters")
    parser.add_argument("--elements", type=int, help="of each variable instead")
    parser.add_argument("--variables", type=int, default=1, help="of so many elements")
    parser.add_argument("--bert", type=int, help="layers of BERT instead")
    args = parser.parse_args()
    tf.disable_v2_behavior()
    shapes = shapes_of(args)
    todo = updates(shapes)
    count = max(UPDATES, 1000000 * UPDATES // sum(int(np.prod(shape)) for _, shape in shapes))
    count = min(count, 2000)
    clock, processor = {name: [] for name in todo}, {name: [] for name in todo}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for each in todo.values():
            session.run(each)
        for _ in range(args.rounds):
            for name, each in todo.items():
                began, spent = time.perf_counter(), time.process_time()
                for _ in range(count):
                    session.run(each)
                clock[name].append(1e3 * (time.perf_counter() - began) / count)
                processor[name].append(1e3 * (time.process_time() - spent) / count)
    for name, of in PAIRS:
        for what, times in (("clock", clock), ("processor", processor)):
            mine, other = statistics.median(times[name]), statistics.median(times[of])
            print("%-5s %-9s %8.3f ms, %s %8.3f ms: %.2f x" % (name, what, mine, of, other, mine / other))


if __name__ == "__main__":
    main()
