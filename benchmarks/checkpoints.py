"""Training that saves beside it (checkpoint.async), that waits for what is saved, and that does not save at all.

    python benchmarks/checkpoints.py [--megabytes 200] [--step_ms 100] [--every 20] [--saves 5] [--rounds 2]

One process, half of the state variables and half slots of momentum; a step computes products until it takes as long as
it is to. Ways take turns, each in a process of its own. Prints for each how long training took as a ratio to training
that does not save, until the last checkpoint is written; its longest step, with the save behind it, as a ratio to the
median one; and the process's largest memory. What is written may lie in the memory of the system yet, as with
TensorFlow alone.
"""

import argparse
import collections
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

NONE, WAITS, BESIDE = "no saves", "training waits", "checkpoint.async"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--step_ms", type=float, default=100)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", help="where checkpoints are written; default: one that is removed afterwards")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way is not None:
        print(json.dumps(measure(options)))
        return
    found = collections.defaultdict(list)
    for _ in range(options.rounds):
        for way in (NONE, WAITS, BESIDE):
            command = [sys.executable, "-W", "ignore"] + sys.argv + ["--way", way]
            environ = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ, timeout=600)
            if ended.returncode:
                sys.exit(ended.stderr.decode())
            found[way].append(json.loads(ended.stdout.decode().splitlines()[-1]))
    plain = statistics.median(each["seconds"] for each in found[NONE])
    print("%d MB every %d steps" % (options.megabytes, options.every))
    for way, each in found.items():
        print(
            "%-16s %.2f x as long; step %.0f ms, the longest %.2f x that; largest memory %.0f MB"
            % (
                way,
                statistics.median(one["seconds"] for one in each) / plain,
                1e3 * statistics.median(one["step_s"] for one in each),
                statistics.median(one["longest_s"] / one["step_s"] for one in each),
                max(one["memory_kb"] for one in each) / 1024.0,
            )
        )


def measure(options):
    """{"seconds" of all steps and saves, "step_s": of the median one, "longest_s", "memory_kb"} of one way."""
    import tensorflow.compat.v1 as tf

    import epl

    tf.disable_v2_behavior()
    epl.init(epl.Config({"checkpoint.async": options.way == BESIDE}))
    epl.set_default_strategy(epl.replicate(1))
    rows = options.megabytes * 1000000 // 2 // 4 // 1000
    weight = tf.get_variable("weight", [rows, 1000], initializer=tf.zeros_initializer())
    turns, square = tf.placeholder(tf.int32, []), tf.ones([256, 256]) / 256.0
    products = tf.while_loop(lambda i, y: i < turns, lambda i, y: (i + 1, tf.matmul(y, square)), [0, square])[1]
    loss = tf.reduce_mean(tf.square(weight - tf.stop_gradient(products[0, 0])))
    train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    saver = tf.train.Saver(max_to_keep=2)
    threads = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, tf.Session(config=threads) as session:
        session.run(tf.global_variables_initializer())

        def step(number):
            begin = time.perf_counter()
            session.run(train, {turns: number})
            return time.perf_counter() - begin

        least, more = [min(step(number) for _ in range(5)) for number in (0, 100)]
        number = max(0, int(100 * (options.step_ms / 1e3 - least) / (more - least)))
        path = os.path.join(folder, "model")
        if options.way != NONE:  # once, as what is made for it is made once
            saver.save(session, path, 0)
            tf.train.latest_checkpoint(folder)
        steps, began = [], time.perf_counter()
        for place in range(1, options.saves * options.every + 1):
            begin = time.perf_counter()
            step(number)
            if options.way != NONE and place % options.every == 0:
                saver.save(session, path, place)
            steps.append(time.perf_counter() - begin)
        tf.train.latest_checkpoint(folder)  # waits
        seconds = time.perf_counter() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return dict(seconds=seconds, step_s=statistics.median(steps), longest_s=max(steps), memory_kb=memory)


if __name__ == "__main__":
    main()
