"""The network of this example and its input; plain TensorFlow, shared by train.py and evaluate.py."""

import warnings

import numpy as np
import tensorflow.compat.v1 as tf

# Both lines call tf.layers and others deprecated, over several screens; their errors still show.
tf.logging.set_verbosity(tf.logging.ERROR)
warnings.filterwarnings("ignore", message=".*tf.layers.*is deprecated")

IMAGE_SIZE = 8
NUM_CLASSES = 10
MAX_PIXEL = 16.0


def parse(record):
    """Turns one serialized Example into (image float32 [8, 8, 1] in 0..1, label int64)."""
    features = tf.io.parse_single_example(
        record,
        {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)},
    )
    pixels = tf.cast(tf.io.decode_raw(features["image"], tf.uint8), tf.float32)
    return tf.reshape(pixels / MAX_PIXEL, [IMAGE_SIZE, IMAGE_SIZE, 1]), features["label"]


def read_all(path):
    """Returns all images float32 [n, 8, 8, 1] and labels int64 [n] of a TFRecord file as NumPy arrays."""
    images, labels = [], []
    for record in tf.io.tf_record_iterator(path):
        feature = tf.train.Example.FromString(record).features.feature
        pixels = np.frombuffer(feature["image"].bytes_list.value[0], dtype=np.uint8)
        images.append(pixels.astype(np.float32).reshape([IMAGE_SIZE, IMAGE_SIZE, 1]) / np.float32(MAX_PIXEL))
        labels.append(feature["label"].int64_list.value[0])
    return np.stack(images), np.array(labels, dtype=np.int64)


def network(images):
    """Logits [n, 10] of images [n, 8, 8, 1]. Called again, it uses the same variables."""
    with tf.variable_scope("digits", reuse=tf.AUTO_REUSE):
        hidden = tf.layers.conv2d(images, 16, 3, padding="same", activation=tf.nn.relu, name="conv1")
        hidden = tf.layers.max_pooling2d(hidden, 2, 2)
        hidden = tf.layers.conv2d(hidden, 32, 3, padding="same", activation=tf.nn.relu, name="conv2")
        hidden = tf.layers.flatten(hidden)
        hidden = tf.layers.dense(hidden, 64, activation=tf.nn.relu, name="dense1")
        return tf.layers.dense(hidden, NUM_CLASSES, name="dense2")


def accuracy(logits, labels):
    """The share of right answers, a float32 scalar in 0..1."""
    right = tf.equal(tf.argmax(logits, axis=1), labels)
    return tf.reduce_mean(tf.cast(right, tf.float32))
