"""Memory and time of a training step with recomputation and without, and what the memory plan estimates of each.

    python benchmarks/recomputation.py [--models layers bert] [--steps 5] [--limits 50 70]
                                       [--gradient_checkpointing PATH]

One core, one process. Memory is what TensorFlow's CPU allocator gives out in a traced step besides variables, at the
peak; of this, activations are what is left without the gradients of the variables. `--limits`: instead of "auto", with
gradient_checkpoint.memory_limit_mb at so many percent of the plain peak. `--gradient_checkpointing`: a copy
of https://github.com/cybertronai/gradient-checkpointing, whose "memory" mode joins the comparison (TensorFlow 1).
Prints a line for each model and way, with ratios to the plain one.
"""

import argparse
import itertools
import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import numpy as np  # noqa: E402  the affinity and the log level come first
import tensorflow.compat.v1 as tf  # noqa: E402

import epl  # noqa: E402
from epl import compiler  # noqa: E402
from epl.capture.record import make_program  # noqa: E402
from epl.session.estimated_program import estimate_program  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 2.0**20


def layers():
    """48 equal layers of 128 units, batch 1024."""
    x = tf.placeholder(tf.float32, [1024, 128], "x")
    for _ in range(48):
        x = tf.layers.dense(x, 128, tf.tanh)
    return tf.reduce_mean(tf.square(x))


def bert(count=12):
    """BERT of 12 layers, 128 wide, with 4 heads, on 8 rows of 64 bytes."""
    sys.path.insert(0, os.path.join(HERE, "..", "examples", "bert_pipeline"))
    import model

    tokens = tf.cast(tf.abs(tf.placeholder(tf.float32, [8, 64], "x")) * 50, tf.int32) % 256
    x = model.embed(tokens, 128)
    for layer in range(count):
        x = model.transformer_layer(x, 4, "layer_%d" % layer)
    return model.masked_loss(x, tokens, tf.ones_like(tokens, tf.float32))[0]


def tiny_bert():
    """The same of 4 layers."""
    return bert(4)


def mlp():
    """Four hidden layers of 512, batch 256."""
    x = tf.placeholder(tf.float32, [256, 512], "x")
    for _ in range(4):
        x = tf.layers.dense(x, 512, tf.nn.relu)
    return tf.reduce_mean(tf.square(tf.layers.dense(x, 10)))


def cnn():
    """Four convolutions with batch normalisation and a dense layer on 32 images of 32 x 32."""
    x = tf.reshape(tf.placeholder(tf.float32, [32, 32 * 32 * 3], "x"), [32, 32, 32, 3])
    for filters in (16, 16, 32, 32):
        x = tf.layers.conv2d(x, filters, 3, padding="same", use_bias=False)
        x = tf.nn.relu(tf.layers.batch_normalization(x, training=True))
    return tf.reduce_mean(tf.square(tf.layers.dense(tf.layers.flatten(x), 10)))


def lstm():
    """An LSTM of 128 units, unrolled over 20 steps of 64 rows."""
    x = tf.placeholder(tf.float32, [64, 20 * 64], "x")
    inputs = tf.unstack(tf.reshape(x, [64, 20, 64]), axis=1)
    outputs, _ = tf.nn.static_rnn(tf.nn.rnn_cell.LSTMCell(128), inputs, dtype=tf.float32)
    return tf.reduce_mean(tf.square(tf.layers.dense(tf.concat(outputs, 0), 64)))


def dynamic_lstm():
    """Four layers of `tf.nn.dynamic_rnn` with 128 units over 40 steps of 64 rows."""
    x = tf.reshape(tf.placeholder(tf.float32, [64, 40 * 128], "x"), [64, 40, 128])
    for layer in range(4):
        cell = tf.nn.rnn_cell.BasicLSTMCell(128)
        x, _ = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32, scope="layer_%d" % layer)
    return tf.reduce_mean(tf.square(x))


MODELS = {
    "layers": layers,
    "bert": bert,
    "tiny_bert": tiny_bert,
    "mlp": mlp,
    "cnn": cnn,
    "lstm": lstm,
    "dynamic_lstm": dynamic_lstm,
}
AUTO = {"gradient_checkpoint.type": "auto"}


