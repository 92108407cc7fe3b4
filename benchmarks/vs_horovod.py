"""Training throughput of two workers with one core each, against Horovod on the same machine.

    python benchmarks/vs_horovod.py --horovod_python VENV/bin/python [--models mlp cnn] [--rounds 5]

VENV is a virtual environment of the same TensorFlow line with Horovod 0.28.1, built (in about 70 s, cmake is needed) by

    HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 \\
        pip install --no-build-isolation horovod==0.28.1

Jobs of both take turns. Each worker pins itself to one core and trains the same model on batches of 64 of its own.
Printed are the samples per second of both workers together, the median over the rounds, and the ratio of EPL to
Horovod.
"""

import argparse
import os
import statistics
import sys
import time

import jobs

STEPS = {"mlp": 100, "cnn": 100}
WARM_UP = 10


def train(kind, model, favoured):
    """One worker: `kind` is plain, epl or horovod. Worker 0 prints its steps per second."""
    jobs.settle(favoured)
    import models
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    optimizer, after = models.optimizer(), []
    if kind == "epl":
        import epl

        epl.init()
        with epl.replicate(device_count=1):
            loss = models.MODELS[model]()
    else:
        loss = models.MODELS[model]()
    if kind == "horovod":
        import horovod.tensorflow as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(optimizer)
    train_op = optimizer.minimize(loss)
    if kind == "horovod":
        after.append(hvd.broadcast_global_variables(0))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(after)
        for _ in range(WARM_UP):
            session.run(train_op)
        began = time.perf_counter()
        for _ in range(STEPS[model]):
            session.run(train_op)
        if jobs.rank() == 0:
            print("steps per second: %.4f" % (STEPS[model] / (time.perf_counter() - began)), flush=True)


def compare(model, rounds, horovod_python, favoured):
    """Runs jobs of all kinds in turn and prints the comparison; returns it as plain data."""
    rates = {kind: [] for kind in ("plain", "epl", "horovod")}
    for _ in range(rounds):
        for kind in rates:
            script = [os.path.abspath(__file__), "--train", kind, model] + (["--favoured"] if favoured else [])
            steps = jobs.numbers(kind, script, horovod_python, "steps per second:")[0][0]
            rates[kind].append(steps * 64 * (1 if kind == "plain" else jobs.WORKERS))
    plain, with_epl, horovod = (statistics.median(rates[kind]) for kind in ("plain", "epl", "horovod"))
    print(
        "%-4s one worker %8.1f samples/s; %d workers: EPL %8.1f (%.0f %% of ideal), Horovod %8.1f (%.0f %%); ratio %.3f"
        % (
            model,
            plain,
            jobs.WORKERS,
            with_epl,
            50 * with_epl / plain,
            horovod,
            50 * horovod / plain,
            with_epl / horovod,
        ),
        flush=True,
    )
    return {"model": model, "one_worker": plain, "epl": with_epl, "horovod": horovod}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--horovod_python", help="the interpreter of the environment that has Horovod")
    parser.add_argument("--models", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--rounds", type=int, default=5, help="jobs of each kind; the median counts")
    parser.add_argument("--favoured", action="store_true", help="a high weight for all jobs, against other load; root")
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        return train(args.train[0], args.train[1], args.favoured)
    if not args.horovod_python:
        parser.error("--horovod_python is needed; see the top of this file for how to make its environment")
    results = [compare(m, args.rounds, os.path.abspath(args.horovod_python), args.favoured) for m in args.models]
    if args.json:
        jobs.save(args.json, {"training": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
