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
import re
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
WORKERS = 2
STEPS = {"mlp": 60, "cnn": 60}
WARM_UP = 10


def train(kind, model, rank):
    """One worker: `kind` is plain, epl or horovod. Rank 0 prints its steps per second."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    import models
    import tensorflow.compat.v1 as tf  # after the affinity, from which TensorFlow takes the number of its threads

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
        if rank == 0:
            print("steps per second: %.4f" % (STEPS[model] / (time.perf_counter() - began)), flush=True)


def command(kind, model, horovod_python):
    """The command line that starts the job."""
    script = [os.path.abspath(__file__), "--train", kind, model]
    if kind == "plain":
        return [sys.executable] + script
    if kind == "epl":
        return [
            sys.executable,
            "-m",
            "epl.launch",
            "--num_workers",
            str(WORKERS),
            "--gpu_per_worker",
            "1",
            "--device",
            "cpu",
            "--bind",
            "none",
        ] + script
    launcher = os.path.join(os.path.dirname(horovod_python), "horovodrun")
    return [launcher, "-np", str(WORKERS), "--gloo", horovod_python] + script


def samples_per_second(kind, model, horovod_python):
    """Of all workers together."""
    path = [os.path.dirname(HERE)] + [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    environ = dict(os.environ, PYTHONPATH=os.pathsep.join(path), TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="")
    ended = subprocess.run(
        command(kind, model, horovod_python),
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=600,
    )
    found = re.search(r"steps per second: ([0-9.]+)", ended.stdout)
    if ended.returncode or not found:
        sys.exit("the %s job failed with status %d:\n%s" % (kind, ended.returncode, ended.stdout[-4000:]))
    return float(found.group(1)) * 64 * (1 if kind == "plain" else WORKERS)


def compare(model, rounds, horovod_python):
    kinds = ("plain", "epl", "horovod")
    rates = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            rates[kind].append(samples_per_second(kind, model, horovod_python))
    plain, with_epl, horovod = (statistics.median(rates[kind]) for kind in kinds)
    print(
        "%-4s one worker %8.1f samples/s; %d workers: EPL %8.1f (%.0f %% of ideal), Horovod %8.1f (%.0f %%); ratio %.3f"
        % (model, plain, WORKERS, with_epl, 50 * with_epl / plain, horovod, 50 * horovod / plain, with_epl / horovod),
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--horovod_python", help="the interpreter of the environment that has Horovod")
    parser.add_argument("--models", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--rounds", type=int, default=5, help="jobs of each kind; the median counts")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        index = re.search(r'"index": *(\d+)', os.environ.get("TF_CONFIG", ""))
        rank = int(os.environ.get("HOROVOD_RANK") or (index.group(1) if index else 0))
        return train(args.train[0], args.train[1], rank)
    if not args.horovod_python:
        parser.error("--horovod_python is needed; see the top of this file for how to make its environment")
    for model in args.models:
        compare(model, args.rounds, os.path.abspath(args.horovod_python))
    return 0


if __name__ == "__main__":
    sys.exit(main())
