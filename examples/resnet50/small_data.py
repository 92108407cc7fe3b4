"""Writes small files to try the example with: scikit-learn's handwritten digits as JPEG images of 32 x 32 pixels.

They come with scikit-learn, so nothing is downloaded. The files have the features of ImageNet's usual TFRecord files.
"""

import argparse
import os

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

tf.disable_v2_behavior()

SEED = 2024
TRAIN_FILES = 4
VALIDATION_FILES = 3
TEST_SHARE = 5  # one image in five is kept for validation
ENLARGE = 4  # 8 x 8 pixels become 32 x 32


def encoded(number):
    """(JPEGs, labels) of so many of the 1797 digits, in an order of their own."""
    digits = load_digits()
    order = np.random.RandomState(SEED).permutation(len(digits.target))[:number]
    gray = np.kron(digits.images[order], np.ones([1, ENLARGE, ENLARGE])) * (255.0 / 16.0)
    pixels = tf.placeholder(tf.uint8, [None, None, 3])
    jpeg = tf.image.encode_jpeg(pixels, quality=95)
    with tf.Session() as session:
        jpegs = [session.run(jpeg, {pixels: np.stack([each] * 3, -1)}) for each in gray.astype(np.uint8)]
    return jpegs, digits.target[order]


def example(jpeg, label):
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


def write(folder, part, files, examples):
    """Writes the examples in turn to `files` files."""
    for number in range(files):
        path = os.path.join(folder, "%s-%05d-of-%05d" % (part, number, files))
        with tf.io.TFRecordWriter(path) as writer:
            for each in examples[number::files]:
                writer.write(each.SerializeToString())
    print("Wrote %d images to %d files %s-*." % (len(examples), files, part))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default="data", help="where the files go (default: data)")
    parser.add_argument("--images", type=int, default=1797, help="how many images, at most 1797 (default: all)")
    args = parser.parse_args()

    os.makedirs(args.folder, exist_ok=True)
    examples = [example(jpeg, label) for jpeg, label in zip(*encoded(args.images))]
    training = len(examples) - len(examples) // TEST_SHARE
    training -= training % TRAIN_FILES
    write(args.folder, "train", TRAIN_FILES, examples[:training])
    write(args.folder, "validation", VALIDATION_FILES, examples[training:])


if __name__ == "__main__":
    main()
