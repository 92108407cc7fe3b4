"""Training throughput of two workers with one core each, against Horovod on the same machine.

    python benchmarks/vs_horovod.py --horovod_python VENV/bin/python [--models mlp cnn resnet20] [--rounds 5]

VENV is a virtual environment of the same TensorFlow line with Horovod 0.28.1, built (in about 70 s, cmake is needed) by

    HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 \\
        pip install --no-build-isolation horovod==0.28.1

Jobs of both take turns. Each worker pins itself to one core and trains the same model on batches of 64 of its own.
Printed are the samples per second of both workers together, the median over the rounds, and the ratio of EPL to
Horovod. What the steps of one machine take differs from one to the next, so workers that wait for each other lose time
even if they exchange nothing: as much as `waiting only` shows, two plain workers that meet after each step.

All run as their users start them, so only EPL's workers have the variables of malloc that epl-launch sets. With
MALLOC_ARENA_MAX=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1 set for this program, all have them.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time

import jobs

STEPS = {"mlp": 100, "cnn": 100, "resnet20": 20}
WARM_UP = 5
_LIMIT_S = 300


def train(kind, model, favoured, after_step=lambda: None):
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
            after_step()
        began = time.perf_counter()
        for _ in range(STEPS[model]):
            session.run(train_op)
            after_step()
        if jobs.rank() == 0:
            print("steps per second: %.4f" % (STEPS[model] / (time.perf_counter() - began)), flush=True)


def train_waiting(model, favoured):
    """All workers of plain TensorFlow, in processes of this one; after each step they wait for each other."""
    processes = multiprocessing.get_context("fork")
    barrier = processes.Barrier(jobs.WORKERS, timeout=_LIMIT_S)

    def work(index):
        os.environ["TF_CONFIG"] = json.dumps({"task": {"index": index}})
        train("plain", model, favoured, barrier.wait)

    workers = [processes.Process(target=work, args=(index,)) for index in range(jobs.WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(abs(worker.exitcode) for worker in workers)


def compare(model, rounds, horovod_python, favoured):
    """Runs jobs of all kinds in turn and prints the comparison; returns it as plain data."""
    rates = {kind: [] for kind in ("plain", "waiting", "epl", "horovod")}
    for _ in range(rounds):
        for kind in rates:
            script = [os.path.abspath(__file__), "--train", kind, model] + (["--favoured"] if favoured else [])
            steps = jobs.numbers(kind, script, horovod_python, "steps per second:")[0][0]
            rates[kind].append(steps * 64 * (1 if kind == "plain" else jobs.WORKERS))
    plain, waiting, with_epl, horovod = (statistics.median(rates[kind]) for kind in rates)
    print("%s: one worker %.1f samples/s; %d workers, and their part of ideal:" % (model, plain, jobs.WORKERS))
    for name, rate in (("waiting only", waiting), ("EPL", with_epl), ("Horovod", horovod)):
        print("  %-12s %8.1f samples/s %5.0f %%" % (name, rate, 100 * rate / plain / jobs.WORKERS))
    print("  EPL / Horovod %.3f" % (with_epl / horovod), flush=True)
    return {"model": model, "one_worker": plain, "waiting": waiting, "epl": with_epl, "horovod": horovod}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--horovod_python", help="the interpreter of the environment that has Horovod")
    parser.add_argument("--models", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--rounds", type=int, default=5, help="jobs of each kind; the median counts")
    parser.add_argument("--favoured", action="store_true", help="a high weight for all jobs, against other load; root")
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train and args.train[0] == "waiting":
        return train_waiting(args.train[1], args.favoured)
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
