"""What the execution.* keys do to a step on one device, as a ratio to TensorFlow's defaults.

    python benchmarks/execution.py [--rounds 9] [--models mlp cnn normed]
    python benchmarks/execution.py --steps_per_run [--rounds 3]
    python benchmarks/execution.py --fetch_every [--rounds 3]
    python benchmarks/execution.py --xla [--models mlp bert]
    python benchmarks/execution.py --threads [--models mlp cnn]

A process for each setting, as TensorFlow's threads belong to a process, on the same cores; they take turns with a block
of steps each, so that whatever else the machine does meets all. Printed are the medians of the blocks, and the seconds
of the first step, in which graphs are optimised and compiled.

With --steps_per_run: two workers train a small model, of which a step takes a fraction of a millisecond, with one and
with many steps in a call; jobs take turns. Printed are the medians of the microseconds of a step.

With --fetch_every: the same workers, whose program fetches its loss, merged over the workers, in every call, with the
loss of every and of every hundredth step, and fetching nothing.

With --xla: the same with XLA's clustering, by TensorFlow alone and by execution.xla.

With --threads: two workers, none of which has cores of its own (`epl-launch --bind none`), with TensorFlow's number of
threads, which is that of all cores for each of them, and with one.

With --graph_optimizer: plain TensorFlow with one of its graph optimizer's switches off at a time, as ratios to all on.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import jobs

SETTINGS = (
    {},
    {"execution.num_threads": 1},
    {"execution.inter_op_threads": 1},
    {"execution.xla": True},
)
STEPS = {"mlp": 4, "cnn": 5, "normed": 5, "bert": 4}  # of a block
USUAL = ("cnn", "mlp", "normed")


# Of a child that runs without EPL.
PLAIN_XLA = "plain TensorFlow with XLA"


def serve(model, config):
    """The child: for each line with a number of steps, prints the seconds that these took."""
    import models
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    proto = tf.ConfigProto()
    if config == PLAIN_XLA:
        options = proto.graph_options.optimizer_options
        options.global_jit_level = tf.OptimizerOptions.ON_1
        if "cpu_global_jit" in options.DESCRIPTOR.fields_by_name:
            options.cpu_global_jit = True
    else:
        import epl

        epl.init(epl.Config(config))
    loss = models.MODELS[model]()
    fetches = [loss, models.optimizer().minimize(loss)]
    with tf.Session(config=proto) as session:
        session.run(tf.global_variables_initializer())
        for line in sys.stdin:
            began = time.perf_counter()
            for _ in range(int(line)):
                session.run(fetches)
            print("seconds %.9f" % (time.perf_counter() - began), flush=True)


GRAPH_OPTIMIZERS = (
    "remapping",
    "layout_optimizer",
    "arithmetic_optimization",
    "constant_folding",
    "dependency_optimization",
    "loop_optimization",
    "function_optimization",
    "shape_optimization",
    "disable_meta_optimizer",
)


def serve_graph_optimizer(model, rounds):
    """The child: all sessions in one process, which take turns; prints the ratios."""
    import models
    import tensorflow.compat.v1 as tf
    from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

    tf.disable_v2_behavior()
    sessions = {}
    for name in ("",) + GRAPH_OPTIMIZERS:
        proto = tf.ConfigProto()
        if name:
            off = True if name.startswith("disable") else RewriterConfig.OFF
            setattr(proto.graph_options.rewrite_options, name, off)
        with tf.Graph().as_default():
            tf.set_random_seed(1)
            loss = models.MODELS[model]()
            fetches = [loss, models.optimizer().minimize(loss)]
            session = tf.Session(config=proto)
            session.run(tf.global_variables_initializer())
            for _ in range(2):  # to warm up
                session.run(fetches)
            sessions[name] = (session, fetches, [])
    for _ in range(rounds):
        for session, fetches, seconds in sessions.values():
            began = time.perf_counter()
            for _ in range(STEPS[model]):
                session.run(fetches)
            seconds.append((time.perf_counter() - began) / STEPS[model])
    medians = {name: statistics.median(seconds) for name, (_, _, seconds) in sessions.items()}
    for name in GRAPH_OPTIMIZERS:
        print("%-6s without %-24s ratio %.3f" % (model, name, medians[name] / medians[""]), flush=True)


MANY = 100  # steps in a call, or from one fetch to the next
_TIMED_STEPS = 3000


def serve_worker(config, fetches_loss):
    """A worker: prints the microseconds of a step."""
    jobs.settle(favoured=False)
    import tensorflow.compat.v1 as tf  # after the affinity, from which TensorFlow takes the number of its threads

    import epl

    tf.disable_v2_behavior()
    epl.init(epl.Config(config))
    rows = tf.data.Dataset.from_tensors((tf.ones([8, 16]), tf.ones([8, 1]))).repeat()
    x, y = tf.data.make_one_shot_iterator(rows).get_next()
    loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1) - y))
    todo = [tf.train.GradientDescentOptimizer(0.01).minimize(loss)]
    if fetches_loss:
        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        todo.append(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for steps in (MANY, _TIMED_STEPS):  # the first ones to warm up
            began = time.perf_counter()
            for _ in range(steps // config.get("execution.steps_per_run", 1)):
                session.run(todo)
        if jobs.rank() == 0:
            print("microseconds %.2f" % ((time.perf_counter() - began) / _TIMED_STEPS * 1e6), flush=True)


def serve_beside(model, config):
    """A worker that shares all cores with the others: prints the milliseconds of a step, and of all its threads."""
    import models
    import tensorflow.compat.v1 as tf

    import epl

    tf.disable_v2_behavior()
    epl.init(epl.Config(config))
    train = models.optimizer().minimize(models.MODELS[model]())
    clock, processor = [], []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(_BLOCKS):  # the first one to warm up
            began, spent = time.perf_counter(), time.process_time()
            for _ in range(STEPS[model]):
                session.run(train)
            clock.append((time.perf_counter() - began) / STEPS[model])
            processor.append((time.process_time() - spent) / STEPS[model])
    if jobs.rank() == 0:
        medians = tuple(1e3 * statistics.median(seconds[1:]) for seconds in (clock, processor))
        print("milliseconds %.3f %.3f" % medians, flush=True)


_BLOCKS = 9
THREADS = ({}, {"execution.num_threads": 1}, {"execution.inter_op_threads": 1})
THREADS += ({"execution.num_threads": 1, "execution.inter_op_threads": 1},)


def measure_threads(model, rounds):
    """Prints what a step of two workers without cores of their own takes; jobs take turns."""
    taken = [[] for _ in THREADS]
    for _ in range(rounds):
        for found, config in zip(taken, THREADS):
            script = [os.path.abspath(__file__), "--serve_beside", model, json.dumps(config)]
            found += jobs.numbers("epl", script, None, "milliseconds")
    medians = [tuple(map(statistics.median, zip(*found))) for found in taken]
    for config, (clock, processor) in zip(THREADS, medians):
        name = " ".join("%s=%s" % item for item in config.items()) or "TensorFlow's defaults"
        ratios = clock / medians[0][0], processor / medians[0][1]
        print("two workers, %-6s %s" % (model, name))
        print(
            "  %8.2f ms a step, ratio %.3f; of processors %8.2f ms, ratio %.3f"
            % (clock, ratios[0], processor, ratios[1])
        )


def measure_workers(rounds, settings):
    """Prints, for two workers, the microseconds of a step with each of the settings, and the ratio to the first one.

    Args:
      settings: list of (what it is, configuration, whether the program fetches its loss).
    """
    taken = [[] for _ in settings]
    for _ in range(rounds):
        for found, (_, config, fetches_loss) in zip(taken, settings):
            script = [os.path.abspath(__file__), "--serve_worker", json.dumps(config)]
            found += jobs.numbers("epl", script + (["--fetches_loss"] if fetches_loss else []), None, "microseconds")[0]
    medians = [statistics.median(found) for found in taken]
    for (what, _, _), median in zip(settings, medians):
        print("two workers, %-40s %6.0f us a step, %.2f x the steps per second" % (what, median, medians[0] / median))


BY_STEPS_PER_RUN = [("one step in a call", {}, False)]
BY_STEPS_PER_RUN.append(("execution.steps_per_run=%d" % MANY, {"execution.steps_per_run": MANY}, False))
BY_FETCH_EVERY = [("the loss of every step", {}, True)]
BY_FETCH_EVERY.append(("execution.fetch_every=%d" % MANY, {"execution.fetch_every": MANY}, True))
BY_FETCH_EVERY.append(("no loss", {}, False))


class Child(object):
    """A process that measures blocks of steps."""

    def __init__(self, model, config):
        # TensorFlow 1.15 has no other switch for clusters on CPUs.
        environ = dict(os.environ, TF_XLA_FLAGS="--tf_xla_cpu_global_jit") if config == PLAIN_XLA else None
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", model, json.dumps(config)],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            universal_newlines=True,
        )

    def seconds(self, steps):
        self._process.stdin.write("%d\n" % steps)
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1]) / steps
        raise RuntimeError("a measuring process ended with status %s" % self._process.wait())

    def close(self):
        self._process.stdin.close()
        self._process.wait(120)  # XLA's threads take their time to end


def measure(model, rounds, settings=SETTINGS):
    """[(seconds of the first step, median seconds of a step)] for the settings."""
    children = [Child(model, config) for config in settings]
    first = [child.seconds(1) for child in children]
    for child in children:
        child.seconds(STEPS[model])  # warm up
    blocks = [[child.seconds(STEPS[model]) for child in children] for _ in range(rounds)]
    for child in children:
        child.close()
    return list(zip(first, map(statistics.median, zip(*blocks))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each process")
    parser.add_argument("--models", nargs="+", default=USUAL, choices=sorted(STEPS))
    parser.add_argument("--xla", action="store_true", help="execution.xla against TensorFlow alone with XLA instead")
    parser.add_argument("--steps_per_run", action="store_true", help="several steps in a call of two workers instead")
    parser.add_argument("--fetch_every", action="store_true", help="what fetching a merged loss takes instead")
    parser.add_argument("--graph_optimizer", action="store_true", help="the graph optimizer's switches instead")
    parser.add_argument("--serve_graph_optimizer", choices=sorted(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--threads", action="store_true", help="threads of workers without cores of their own instead")
    parser.add_argument("--serve_beside", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--serve_worker", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--fetches_loss", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_worker is not None:
        return serve_worker(args.serve_worker, args.fetches_loss)
    if args.serve_graph_optimizer:
        return serve_graph_optimizer(args.serve_graph_optimizer, args.rounds)
    if args.serve_beside:
        return serve_beside(args.serve_beside[0], json.loads(args.serve_beside[1]))
    if args.serve:
        return serve(args.serve[0], json.loads(args.serve[1]))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if args.steps_per_run or args.fetch_every:
        return measure_workers(args.rounds, BY_STEPS_PER_RUN if args.steps_per_run else BY_FETCH_EVERY)
    for model in args.models:
        if args.threads:
            measure_threads(model, args.rounds)
            continue
        if args.graph_optimizer:
            script = [sys.executable, __file__, "--serve_graph_optimizer", model, "--rounds", str(args.rounds)]
            subprocess.run(script, check=True)
            continue
        if args.xla:
            (_, alone), (_, ours) = measure(model, args.rounds, (PLAIN_XLA, {"execution.xla": True}))
            names = model, ours * 1e3, alone * 1e3, alone / ours
            print("%-6s %8.2f ms a step, TensorFlow alone %8.2f ms: %.3f of its speed" % names, flush=True)
            continue
        results = measure(model, args.rounds)
        for config, (first, step) in zip(SETTINGS, results):
            name = " ".join("%s=%s" % item for item in config.items()) or "TensorFlow's defaults"
            ratio = step / results[0][1]
            print("%-6s %-28s %8.2f ms a step, ratio %.3f; first %.2f s" % (model, name, step * 1e3, ratio, first))
    return 0


if __name__ == "__main__":
    sys.exit(main())
