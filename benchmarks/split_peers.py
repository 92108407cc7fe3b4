"""A transformer and a mixture of experts over two devices: epl.split against DTensor (tf2) or mesh-tensorflow (tf1).

    .venv/tf2/bin/python benchmarks/split_peers.py [--rounds 3]
    .venv/tf1/bin/python benchmarks/split_peers.py --mesh_tensorflow FOLDER

FOLDER is where `pip install --no-deps --target FOLDER mesh-tensorflow==0.1.21 future gin-config` has put it. Every
process has two CPU devices, computes the same losses from the same first values (the benchmark ends if they differ by
more than 1e-4), and trains by gradient descent. Each library runs with one thread for an operation and with one for
each core; the faster of the two counts. EPL is timed as one worker with both devices and as two workers with a device
and a core each. Also timed is TensorFlow alone on one device.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import time

import jobs
import numpy as np

DEVICES, RATE, WARM_UP, STEPS = 2, 0.1, 4, 12
BATCH, LENGTH, WIDTH, HEADS, HIDDEN, BLOCKS = 4, 128, 512, 8, 2048, 2
GROUPS, TOKENS, EXPERTS, CAPACITY = 8, 64, 8, 16
LIMIT_S = 600


def transformer_values():
    """First values of the variables, by name."""
    rng, size, found = np.random.RandomState(0), WIDTH // HEADS, {}
    shapes = {"query": [WIDTH, HEADS, size], "key": [WIDTH, HEADS, size], "value": [WIDTH, HEADS, size]}
    shapes.update(mixed=[HEADS, size, WIDTH], up=[WIDTH, HIDDEN], down=[HIDDEN, WIDTH])
    for block in range(BLOCKS):
        for name in sorted(shapes):
            scale = 1.0 / math.sqrt(WIDTH if name != "down" else HIDDEN)
            found["%s_%d" % (name, block)] = rng.normal(scale=scale, size=shapes[name]).astype(np.float32)
    return found


def experts_values():
    rng = np.random.RandomState(0)
    up = rng.normal(scale=1.0 / math.sqrt(WIDTH), size=[EXPERTS, WIDTH, HIDDEN])
    down = rng.normal(scale=1.0 / math.sqrt(HIDDEN), size=[EXPERTS, HIDDEN, WIDTH])
    gate = rng.normal(size=[WIDTH, EXPERTS])
    return {"up": up.astype(np.float32), "down": down.astype(np.float32), "gate": gate.astype(np.float32)}


def inputs(model):
    """(input, what is to come out), of the same shape."""
    rng = np.random.RandomState(1)
    shape = [BATCH, LENGTH, WIDTH] if model == "transformer" else [GROUPS, TOKENS, WIDTH]
    return [rng.normal(size=shape).astype(np.float32) for _ in range(2)]


def transformer(tf, values, x, parts=lambda value, dim: value):
    """`parts(value, dim)` says that a tensor lies in parts of that dimension, or whole where that is None."""

    def normalised(x):
        mean = tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x - mean), -1, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-6)

    for block in range(BLOCKS):
        query, key, value, mixed, up, down = [
            values["%s_%d" % (name, block)] for name in ("query", "key", "value", "mixed", "up", "down")
        ]
        in_heads = [parts(tf.einsum("blw,whd->bhld", x, kernel), 1) for kernel in (query, key, value)]
        scores = tf.nn.softmax(tf.matmul(in_heads[0], in_heads[1], transpose_b=True) / math.sqrt(WIDTH // HEADS))
        attended = tf.einsum("bhld,hdw->blw", tf.matmul(scores, in_heads[2]), mixed)
        x = normalised(x + parts(attended, None))
        hidden = parts(tf.nn.relu(tf.einsum("blw,wf->blf", x, up)), 2)
        x = normalised(x + parts(tf.einsum("blf,fw->blw", hidden, down), None))
    return x


def experts(tf, values, x, parts=lambda value, dim: value):
    """See `transformer`."""
    gates = tf.nn.softmax(tf.einsum("gsm,me->gse", x, values["gate"]))
    chosen = tf.one_hot(tf.argmax(gates, -1), EXPERTS)
    place = (tf.cumsum(chosen, 1) - 1.0) * chosen
    chosen = chosen * tf.cast(place < CAPACITY, tf.float32)
    places = tf.one_hot(tf.cast(tf.reduce_sum(place, -1), tf.int32), CAPACITY)
    routes = tf.expand_dims(chosen, -1) * tf.expand_dims(places, 2)
    weights = tf.expand_dims(gates, -1) * routes
    found = parts(parts(tf.einsum("gsec,gsm->egcm", routes, x), 1), 0)
    found = tf.nn.relu(tf.einsum("egcm,emh->egch", found, values["up"]))
    found = parts(parts(tf.einsum("egch,ehm->egcm", found, values["down"]), 0), 1)
    return x + tf.einsum("gsec,egcm->gsm", weights, found)


MODELS = {"transformer": (transformer, transformer_values), "experts": (experts, experts_values)}


def run_session(kind, model, threads):
    """A function that trains a step with a session, by EPL or (`kind` plain) TensorFlow alone."""
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    options = tf.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=DEVICES)
    compute, first = MODELS[model]
    x, wanted = [tf.constant(value) for value in inputs(model)]

    def variable(name, value):
        return tf.get_variable(name, initializer=tf.constant(value))

    def built(names):
        return {name: variable(name, first()[name]) for name in names}

    def loss(values):
        return tf.reduce_mean(tf.squared_difference(compute(tf, values, x), wanted))

    if kind == "plain":
        loss = loss(built(sorted(first())))
    else:
        import epl

        epl.init(epl.Config({"cluster.colocate_split_and_replicate": True}))
        if model == "transformer":
            with epl.split(DEVICES):
                loss = loss(built(sorted(first())))
        else:
            epl.set_default_strategy(epl.replicate(DEVICES))
            values = built(["gate"])
            with epl.split(DEVICES):
                values.update(built(["up", "down"]))
            loss = loss(values)
    train = tf.train.GradientDescentOptimizer(RATE).minimize(loss)
    session = tf.Session(config=options)
    session.run(tf.global_variables_initializer())
    return lambda: session.run([loss, train])[0]


def run_dtensor(model, threads):
    """The same by DTensor: a mesh of two virtual CPU devices."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(DEVICES)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * DEVICES)
    mesh = dtensor.create_mesh([("shard", DEVICES)], devices=["CPU:%d" % index for index in range(DEVICES)])

    def layout(rank, dim):
        return dtensor.Layout([dtensor.UNSHARDED if dim != each else "shard" for each in range(rank)], mesh)

    def parts(value, dim):
        return dtensor.relayout(value, layout(len(value.shape), dim))

    def placed(value, dim):
        return parts(dtensor.copy_to_mesh(tf.constant(value), layout(value.ndim, None)), dim)

    compute, first = MODELS[model]
    divided = dict(query=1, key=1, value=1, mixed=0, up=1, down=0) if model == "transformer" else dict(up=0, down=0)
    values = {}
    for name, value in sorted(first().items()):
        values[name] = dtensor.DVariable(placed(value, divided.get(name.split("_")[0])))
    x, wanted = [placed(value, None if model == "transformer" else 0) for value in inputs(model)]

    @tf.function
    def step(x, wanted):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.math.squared_difference(compute(tf, values, x, parts), wanted))
        names = sorted(values)
        for name, gradient in zip(names, tape.gradient(loss, [values[name] for name in names])):
            values[name].assign_sub(RATE * gradient)
        return loss

    return lambda: float(dtensor.unpack(step(x, wanted))[0].numpy())


