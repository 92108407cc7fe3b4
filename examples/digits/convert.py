"""Writes scikit-learn's handwritten digits as TFRecord files, once.

The 1797 images of 8 x 8 pixels come with scikit-learn, so nothing is downloaded. They are shuffled with a fixed seed;
the last fifth becomes the test set. The files appear under their final names only when they are complete, so that a
run that was interrupted, or several programs that convert at the same time, never leave half a file behind.
"""

import argparse
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

try:
    from sklearn.datasets import load_digits
except ImportError:
    raise SystemExit('The digits come with scikit-learn, which is not here: pip install "scikit-learn>=1.0"')

SEED = 2024
TEST_SHARE = 5  # one image in five is kept for the test


def split_digits():
    """Returns {"train": (images, labels), "test": (images, labels)}; images uint8 [n, 64], pixels 0 to 16."""
    digits = load_digits()
    order = np.random.RandomState(SEED).permutation(len(digits.target))
    images = digits.data.astype(np.uint8)[order]
    labels = digits.target.astype(np.int64)[order]
    first_test = len(labels) - len(labels) // TEST_SHARE
    return {
        "train": (images[:first_test], labels[:first_test]),
        "test": (images[first_test:], labels[first_test:]),
    }


def serialize(image, label):
    """Returns one tf.train.Example with features `image` (the pixels as bytes) and `label` (0 to 9)."""
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write_records(path, images, labels):
    """Writes one TFRecord file; it gets its name `path` when it is complete."""
    handle, unfinished = tempfile.mkstemp(prefix=os.path.basename(path) + ".", dir=os.path.dirname(path))
    os.close(handle)
    try:
        with tf.io.TFRecordWriter(unfinished) as writer:
            for image, label in zip(images, labels):
                writer.write(serialize(image, label))
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default="data", help="folder for train.tfrecord and test.tfrecord")
    args = parser.parse_args()

    paths = {name: os.path.join(args.data_dir, name + ".tfrecord") for name in ("train", "test")}
    if all(os.path.exists(path) for path in paths.values()):
        print("The digits are already in %s." % args.data_dir)
        return
    os.makedirs(args.data_dir, exist_ok=True)
    for name, (images, labels) in split_digits().items():
        write_records(paths[name], images, labels)
        print("Wrote %d images to %s." % (len(labels), paths[name]))


if __name__ == "__main__":
    main()
