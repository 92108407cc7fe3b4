"""Trains a transformer with mixtures of experts: devices divide the batch, and each has its share of the experts.

epl-launch --num_workers 2 --gpu_per_worker 1 run.sh
"""

import argparse
import warnings

import sequences
import tensorflow.compat.v1 as tf

import epl
import model

tf.logging.set_verbosity(tf.logging.ERROR)
tf.disable_v2_behavior()
warnings.filterwarnings("ignore", message=".*is deprecated")


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--tokens", type=int, default=31, help="different tokens, a prime number (default: 31)")
    add("--length", type=int, default=16, help="tokens of a sequence (default: 16)")
    add("--batch_size", type=int, default=64, help="sequences of a step (default: 64)")
    add("--width", type=int, default=64, help="numbers for each token (default: 64)")
    add("--heads", type=int, default=4, help="of the attention (default: 4)")
    add("--layers", type=int, default=2, help="of the transformer (default: 2)")
    add("--experts", type=int, default=8, help="of each layer (default: 8)")
    add("--steps", type=int, default=400, help="steps (default: 400)")
    add("--learning_rate", type=float, default=0.003, help="of Adam (default: 0.003)")
    add("--checkpoints", default=None, help="folder for checkpoints; goes on from one found there (default: none)")
    add("--seed", type=int, default=1, help="of initial values (default: 1)")
    add("--print_every", type=int, default=100, metavar="N", help="print the loss of every Nth step (default: 100)")
    return parser.parse_args()


def main():
    args = options()
    epl.init(epl.Config({"cluster.colocate_split_and_replicate": True}))  # all scopes lie on the same devices
    devices = epl.Env.get().cluster.total_gpu_num
    epl.set_default_strategy(epl.replicate(devices))  # each device computes its sequences of the batch
    tf.set_random_seed(args.seed)
    data = sequences.Sequences(args.tokens, args.length)
    tokens, targets = [tf.placeholder(tf.int32, [None, args.length]) for _ in range(2)]

    def experts_scope():
        return epl.split(devices)  # and has its share of the experts

    loss, entropy, right = model.transformer(
        tokens, targets, args.tokens, args.width, args.heads, args.layers, args.experts, experts_scope
    )
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
            # All workers are fed the same sequences: together they compute one copy of the model.
            feeds = dict(zip((tokens, targets), data.batch(number, args.batch_size)))
            found = session.run({"loss": entropy, "right": right, "train": train}, feeds)
            if (number + 1) % args.print_every == 0:
                numbers = number + 1, found["loss"], 100 * found["right"]
                print("step %d: loss %.8g, right %.1f %%" % numbers, flush=True)
    print("Train Finished.")


if __name__ == "__main__":
    main()
