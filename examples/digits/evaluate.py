"""Evaluates the checkpoint that train.py left. Plain TensorFlow on one device: EPL is not imported."""

import argparse
import os
import sys

import tensorflow.compat.v1 as tf

import model

tf.disable_v2_behavior()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default="data", help="folder that convert.py has filled")
    parser.add_argument("--checkpoint_dir", default="checkpoint", help="folder in which train.py saved its checkpoints")
    parser.add_argument("--at_least", type=float, default=0.0, help="fail below this test accuracy, in percent")
    args = parser.parse_args()

    checkpoint = tf.train.latest_checkpoint(args.checkpoint_dir)
    if checkpoint is None:
        sys.exit("No checkpoint in %r: run train.py first." % args.checkpoint_dir)
    images, labels = model.read_all(os.path.join(args.data_dir, "test.tfrecord"))
    test_accuracy = model.accuracy(model.network(tf.constant(images)), tf.constant(labels))
    with tf.Session() as session:
        tf.train.Saver().restore(session, checkpoint)
        percent = 100 * session.run(test_accuracy)
    print("checkpoint %s: test accuracy: %.2f %%" % (os.path.basename(checkpoint), percent), flush=True)
    if percent < args.at_least:
        sys.exit("The test accuracy is below %g %%." % args.at_least)


if __name__ == "__main__":
    main()
