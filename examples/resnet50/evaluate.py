"""Evaluates the last checkpoint that train.py left. Plain TensorFlow on one device: EPL is not imported."""

import sys

import tensorflow.compat.v1 as tf

import program

tf.disable_v2_behavior()


def main():
    args = program.options(__doc__.splitlines()[0])
    if tf.train.latest_checkpoint(args.model_dir) is None:
        sys.exit("No checkpoint in %r: run train.py first." % args.model_dir)
    job = program.Job(args)
    program.show(program.describe(job.estimator().evaluate(job.evaluation_input)))


if __name__ == "__main__":
    main()
