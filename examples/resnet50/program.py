"""The Estimator: options, network, learning rate, metrics. Plain TensorFlow, shared by train.py and evaluate.py."""

import argparse
import math
import time
import warnings

import numpy as np
import tensorflow.compat.v1 as tf

import images
import model

# Both lines call tf.layers and others deprecated, over several screens; their errors still show.
tf.logging.set_verbosity(tf.logging.ERROR)
warnings.filterwarnings("ignore", message=".*is deprecated|Seed .* from outer graph")

# 14 layers and 32 x 32 pixels: learns handwritten digits (small_data.py) in seconds.
SMALL = dict(
    blocks=[1, 1, 1, 1], width=8, size=32, classes=10, train_images=1436, batch_size=16, epochs=4, learning_rate=0.8,
    warmup_epochs=0.5, schedule="cosine", crop="middle",
)  # fmt: skip


def options(description):
    """The options of both programs, and what they were given."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--data_dir", required=True, help="folder with TFRecord files train-* and validation-*")
    add("--model_dir", default="model", help="folder for checkpoints; goes on from one found there (default: model)")
    add("--small", action="store_true", help="a small network for the small images of small_data.py, as tests use it")
    add("--batch_size", type=int, default=64, help="images per step and device (default: 64)")
    add("--epochs", type=float, default=90, help="how often the images are seen (default: 90)")
    add("--stop_at", type=int, default=None, metavar="STEP", help="end here; without effect on the learning rate")
    add("--train_images", type=int, default=1281167, help="images of an epoch (default: ImageNet's 1281167)")
    add("--evaluate_every", type=float, default=1.0, metavar="EPOCHS", help="evaluate so often (default: 1)")
    add("--learning_rate", type=float, default=0.1, help="for 256 images a step; scaled with their number")
    add("--schedule", choices=["steps", "cosine"], default="steps", help="how the learning rate falls")
    add("--warmup_epochs", type=float, default=5, help="first epochs, in which the learning rate rises (default: 5)")
    add("--momentum", type=float, default=0.9)
    add("--weight_decay", type=float, default=1e-4)
    add("--label_smoothing", type=float, default=0.1)
    add("--crop", choices=["random", "middle"], default="random", help="train on a random part, mirrored or not")
    add("--shuffle", type=int, default=10000, metavar="IMAGES", help="buffer that mixes them; 0: keep their order")
    add("--sync_batch_norm", action="store_true", help="normalise by the batches of all devices, not of each")
    add("--channels_first", action="store_true", help="compute in NCHW: faster on GPUs, impossible on CPUs")
    add("--classes", type=int, default=1001, help="labels are 0 to CLASSES - 1 (default: 1001)")
    add("--size", type=int, default=224, help="height and width of what the network sees (default: 224)")
    add("--blocks", type=int, nargs="+", default=list(model.FIFTY), help="of each group (default: 3 4 6 3)")
    add("--width", type=int, default=64, help="channels of the first convolution (default: 64)")
    add("--seed", type=int, default=None, help="of initial values, order and augmentation (default: another each time)")
    add("--print_every", type=int, default=100, metavar="N", help="print the loss of every Nth step (default: 100)")
    if parser.parse_known_args()[0].small:
        parser.set_defaults(**SMALL)
    return parser.parse_args()


class Job(object):
    """What follows from the options and the number of devices that train.

    Attributes:
      batch: images that all devices together see in a step.
      epoch, total, warmup: steps.
      peak: the highest learning rate.
    """

    def __init__(self, args, devices=1):
        self.args = args
        self.batch = args.batch_size * devices
        self.epoch = max(1, args.train_images // self.batch)
        self.total = int(math.ceil(args.epochs * self.epoch))
        self.warmup = int(args.warmup_epochs * self.epoch)
        self.peak = args.learning_rate * self.batch / 256

    def learning_rate(self, step):
        """Rises to the peak; then falls to a tenth at 1/3, 2/3 and 8/9 of the training, or along a cosine to 0."""
        step = tf.cast(step, tf.float32)
        if self.args.schedule == "cosine":
            part = (step - self.warmup) / max(1, self.total - self.warmup)
            fallen = 0.5 * self.peak * (1 + tf.cos(math.pi * tf.clip_by_value(part, 0.0, 1.0)))
        else:
            ends = [self.total * part for part in (1 / 3.0, 2 / 3.0, 8 / 9.0)]
            falls = tf.add_n([tf.cast(step >= end, tf.float32) for end in ends])
            fallen = self.peak * tf.pow(0.1, falls)
        return tf.where(step < self.warmup, self.peak * (step + 1) / max(1, self.warmup), fallen)

    def model_fn(self, features, labels, mode):
        """As tf.estimator wants it; for training and evaluation."""
        args, training = self.args, mode == tf.estimator.ModeKeys.TRAIN
        network = model.ResNet(args.classes, args.blocks, args.width, training, args.channels_first)
        logits = network(features)
        smoothing = args.label_smoothing if training else 0.0
        loss = tf.losses.softmax_cross_entropy(tf.one_hot(labels, args.classes), logits, label_smoothing=smoothing)
        if not training:
            return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics(logits, labels))
        loss += args.weight_decay * tf.add_n([tf.nn.l2_loss(kernel) for kernel in model.kernels()])
        step = tf.train.get_global_step()
        rate = self.learning_rate(step)
        optimizer = tf.train.MomentumOptimizer(rate, args.momentum, use_nesterov=True)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):  # the moving averages
            train = optimizer.minimize(loss, step)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train, training_hooks=[Progress(self, loss, rate)])

    def estimator(self):
        config = tf.estimator.RunConfig(
            model_dir=self.args.model_dir,
            tf_random_seed=self.args.seed,
            save_checkpoints_steps=max(1, int(self.args.evaluate_every * self.epoch)),
            save_summary_steps=self.args.print_every,
            log_step_count_steps=None,
        )
        return tf.estimator.Estimator(self.model_fn, config=config)

    def training_input(self):
        files = images.find_files(self.args.data_dir, "train")
        augment = self.args.crop == "random"
        return images.training_set(files, self.args.size, self.args.batch_size, augment, self.args.shuffle)

    def evaluation_input(self):
        files = images.find_files(self.args.data_dir, "validation")
        return images.evaluation_set(files, self.args.size, self.args.batch_size)


def metrics(logits, labels):
    """The shares of images whose label is the best guess, and among the best five; and the numbers behind them."""
    found = {"images": _count(tf.fill(tf.shape(labels), True))}
    for name, number in (("top_1", 1), ("top_5", 5)):
        right = tf.nn.in_top_k(logits, labels, number)
        found[name] = tf.metrics.mean(tf.cast(right, tf.float32))
        found[name + "_right"] = _count(right)
    return found


def _count(flags):
    """A metric: how many of all flags are true."""
    return tf.metrics.true_positives(tf.ones_like(flags), flags)


def describe(values):
    """What an evaluation has found, as a line."""
    return "evaluation at step %d: top-1 %.2f %% (%d of %d images), top-5 %.2f %% (%d)" % (
        values["global_step"],
        100 * values["top_1"],
        round(values["top_1_right"]),
        round(values["images"]),
        100 * values["top_5"],
        round(values["top_5_right"]),
    )


class Progress(tf.train.SessionRunHook):
    """Prints loss, learning rate and speed now and then. It fetches them on every worker and prints on the first."""

    def __init__(self, job, loss, rate):
        self._job = job
        self._values = [loss, rate]
        self._chief = tf.estimator.RunConfig().is_chief

    def after_create_session(self, session, coord):
        self._step = session.run(tf.train.get_global_step())
        self._seconds = []

    def before_run(self, run_context):
        self._began = time.time()
        return tf.train.SessionRunArgs(self._values)

    def after_run(self, run_context, run_values):
        self._step += 1
        self._seconds.append(time.time() - self._began)
        if self._step % self._job.args.print_every == 0:
            loss, rate = run_values.results
            speed = self._job.batch / np.median(self._seconds)  # whatever an evaluation in between has taken
            self._seconds = []
            if self._chief:
                show("step %d: loss %.8g, learning rate %.4g, %.0f images/s" % (self._step, loss, rate, speed))


class PrintMetrics(tf.estimator.Exporter):
    """train_and_evaluate calls exporters after each evaluation, on the chief alone; this one prints the metrics."""

    name = "printed"

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        show(describe(eval_result))


def show(line):
    print(line, flush=True)
