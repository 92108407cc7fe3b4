"""Trains a small CNN on handwritten digits. A single-device script; its three EPL lines make it data parallel."""

import argparse
import json
import os

import tensorflow.compat.v1 as tf

import epl
import model

tf.disable_v2_behavior()


def my_share():
    """Returns (number of workers, this worker's index). The launcher says so in TF_CONFIG; a lone script is 0 of 1."""
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    return len(config.get("cluster", {}).get("worker", [None])), config.get("task", {}).get("index", 0)


SHARE = my_share()  # TF_CONFIG names no cluster any more once EPL is initialised
epl.init()
epl.set_default_strategy(epl.replicate(device_count=1))


def training_batches(path, batch_size):
    """An endless stream of (images, labels): this worker's share of the file in an order of its own."""
    num_workers, worker_index = SHARE
    dataset = tf.data.TFRecordDataset(path).shard(num_workers, worker_index)
    dataset = dataset.shuffle(2000, seed=worker_index).repeat().map(model.parse).batch(batch_size)
    return tf.data.make_one_shot_iterator(dataset).get_next()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default="data", help="folder that convert.py has filled")
    parser.add_argument("--checkpoint_dir", default="checkpoint", help="goes on from a checkpoint found here")
    parser.add_argument("--steps", type=int, default=400, help="total number of training steps")
    parser.add_argument("--batch_size", type=int, default=32, help="images per step and model replica")
    args = parser.parse_args()

    tf.set_random_seed(1)
    images, labels = training_batches(os.path.join(args.data_dir, "train.tfrecord"), args.batch_size)
    loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=model.network(images))
    global_step = tf.train.get_or_create_global_step()
    train_op = tf.train.AdamOptimizer(learning_rate=0.002).minimize(loss, global_step=global_step)

    test_images, test_labels = model.read_all(os.path.join(args.data_dir, "test.tfrecord"))
    test_accuracy = model.accuracy(model.network(tf.constant(test_images)), tf.constant(test_labels))

    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=args.checkpoint_dir,
        save_checkpoint_steps=200,
        save_summaries_steps=None,
        save_summaries_secs=None,
    ) as session:
        for step in range(session.run(global_step) + 1, args.steps + 1):
            loss_value, _ = session.run([loss, train_op])
            if step % 50 == 0:
                print("step %4d of %d: loss %.4f" % (step, args.steps, loss_value), flush=True)
        print("test accuracy: %.2f %%" % (100 * session.run(test_accuracy)), flush=True)


if __name__ == "__main__":
    main()
