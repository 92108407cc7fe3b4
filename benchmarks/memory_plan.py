"""What the memory plan estimates of a training step's peak, and what TensorFlow's allocator gives out at the peak.

    python benchmarks/memory_plan.py [--models mlp resnet50 bert lstm moe dcgan] [--ways plain auto zero]

One core, one process, Adam. A device's peak is that of its variables and of what a traced step allocates besides them.
`auto` recomputes (gradient_checkpoint.type), `zero` divides state and gradients over two devices (zero.level="v1").
Some of the order of operations is by chance, and which of two devices is ahead: the highest peak of several sessions
counts.
Prints a line for each model, way and device: measured and estimated peak with the difference, and the same for what is
there besides variables.
"""

import argparse
import collections
import itertools
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import numpy as np  # noqa: E402  the affinity and the log level come first
import recomputation  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

import epl  # noqa: E402
from epl import compiler  # noqa: E402
from epl.capture.record import make_program  # noqa: E402
from epl.communicators import library  # noqa: E402
from epl.plan.facts.names import cloned_name  # noqa: E402
from epl.session.estimated_program import estimate_program, roots_of  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 2.0**20
SESSIONS = 5


def adam(loss, variables=None):
    """An update after those of the moving averages of batch normalisation."""
    optimizer = tf.train.AdamOptimizer(1e-4)
    pairs = optimizer.compute_gradients(loss, variables)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        return optimizer.apply_gradients(pairs)


def resnet50():
    """ResNet-50 on 8 images of 64 x 64."""
    sys.path.insert(0, os.path.join(HERE, "..", "examples", "resnet50"))
    from model import ResNet

    sys.path.pop(0)
    del sys.modules["model"]
    x = tf.reshape(tf.placeholder(tf.float32, [8, 64 * 64 * 3], "x"), [8, 64, 64, 3])
    logits = ResNet(100, training=True)(x)
    return tf.reduce_mean(tf.square(logits))


def moe():
    """A mixture of 8 experts of 256 x 512, the first of which that a row chooses with room computes it; 512 rows."""
    x = tf.placeholder(tf.float32, [512, 256], "x")
    gates = tf.nn.softmax(tf.layers.dense(x, 8))
    chosen = tf.one_hot(tf.argmax(gates, 1), 8)
    place = tf.cumsum(chosen, axis=0, exclusive=True) * chosen
    kept = chosen * tf.cast(place < 96, tf.float32)
    dispatch = tf.expand_dims(kept, -1) * tf.one_hot(tf.cast(tf.reduce_sum(place, 1, keepdims=True), tf.int32), 96)
    combine = dispatch * tf.expand_dims(gates, -1)
    inner = tf.get_variable("inner", [8, 256, 512])
    outer = tf.get_variable("outer", [8, 512, 256])
    rows = tf.einsum("nec,nd->ecd", dispatch, x)
    rows = tf.matmul(tf.nn.relu(tf.matmul(rows, inner)), outer)
    x += tf.einsum("nec,ecd->nd", combine, rows)
    return tf.reduce_mean(tf.square(tf.layers.dense(x, 16)))


def dcgan():
    """The two sides of a DCGAN on 32 images of 32 x 32; returns its training operation."""
    x = tf.placeholder(tf.float32, [32, 32 * 32 * 3], "x")
    real = tf.reshape(x, [32, 32, 32, 3])

    def norm(y):
        return tf.layers.batch_normalization(y, training=True)

    with tf.variable_scope("generator"):
        y = tf.reshape(tf.layers.dense(x[:, :64], 4 * 4 * 128), [32, 4, 4, 128])
        for filters in (64, 32):
            y = tf.nn.relu(norm(tf.layers.conv2d_transpose(y, filters, 5, 2, padding="same")))
        made = tf.tanh(tf.layers.conv2d_transpose(y, 3, 5, 2, padding="same"))

    def judged(images):
        with tf.variable_scope("judge", reuse=tf.AUTO_REUSE):
            y = images
            for filters in (32, 64, 128):
                y = tf.nn.leaky_relu(norm(tf.layers.conv2d(y, filters, 5, 2, padding="same")))
            return tf.layers.dense(tf.layers.flatten(y), 1)

    def loss(logits, label):
        labels = tf.fill([32, 1], label)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))

    fake = judged(made)
    sides = (loss(judged(real), 1.0) + loss(fake, 0.0), "judge"), (loss(fake, 1.0), "generator")
    return tf.group(*[adam(value, tf.trainable_variables(scope)) for value, scope in sides])


