"""Trains a classifier of very many classes, of which each device has its part.

epl-launch --num_workers 2 --gpu_per_worker 1 run.sh --classes 100000
"""

import argparse
import warnings

import faces
import tensorflow.compat.v1 as tf

import epl
import model

tf.logging.set_verbosity(tf.logging.ERROR)  # tf.layers is called deprecated, at length
tf.disable_v2_behavior()
warnings.filterwarnings("ignore", message=".*is deprecated")


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--classes", type=int, default=2000, help="different classes (default: 2000)")
    add("--width", type=int, default=64, help="features that the classifier sees (default: 64)")
    add("--batch_size", type=int, default=256, help="rows of a step (default: 256)")
    add("--steps", type=int, default=300, help="steps (default: 300)")
    add("--learning_rate", type=float, default=0.01, help="of Adam (default: 0.01)")
    add("--checkpoints", default=None, help="folder for checkpoints; goes on from one found there (default: none)")
    add("--seed", type=int, default=1, help="of initial values (default: 1)")
    add("--print_every", type=int, default=100, metavar="N", help="print the loss of every Nth step (default: 100)")
    return parser.parse_args()


def main():
    args = options()
    epl.init(epl.Config({"cluster.colocate_split_and_replicate": True}))  # both scopes lie on the same devices
    devices = epl.Env.get().cluster.total_gpu_num
    tf.set_random_seed(args.seed)
    data = faces.Faces(args.classes)
    points, labels = tf.placeholder(tf.float32, [None, 32]), tf.placeholder(tf.int64, [None])
    with epl.replicate(devices):  # each device computes its rows of the features
        features = model.features(points, args.width)
    with epl.split(devices):  # and, of all rows, its part of the classes
        loss, right = model.classifier(features, labels, args.classes)
    step = tf.train.get_or_create_global_step()
    train = tf.train.AdamOptimizer(args.learning_rate).minimize(loss, step)
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=args.checkpoints,
        save_checkpoint_steps=args.print_every,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
    ) as session:
        for number in range(session.run(step), args.steps):
            # All workers are fed the same rows: together they compute one copy of the model.
            feeds = dict(zip((points, labels), data.batch(number, args.batch_size)))
            found = session.run({"loss": loss, "right": right, "train": train}, feeds)
            if (number + 1) % args.print_every == 0:
                numbers = number + 1, found["loss"], 100 * found["right"]
                print("step %d: loss %.8g, right %.1f %%" % numbers, flush=True)
    print("Train Finished.")


if __name__ == "__main__":
    main()
