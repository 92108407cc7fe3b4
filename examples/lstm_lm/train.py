"""Trains a word-level LSTM language model on a text of yours.

epl-launch --num_workers 2 --gpu_per_worker 1 run.sh --text train.txt --validation valid.txt
"""

import argparse
import json
import math
import os
import time
import warnings

import numpy as np
import tensorflow.compat.v1 as tf

import epl
import model
import text

tf.logging.set_verbosity(tf.logging.ERROR)  # much of what is used here is called deprecated, at length
tf.disable_v2_behavior()
warnings.filterwarnings("ignore", message=".*is deprecated")

SMALL = dict(
    vocabulary=1000, width=64, length=16, batch_size=8, epochs=4, learning_rate=0.7, full_epochs=2, dropout=0.1
)


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--text", required=True, help="the text to learn from, UTF-8, words separated by blanks")
    add("--validation", required=True, help="another text, on which the perplexity is measured")
    add("--checkpoints", default=None, help="folder for checkpoints; goes on from one found there (default: none)")
    add("--small", action="store_true", help="a small network and a short training, as tests use it")
    add("--batch_size", type=int, default=20, help="rows of text that all devices together read (default: 20)")
    add("--length", type=int, default=35, help="words of each row in one step (default: 35)")
    add("--vocabulary", type=int, default=10000, help="different words, the rarer ones are <unk> (default: 10000)")
    add("--width", type=int, default=650, help="units of each layer (default: 650)")
    add("--layers", type=int, default=2, help="LSTMs on top of each other (default: 2)")
    add("--dropout", type=float, default=0.5, help="share of units that are dropped (default: 0.5)")
    add("--epochs", type=int, default=39, help="how often the text is read (default: 39)")
    add("--learning_rate", type=float, default=1.0, help="of the first epochs (default: 1)")
    add("--full_epochs", type=int, default=6, help="epochs with the full learning rate (default: 6)")
    add("--decay", type=float, default=0.8, help="factor of the learning rate for each further epoch (default: 0.8)")
    add("--clip", type=float, default=5.0, help="largest global norm of the gradients (default: 5)")
    add("--seed", type=int, default=None, help="of initial values and dropout (default: another one each time)")
    add("--print_every", type=int, default=0, metavar="N", help="print the loss of every Nth step (default: of none)")
    if parser.parse_known_args()[0].small:
        parser.set_defaults(**SMALL)
    return parser.parse_args()


def my_place():
    """(number of workers, this worker's index). The launcher says so in TF_CONFIG; a lone script is 0 of 1."""
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    return len(config.get("cluster", {}).get("worker", [None])), config.get("task", {}).get("index", 0)


PLACE = my_place()  # TF_CONFIG names no cluster any more once EPL is initialised


class Program(object):
    """The network, the training and this worker's rows of both texts."""

    def __init__(self, args):
        self.args = args
        words = text.read_words(args.text)
        vocabulary = text.make_vocabulary(words, args.vocabulary)
        self.training = self._rows(args.text, words, vocabulary)
        self.validation = self._rows(args.validation, text.read_words(args.validation), vocabulary)
        self.windows = text.count_windows(self.training, args.length)  # steps of an epoch
        self.net = model.LanguageModel(len(vocabulary), args.width, args.layers)
        epl.add_to_collection(self.net.loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)  # over the rows of all workers
        epl.add_to_collection(self.net.final_state, epl.GraphKeys.LOCAL_CONCAT_OBJECTS)  # all rows of this worker
        self.step = tf.train.get_or_create_global_step()
        late = tf.maximum(self.step // self.windows + 1 - args.full_epochs, 0)  # epochs with less than the full rate
        self.rate = args.learning_rate * tf.pow(args.decay, tf.cast(late, tf.float32))
        self.train = model.training(self.net.loss, args.length, self.rate, args.clip, self.step)

    def _rows(self, path, words, vocabulary):
        rows = text.to_rows(text.to_numbers(words, vocabulary), self.args.batch_size)
        if not text.count_windows(rows, self.args.length):
            raise ValueError(
                "%s has %d words, which is too short: %d rows of more than %d words are needed. Choose a longer text, "
                "a smaller --batch_size or a smaller --length."
                % (path, len(words), self.args.batch_size, self.args.length)
            )
        return text.share_of(rows, *PLACE)

    def no_memory(self):
        """The state at the beginning of a text."""
        return np.zeros([len(self.training), self.args.layers, 2, self.args.width], np.float32)

    def read(self, session, rows, number, state, **more):
        """Runs the network on a window of rows: the loss, the state after it, and whatever `more` names."""
        words, targets = text.window(rows, number, self.args.length)
        feeds = {self.net.words: words, self.net.targets: targets, self.net.state: state}
        if "train" in more:
            feeds[self.net.keep] = 1 - self.args.dropout
        return session.run(dict(more, loss=self.net.loss, state=self.net.final_state), feeds)

    def train_epoch(self, session, step, show):
        """Reads the training text from where `step` stands to its end; returns the perplexity and words a second."""
        began, losses, state = time.time(), [], self.no_memory()
        for number in range(step % self.windows, self.windows):
            values = self.read(session, self.training, number, state, train=self.train)
            state = values["state"]
            losses.append(values["loss"])
            step += 1
            if self.args.print_every and step % self.args.print_every == 0:
                show("step %d: loss %.8g" % (step, values["loss"]))
        words = len(losses) * self.args.length * self.args.batch_size
        return perplexity(losses), words / (time.time() - began)

    def validate(self, session):
        """The perplexity of the validation text."""
        losses, state = [], self.no_memory()
        for number in range(text.count_windows(self.validation, self.args.length)):
            values = self.read(session, self.validation, number, state)
            state = values["state"]
            losses.append(values["loss"])
        return perplexity(losses)


def perplexity(losses):
    return math.exp(min(np.mean(losses, dtype=np.float64), 700.0))  # exp(710) is no number any more


def main():
    args = options()
    epl.init(epl.Config({"communication.clip_after_allreduce": True}))  # clip what one device would clip
    epl.set_default_strategy(epl.replicate(device_count=1))
    tf.set_random_seed(args.seed)
    program = Program(args)
    first = PLACE[1] == 0

    def show(line):
        if first:
            print(line, flush=True)

    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=args.checkpoints,
        save_checkpoint_steps=program.windows,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
    ) as session:
        done = session.run(program.step)
        show("%d steps an epoch, %d done" % (program.windows, done))
        for epoch in range(done // program.windows, args.epochs):
            rate = session.run(program.rate)
            trained, speed = program.train_epoch(session, max(done, epoch * program.windows), show)
            show(
                "epoch %d of %d: learning rate %.4g, perplexity %.2f, of the validation text %.2f, %.0f words/s"
                % (epoch + 1, args.epochs, rate, trained, program.validate(session), speed)
            )
    show("Train Finished.")


if __name__ == "__main__":
    main()