MODELS = {
    "mlp": recomputation.mlp,
    "resnet50": resnet50,
    "bert": recomputation.tiny_bert,
    "lstm": recomputation.lstm,
    "moe": moe,
    "dcgan": dcgan,
}
WAYS = {"plain": {}, "auto": {"gradient_checkpoint.type": "auto"}, "zero": {"zero.level": "v1"}}


def built(model):
    """(graph, initialiser) of a model."""
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(1)
        made = MODELS[model]()
        if not isinstance(made, tf.Operation):
            adam(made)
        return graph, tf.global_variables_initializer().name


def measured(program, init):
    """Bytes besides variables at the peak, by device; all copies of the model are run together.

    TensorFlow counts all CPU devices of a process as the first one; whose an operation is, the program tells.
    """
    library.load()
    copies = len(program.plan.mesh.instances)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(program.graph.to_graph_def(tf.GraphDef), name="")
        operations = {op.name: op for op in graph.get_operations()}
        train = [operations[name] for name in roots_of(program)]
        data = {
            op.outputs[0]: np.random.RandomState(0).normal(size=op.outputs[0].shape.as_list())
            for op in operations.values()
            if op.type == "Placeholder"
        }
        # In a job the copies of variables are sent their first values.
        others = [
            tf.raw_ops.Assign(ref=op.outputs[0], value=tf.zeros(op.outputs[0].shape, op.outputs[0].dtype.base_dtype))
            for op in operations.values()
            if op.type == "VariableV2" and cloned_name(op.name, 1) != op.name
        ]
        config = tf.ConfigProto(
            intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, device_count={"CPU": copies}
        )
        with tf.Session(config=config) as session:
            session.run([init] + others)
            session.run(train, data)
            metadata = tf.RunMetadata()
            session.run(train, data, tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), metadata)
    changes = collections.defaultdict(list)
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            known = program.graph.nodes.get(node.node_name)
            name = (known.device if known is not None else "").partition("/device:")[2] or "CPU:0"
            changes[name].extend(
                (record.alloc_micros, record.alloc_bytes)
                for memory in node.memory
                for record in memory.allocation_records
            )
    return {
        name: max(itertools.accumulate([0] + [change for _, change in sorted(found)]))
        for name, found in changes.items()
    }


def run(model, way):
    graph, init = built(model)
    devices = 2 if way == "zero" else 1
    cluster = epl.Cluster(worker_num=1, worker_index=0, gpu_num_per_worker=devices)
    program = compiler.compile(make_program(graph), epl.Config(WAYS[way]), cluster)
    estimated = estimate_program(program)[0]
    runs = [measured(program, init) for _ in range(SESSIONS)]
    for device in sorted(runs[0]):
        peaks = [found[device] for found in runs]
        peak = max(peaks)
        memory = estimated[device]
        lasting = sum(memory.lasting.values())
        besides = memory.peak_bytes - lasting
        print(
            "%-9s %-5s %s measured %7.2f MiB, estimated %7.2f (%+5.1f %%); "
            "besides variables %7.2f, estimated %7.2f (%+5.1f %%); lowest session %7.2f MiB"
            % (
                (model, way, device)
                + _compared(lasting + peak, memory.peak_bytes)
                + _compared(peak, besides)
                + ((lasting + min(peaks)) / MIB,)
            ),
            flush=True,
        )


def _compared(measured, estimated):
    return measured / MIB, estimated / MIB, 100.0 * (estimated - measured) / measured


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--ways", nargs="+", choices=sorted(WAYS), default=list(WAYS))
    options = parser.parse_args()
    tf.disable_v2_behavior()
    epl.init()
    for model in options.models:
        for way in options.ways:
            run(model, way)


if __name__ == "__main__":
    main()
