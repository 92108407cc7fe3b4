"""Trains a small BERT to fill in masked bytes of a text, as a pipeline of several stages.

epl-launch --num_workers 1 --gpu_per_worker 2 run.sh
epl-launch --num_workers 1 --gpu_per_worker 4 run.sh --stages 4 --text my_text.txt
"""

import argparse
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

import epl
import model

HERE = os.path.dirname(os.path.abspath(__file__))


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", default=os.path.join(HERE, "..", "..", "LICENSE"), help="a text file to learn from")
    parser.add_argument("--stages", type=int, default=2, help="devices of a model replica (default: 2)")
    parser.add_argument("--micro_batches", type=int, default=4, help="micro-batches of a step (default: 4)")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a micro-batch (default: 16)")
    parser.add_argument("--length", type=int, default=48, help="bytes of a sequence (default: 48)")
    parser.add_argument("--layers", type=int, default=4, help="transformer layers (default: 4)")
    parser.add_argument("--width", type=int, default=64, help="numbers for each byte (default: 64)")
    parser.add_argument("--steps", type=int, default=200, help="training steps (default: 200)")
    parser.add_argument("--checkpoints", default=None, help="folder for checkpoints (default: none are kept)")
    return parser.parse_args()


def batches(path, length, batch):
    """Random windows of the text, of which 15 % of the bytes are masked: (tokens, what the model sees, mask)."""
    with open(path, "rb") as file:
        text = np.frombuffer(file.read(), np.uint8).astype(np.int32)

    def window(start):
        tokens = tf.constant(text)[start : start + length]
        masked = tf.less(tf.random_uniform([length]), 0.15)
        return tokens, tf.where(masked, tf.fill([length], model.MASK), tokens), tf.cast(masked, tf.float32)

    starts = tf.data.Dataset.range(len(text) - length).shuffle(len(text)).repeat()
    data = starts.map(window).batch(batch, drop_remainder=True).prefetch(2)
    return tf.data.make_one_shot_iterator(data).get_next()


def build(arguments):
    """The model, in stages: a scope that is set as the default holds everything up to the next."""
    per_stage = -(-arguments.layers // arguments.stages)
    epl.set_default_strategy(epl.replicate(1))
    tokens, seen, masked = batches(arguments.text, arguments.length, arguments.batch)
    x = model.embed(seen, arguments.width)
    for layer in range(arguments.layers):
        if layer and layer % per_stage == 0:
            epl.set_default_strategy(epl.replicate(1))  # the next stage begins
        x = model.transformer_layer(x, 4, "layer_%d" % layer)
    loss, accuracy = model.masked_loss(x, tokens, masked)
    epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    epl.add_to_collection(accuracy, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    step = tf.train.get_or_create_global_step()
    return loss, accuracy, tf.train.AdamOptimizer(1e-3).minimize(loss, step), step


def main():
    arguments = options()
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.WARN)
    epl.init(epl.Config({"pipeline.num_micro_batch": arguments.micro_batches}))
    loss, accuracy, train, step = build(arguments)
    began = time.time()
    hooks = [tf.train.StopAtStepHook(arguments.steps)]
    with tf.train.MonitoredTrainingSession(checkpoint_dir=arguments.checkpoints, hooks=hooks) as session:
        while not session.should_stop():
            values = session.run({"loss": loss, "accuracy": accuracy, "step": step, "train": train})
            count = values["step"] + 1
            if count % max(1, arguments.steps // 10) == 0:
                print(
                    "step %4d of %d, loss %.3f, masked bytes right %.1f %%, %.1f steps/s"
                    % (
                        count,
                        arguments.steps,
                        values["loss"],
                        100 * values["accuracy"],
                        count / (time.time() - began),
                    )
                )
    print("Train Finished.")


if __name__ == "__main__":
    main()