def run_mesh_tensorflow(model, threads):
    """The same by mesh-tensorflow, which names dimensions and says of each whether it is divided."""
    import mesh_tensorflow as mtf
    import tensorflow.compat.v1 as tf

    tf.logging.set_verbosity(tf.logging.ERROR)
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    first = MODELS[model][1]()
    placed = {name: tf.constant(value) for name, value in first.items()}
    width, size = mtf.Dimension("width", WIDTH), mtf.Dimension("size", WIDTH // HEADS)

    def imported(value, *dims):
        return mtf.import_tf_tensor(mesh, tf.constant(value), mtf.Shape(dims))

    def variable(name, *dims):
        def initial(shape, dtype, **_):
            return tf.reshape(placed[name], shape)

        return mtf.get_variable(mesh, name, mtf.Shape(dims), initializer=initial)

    def normalised(x):
        x -= mtf.reduce_mean(x, reduced_dim=width)
        return x * mtf.rsqrt(mtf.reduce_mean(mtf.square(x), reduced_dim=width) + 1e-6)

    if model == "transformer":
        batch, length = mtf.Dimension("batch", BATCH), mtf.Dimension("length", LENGTH)
        others = mtf.Dimension("others", LENGTH)
        heads, hidden = mtf.Dimension("heads", HEADS), mtf.Dimension("hidden", HIDDEN)
        x, wanted = [imported(value, batch, length, width) for value in inputs(model)]
        start = x
        for block in range(BLOCKS):
            query, key, value = [
                mtf.einsum([start, variable("%s_%d" % (name, block), width, heads, size)], [batch, heads, length, size])
                for name in ("query", "key", "value")
            ]
            key, value = [mtf.rename_dimension(each, "length", "others") for each in (key, value)]
            scores = mtf.softmax(
                mtf.einsum([query, key], [batch, heads, length, others]) / math.sqrt(size.size), others
            )
            attended = mtf.einsum([scores, value], [batch, heads, length, size])
            attended = mtf.einsum([attended, variable("mixed_%d" % block, heads, size, width)], [batch, length, width])
            start = normalised(start + attended)
            inner = mtf.relu(mtf.einsum([start, variable("up_%d" % block, width, hidden)], [batch, length, hidden]))
            outer = mtf.einsum([inner, variable("down_%d" % block, hidden, width)], [batch, length, width])
            start = normalised(start + outer)
        rules, found = "heads:all;hidden:all", start
    else:
        groups, tokens = mtf.Dimension("groups", GROUPS), mtf.Dimension("tokens", TOKENS)
        several, whole = mtf.Dimension("experts", EXPERTS), mtf.Dimension("experts_whole", EXPERTS)
        together, places = mtf.Dimension("groups_whole", GROUPS), mtf.Dimension("places", CAPACITY)
        hidden = mtf.Dimension("hidden", HIDDEN)
        x, wanted = [imported(value, groups, tokens, width) for value in inputs(model)]
        gates = mtf.softmax(mtf.einsum([x, variable("gate", width, whole)], [groups, tokens, whole]), whole)
        chosen = mtf.one_hot(mtf.argmax(gates, whole), whole, dtype=tf.float32)
        place = (mtf.cumsum(chosen, tokens) - 1.0) * chosen
        chosen *= mtf.cast(mtf.less(place, float(CAPACITY)), tf.float32)
        places_of = mtf.one_hot(mtf.to_int32(mtf.reduce_sum(place, reduced_dim=whole)), places, dtype=tf.float32)
        routes = chosen * places_of
        weights = gates * routes
        sent = mtf.einsum([routes, x], [whole, groups, places, width])
        sent = mtf.reshape(sent, [several, together, places, width])
        up, down = variable("up", several, width, hidden), variable("down", several, hidden, width)
        inner = mtf.relu(mtf.einsum([sent, up], [several, together, places, hidden]))
        outer = mtf.einsum([inner, down], [several, together, places, width])
        outer = mtf.reshape(outer, [whole, groups, places, width])
        found = x + mtf.einsum([weights, outer], [groups, tokens, width])
        rules = "groups:all;experts:all"
    loss = mtf.reduce_mean(mtf.square(found - wanted))
    variables = graph.trainable_variables
    gradients = mtf.gradients([loss], [each.outputs[0] for each in variables])
    updates = mtf.optimize.SgdOptimizer(RATE).apply_grads(gradients, variables)
    devices = ["CPU:%d" % index for index in range(DEVICES)]
    implementation = mtf.placement_mesh_impl.PlacementMeshImpl("all:%d" % DEVICES, rules, devices)
    lowering = mtf.Lowering(graph, {mesh: implementation})
    value = lowering.export_to_tf_tensor(loss)
    with tf.control_dependencies([value]):
        train = tf.group([lowering.lowered_operation(update) for update in updates])
    options = tf.ConfigProto(
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=DEVICES,
        device_count={"CPU": DEVICES},
    )
    session = tf.Session(config=options)
    session.run(tf.global_variables_initializer())
    session.run(lowering.copy_masters_to_slices())
    return lambda: session.run([value, train])[0]


def measure(kind, model, threads):
    """One process: prints steps per second and the losses of the first steps."""
    if kind == "epl_workers":
        jobs.settle(False)
    if kind in ("plain", "epl", "epl_workers"):
        step = run_session(kind, model, threads)
    else:
        step = (run_dtensor if kind == "dtensor" else run_mesh_tensorflow)(model, threads)
    losses = [float(step()) for _ in range(WARM_UP)]
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    if jobs.rank() == 0:
        print(
            "numbers: " + " ".join("%.6f" % number for number in [1.0 / statistics.median(times)] + losses), flush=True
        )


def started(kind, model, threads, path):
    """What a process of its own measures: [steps per second, losses...]."""
    script = [os.path.abspath(__file__), "--measure", kind, "--model", model, "--threads", str(threads)]
    launch = []
    if kind.startswith("epl"):
        sizes = (1, DEVICES) if kind == "epl" else (DEVICES, 1)
        launch = ["-m", "epl.launch", "--num_workers", str(sizes[0]), "--gpu_per_worker", str(sizes[1])]
        launch += ["--device", "cpu", "--bind", "none"]
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="")
    environment["PYTHONPATH"] = os.pathsep.join([jobs.ROOT] + ([path] if path else []))
    ended = subprocess.run(
        [sys.executable] + launch + script,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=LIMIT_S,
    )
    lines = [line for line in ended.stdout.splitlines() if "numbers: " in line]
    if ended.returncode or not lines:
        sys.exit("%s failed with status %d:\n%s" % (kind, ended.returncode, ended.stdout[-4000:]))
    return [float(number) for number in lines[0].split("numbers: ")[1].split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind; the median counts")
    parser.add_argument("--model", choices=sorted(MODELS), help="only this one")
    parser.add_argument("--mesh_tensorflow", metavar="FOLDER", help="where mesh-tensorflow is; needed on tf1")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure, args.model, args.threads)
    peer = "mesh-tensorflow" if args.mesh_tensorflow else "dtensor"
    kinds, settings = ["plain", "epl", "epl_workers", peer], [1, len(os.sched_getaffinity(0))]
    for model in [args.model] if args.model else sorted(MODELS, reverse=True):
        rates, losses = {}, {}
        for _ in range(args.rounds):
            for threads in settings:
                for kind in kinds:
                    if kind == "epl_workers" and threads > 1:
                        continue  # each has one core
                    found = started(kind, model, threads, args.mesh_tensorflow)
                    rates.setdefault((kind, threads), []).append(found[0])
                    losses[kind] = found[1:]
        for kind in kinds:
            if not np.allclose(losses[kind], losses["plain"], rtol=1e-4):
                sys.exit("%s computes other losses: %s, not %s" % (kind, losses[kind], losses["plain"]))
        medians = {key: statistics.median(each) for key, each in rates.items()}
        best = {kind: max(medians[key] for key in medians if key[0] == kind) for kind in kinds}
        for kind in kinds:
            each = ", ".join("%d: %.2f" % (key[1], medians[key]) for key in sorted(medians) if key[0] == kind)
            print("%-12s %-16s %6.2f steps/s (by threads of an operation: %s)" % (model, kind, best[kind], each))
        ours = max(best["epl"], best["epl_workers"])
        print("%-12s epl / %s %.3f, epl / plain %.3f" % (model, peer, ours / best[peer], ours / best["plain"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
