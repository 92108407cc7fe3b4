"""Pipelines of two workers, one core each: throughput against one core, and the time in which stages are idle.

    python benchmarks/pipelines.py              two equal stages of matrix products, 8 micro-batches, against one core
    python benchmarks/pipelines.py --sleep      stages of operations that sleep: the share of idle time against theory
    python benchmarks/pipelines.py --memory     one process: the peak of memory by number of micro-batches

Plain training and the pipeline take turns; ratios are of medians. With two equal stages and 8 micro-batches a pipeline
can be 2 x 8 / 9 = 1.78 times as fast as one core.
"""

import argparse
import contextlib
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import jobs  # noqa: E402

_LABEL = "numbers:"
# Of this width a micro-batch is multiplied as fast per row as the whole batch; wider products are up to 1.7 times
# slower in eight parts than in one, also in plain TensorFlow: they would measure the library of products, not the
# pipeline.
_WIDTH, _LAYERS, _ROWS, _MICRO_BATCHES = 256, 8, 1024, 8


def products(scope):
    """The loss of equal layers in two stages, and its placeholder."""
    import tensorflow.compat.v1 as tf

    x = rows = tf.placeholder(tf.float32, [None, _WIDTH])
    for stage in range(2):
        with scope(stage):
            for layer in range(_LAYERS // 2):
                x = tf.layers.dense(x, _WIDTH, tf.nn.tanh, name="dense_%d_%d" % (stage, layer))
            if stage == 1:
                loss = tf.reduce_mean(tf.square(x))
    return loss, rows


def sleeps(scope, stages, forward_s, backward_s):
    """The loss of stages that do nothing but sleep."""
    import numpy as np
    import tensorflow.compat.v1 as tf

    def nap(length):
        def sleep(value):
            time.sleep(length)
            return value

        return lambda x: tf.reshape(tf.py_func(sleep, [x], np.float32), [1])

    @tf.custom_gradient
    def stage_of(x):
        y = nap(forward_s)(x)
        return y, lambda dy: nap(backward_s)(dy + 0 * y)  # waits for the forward pass, as any gradient does

    x = tf.reshape(
        tf.get_variable("start", [1]) * tf.reduce_mean(tf.placeholder_with_default(tf.ones([8]), [None])), [1]
    )
    for stage in range(stages):
        with scope(stage):
            x = stage_of(x)
    return tf.reduce_sum(x)


def train(loss, feed, steps, hooks=(), threads=0):
    """Seconds of each step, without the first two; `threads` for operations, 0: as many as cores."""
    import tensorflow.compat.v1 as tf

    train_op = tf.train.GradientDescentOptimizer(1e-3).minimize(loss, tf.train.get_or_create_global_step())
    times, config = [], tf.ConfigProto(inter_op_parallelism_threads=threads)
    with tf.train.MonitoredTrainingSession(config=config, hooks=list(hooks)) as sess:
        for step in range(steps + 2):
            began = time.perf_counter()
            sess.run(train_op, feed)
            times.append(time.perf_counter() - began)
    return times[2:]


def work(options):
    """One process of a measured job."""
    if options.mode != "sleep":
        jobs.settle(options.favoured)
    import numpy as np
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    if options.mode == "plain":
        loss, rows = products(lambda stage: _same())
        feed = {rows: np.random.RandomState(0).normal(size=[_ROWS * _MICRO_BATCHES, _WIDTH])}
        return [statistics.median(train(loss, feed, options.steps))]
    import epl

    config = {"pipeline.num_micro_batch": options.micro_batches, "pipeline.strategy": options.strategy}
    epl.init(epl.Config(config))
    scope = lambda stage: epl.replicate(device_count=1, name="stage_%d" % stage)  # noqa: E731
    if options.mode == "pipeline":
        loss, rows = products(scope)
        feed = {rows: np.random.RandomState(0).normal(size=[_ROWS * _MICRO_BATCHES, _WIDTH])}
        return [statistics.median(train(loss, feed, options.steps))]
    if options.mode == "memory":
        hook = epl.profiler.memory_profiler_hook.MemoryProfilerHook(options.folder)
        with epl.replicate(device_count=1):
            loss, rows = products(lambda stage: _same())
        feed = {rows: np.random.RandomState(0).normal(size=[_ROWS * options.micro_batches, _WIDTH])}
        train(loss, feed, 2, [hook])
        return [max(hook.peaks.values())]
    hook = epl.profiler.schedule.ScheduleHook(options.folder)
    train(sleeps(scope, jobs.WORKERS, options.nap, 2 * options.nap), None, 3, [hook], threads=8)
    return [hook.timeline.bubble] if hook.timeline is not None else []


def _same():
    return contextlib.suppress()


def run(mode, options, **changed):
    """The number that a job prints."""
    values = dict(vars(options), mode=mode, **changed)
    script = [os.path.abspath(__file__), "--mode", mode]
    for key in ("steps", "micro_batches", "strategy", "nap", "folder"):
        script += ["--%s" % key, str(values[key])]
    script += ["--favoured"] if options.favoured else []
    kind = "plain" if mode in ("plain", "memory") else "epl"
    return jobs.numbers(kind, script, None, _LABEL)[0][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("plain", "pipeline", "sleep", "memory"), help=argparse.SUPPRESS)
    parser.add_argument("--sleep", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3, help="times that both take their turn")
    parser.add_argument("--micro_batches", type=int, default=_MICRO_BATCHES)
    parser.add_argument("--strategy", default="PreferBackward")
    parser.add_argument("--nap", type=float, default=0.05, help="seconds that a forward pass sleeps")
    parser.add_argument("--folder", default=os.path.join("/tmp", "epl_pipelines"), help="for pictures")
    parser.add_argument("--favoured", action="store_true", help="weight against other programs (root)")
    options = parser.parse_args()
    if options.mode:
        found = work(options)
        if found:
            print(_LABEL, *("%.6f" % number for number in found))
        return
    if options.sleep:
        for strategy in ("PreferForward", "PreferBackward"):
            for micro_batches in (2, 4, 8):
                theory = (jobs.WORKERS - 1) / (micro_batches + jobs.WORKERS - 1)
                idle = run("sleep", options, strategy=strategy, micro_batches=micro_batches)
                print(
                    "%-14s %d micro-batches: idle %.4f, theory %.4f, ratio %.3f"
                    % (strategy, micro_batches, idle, theory, idle / theory)
                )
        return
    if options.memory:
        peaks = [run("memory", options, micro_batches=m) for m in (1, 2, 8)]
        print("peak of 1, 2, 8 micro-batches: %s bytes, 8 against 2: %.3f" % (peaks, peaks[2] / peaks[1]))
        return
    plain, pipeline = [], []
    for _ in range(options.rounds):
        plain.append(run("plain", options))
        pipeline.append(run("pipeline", options))
    ratio = statistics.median(plain) / statistics.median(pipeline)
    print("one core %.4f s, pipeline of two %.4f s a step: %.3f x" % (min(plain), min(pipeline), ratio))


if __name__ == "__main__":
    main()