def built(model, peer=None):
    """(graph, training operation, initialiser, bytes of trained variables) of a model with Adam."""
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(1)
        loss = MODELS[model]()
        optimizer, variables = tf.train.AdamOptimizer(1e-4), tf.trainable_variables()
        if peer:
            pairs = list(zip(peer(loss, variables, checkpoints="memory"), variables))
        else:
            pairs = optimizer.compute_gradients(loss, variables)
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(updates):
            train = optimizer.apply_gradients(pairs)
        init = tf.global_variables_initializer()
        size = sum(4 * int(np.prod(v.shape.as_list())) for v in variables)
    return graph, train.name, init.name, size


def measured(graph_def, train, init, steps):
    """(bytes besides variables at the peak, seconds of a step) of a GraphDef, by plain TensorFlow."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        x = graph.get_tensor_by_name("x:0")
        data = {x: np.random.RandomState(0).normal(size=x.shape.as_list()).astype(np.float32)}
        threads = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        with tf.Session(config=threads) as session:
            session.run(init)
            session.run(train, data)
            metadata = tf.RunMetadata()
            session.run(train, data, tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), metadata)
            times = []
            for _ in range(steps):
                began = time.perf_counter()
                session.run(train, data)
                times.append(time.perf_counter() - began)
    changes = sorted(
        (record.alloc_micros, record.alloc_bytes)
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        for memory in node.memory
        for record in memory.allocation_records
    )
    return max(itertools.accumulate(change for _, change in changes)), statistics.median(times)


def compiled(graph, config):
    """(Program of one worker with one device, seconds that it took)."""
    began = time.perf_counter()
    cluster = epl.Cluster(worker_num=1, worker_index=0, gpu_num_per_worker=1)
    program = compiler.compile(make_program(graph), epl.Config(config), cluster)
    return program, time.perf_counter() - began


def ways_of(limits, plain, peer):
    """(name, configuration) of each way, the plain one first; `plain` gives its peak in bytes once that is known."""
    yield "plain", {}
    for part in limits:
        yield "%g %%" % part, dict(AUTO, **{"gradient_checkpoint.memory_limit_mb": part / 100.0 * plain() / MIB})
    if not limits:
        yield "auto", AUTO
    if peer:
        yield "peer", None


def run(model, steps, limits, peer):
    graph, train, init, size = built(model)
    plain = None
    for way, config in ways_of(limits, lambda: plain[0], peer):
        note = ""
        if config is None:
            began = time.perf_counter()
            other, train, init, size = built(model, peer)
            taken = time.perf_counter() - began
            graph_def = other.as_graph_def()
        else:
            program, taken = compiled(graph, config)
            graph_def = program.graph.to_graph_def(tf.GraphDef)
            (memory,) = estimate_program(program)[0].values()
            expected = memory.peak_bytes - sum(memory.lasting.values())
        peak, seconds = measured(graph_def, train, init, steps)
        if config is not None:
            note = ", estimated %7.2f MiB (%+5.1f %%)" % (expected / MIB, 100.0 * (expected - peak) / peak)
        plain = plain or (peak, seconds)
        print(
            "%-9s %-5s peak %7.2f MiB (%.2f x, activations %.2f x)%s, step %7.1f ms (%.2f x), rewriting %.2f s"
            % (
                model,
                way,
                peak / MIB,
                peak / float(plain[0]),
                max(0, peak - size) / float(max(1, plain[0] - size)),
                note,
                1000 * seconds,
                seconds / plain[1],
                taken,
            ),
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=["layers", "bert"])
    parser.add_argument("--steps", type=int, default=5, help="steps whose time is taken (default: 5)")
    parser.add_argument("--limits", nargs="+", type=float, default=[], metavar="PERCENT", help="of the plain peak")
    parser.add_argument("--gradient_checkpointing", metavar="PATH", help="a copy of cybertronai's repository")
    options = parser.parse_args()
    tf.disable_v2_behavior()
    peer = None
    if options.gradient_checkpointing:
        sys.path.insert(0, options.gradient_checkpointing)
        import memory_saving_gradients

        peer = memory_saving_gradients.gradients
    epl.init()
    for model in options.models:
        run(model, options.steps, options.limits, peer)


if __name__ == "__main__":
    main()
