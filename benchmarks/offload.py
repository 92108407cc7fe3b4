"""A training step with parameters in host memory and without: its time, and what lies on the device meanwhile.

    python benchmarks/offload.py [--layers 12] [--units 512] [--rows 64] [--steps 40] [--rounds 2]

One process, Adam, the computing device being the second CPU device where parameters lie on the first. Ways take turns.
Prints for each the time of a step as a ratio to that of the first, and, from a traced step, the parameters that lie on
the computing device at the peak: from when a copy is made until the last operation that takes it has ended.
"""

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import time

WAYS = ("", "v0", "v1")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--units", type=int, default=512)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way is not None:
        print(json.dumps(measure(options)))
        return
    found = collections.defaultdict(list)
    for _ in range(options.rounds):
        for way in WAYS:
            command = [sys.executable, "-W", "ignore"] + sys.argv + ["--way", way]
            environ = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ, timeout=600)
            if ended.returncode:
                sys.exit(ended.stderr.decode())
            found[way].append(json.loads(ended.stdout.decode().splitlines()[-1]))
    plain = statistics.median(each["step_s"] for each in found[""])
    for way in WAYS:
        step = statistics.median(each["step_s"] for each in found[way])
        line = "offload.level=%-4r step %6.2f ms, %.2f x" % (way, 1e3 * step, step / plain)
        if way:
            line += "; on the device at the peak %.3f of all variables' %.1f MiB" % (
                max(each["share"] for each in found[way]),
                found[way][0]["bytes"] / 2.0**20,
            )
        print(line)


def measure(options):
    """{"step_s", "bytes" of all variables, "share" of them on the device at the peak} of one way."""
    import numpy as np
    import tensorflow.compat.v1 as tf

    import epl

    tf.disable_v2_behavior()
    epl.init(epl.Config({"offload.level": options.way}))
    epl.set_default_strategy(epl.replicate(1))
    x = tf.placeholder(tf.float32, [options.rows, options.units])
    hidden = x
    for _ in range(options.layers):
        hidden = tf.layers.dense(hidden, options.units, tf.tanh)
    train = tf.train.AdamOptimizer(1e-3).minimize(tf.reduce_mean(tf.square(hidden - x)))
    data = {x: np.random.RandomState(0).normal(size=[options.rows, options.units])}
    sizes = {variable.op.name: 4 * variable.shape.num_elements() for variable in tf.global_variables()}
    threads = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
    with tf.Session(config=threads) as session:
        session.run(tf.global_variables_initializer())
        seconds = []
        for _ in range(5 + options.steps):
            begin = time.perf_counter()
            session.run(train, data)
            seconds.append(time.perf_counter() - begin)
        traced = tf.RunMetadata()
        full = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
        session.run(train, data, options=full, run_metadata=traced)
    total = sum(sizes.values())
    return {"step_s": statistics.median(seconds[5:]), "bytes": total, "share": most_at_once(traced, sizes) / total}


def most_at_once(traced, sizes):
    """Bytes of copies of variables on their way to a device, or on it, at the most."""
    begin, end, users = {}, {}, collections.defaultdict(list)
    for device in traced.step_stats.dev_stats:
        for node in device.node_stats:
            begin[node.node_name] = node.all_start_micros
            end[node.node_name] = node.all_start_micros + node.all_end_rel_micros
    received = []
    for graph in traced.partition_graphs:
        for node in graph.node:
            for text in node.input:
                users[node.device, text.lstrip("^").split(":")[0]].append(node.name)
            sent = node.attr["tensor_name"].s.decode() if node.op in ("_Recv", "_HostRecv") else ""
            if "epl_offload/" in sent:
                received.append((node, sent[sent.index("epl_offload/") :]))
    changes = []
    for node, copy in received:
        of = max((name for name in sizes if "/%s/" % name in copy), key=len)
        changes.append((begin[copy], sizes[of]))
        changes.append((max(end[user] for user in users[node.device, node.name]), -sizes[of]))
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


if __name__ == "__main__":
    main()
