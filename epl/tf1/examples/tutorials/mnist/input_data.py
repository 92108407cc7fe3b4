"""`input_data.read_data_sets`: the handwritten digits of MNIST from files that are there; nothing is fetched."""

import collections
import gzip
import os
import struct

import numpy as np
import tensorflow.compat.v1 as tf

Datasets = collections.namedtuple("Datasets", ["train", "validation", "test"])

_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_CLASSES = 10


def extract_images(f):
    """uint8 [number, rows, columns, 1] of an open file of images, compressed."""
    return _read_idx(f, 2051)[..., None]


def extract_labels(f, one_hot=False, num_classes=_CLASSES):
    """uint8 [number] of an open file of labels, compressed; [number, classes] if one_hot."""
    labels = _read_idx(f, 2049)
    return np.eye(num_classes)[labels] if one_hot else labels


def _read_idx(f, magic):
    with gzip.GzipFile(fileobj=f) as source:
        found = struct.unpack(">I", source.read(4))[0]
        if found != magic:
            raise ValueError("Invalid magic number %d in MNIST file: %s" % (found, f.name))
        shape = struct.unpack(">%dI" % (magic % 256), source.read(4 * (magic % 256)))
        return np.frombuffer(source.read(int(np.prod(shape))), np.uint8).reshape(shape)


class DataSet(object):
    """Images and labels, of which batches are taken.

    Args:
      images: [number, rows, columns, 1].
      labels: [number, ...].
      dtype: np.float32 for values from 0 to 1, np.uint8 for 0 to 255.
      reshape: images as rows of numbers.
      seed: of the shuffles. As in 1.15 they draw from NumPy's own numbers, which it seeds: without it the seed of the
        graph does, or else nothing that is known.
    """

    def __init__(self, images, labels, fake_data=False, one_hot=False, dtype=np.float32, reshape=True, seed=None):
        if fake_data:
            raise ValueError("fake_data is not served.")
        dtype = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
        if dtype not in (np.uint8, np.float32):
            raise TypeError("Invalid image dtype %r, expected uint8 or float32" % dtype)
        if images.shape[0] != labels.shape[0]:
            raise ValueError("images.shape: %s labels.shape: %s" % (images.shape, labels.shape))
        images = images.reshape(images.shape[0], -1) if reshape else images
        self._images = images.astype(np.float32) * np.float32(1.0 / 255.0) if dtype == np.float32 else images
        self._labels = labels
        of_graph, of_operation = tf.get_seed(seed)
        np.random.seed(of_graph if seed is None else of_operation)
        self._epochs_completed = self._index_in_epoch = 0

    @property
    def images(self):
        return self._images

    @property
    def labels(self):
        return self._labels

    @property
    def num_examples(self):
        return len(self._images)

    @property
    def epochs_completed(self):
        return self._epochs_completed

    def _shuffle(self):
        order = np.arange(len(self._images))
        np.random.shuffle(order)
        self._images, self._labels = self._images[order], self._labels[order]

    def next_batch(self, batch_size, fake_data=False, shuffle=True):
        """The next (images, labels); those of the end of an epoch and of the next one's beginning make one batch."""
        if shuffle and self._index_in_epoch == 0 and self._epochs_completed == 0:
            self._shuffle()
        start = self._index_in_epoch
        images, labels = self._images[start : start + batch_size], self._labels[start : start + batch_size]
        self._index_in_epoch = start + len(images)
        if len(images) < batch_size:
            self._epochs_completed += 1
            if shuffle:
                self._shuffle()
            rest = batch_size - len(images)
            images = np.concatenate([images, self._images[:rest]])
            labels = np.concatenate([labels, self._labels[:rest]])
            self._index_in_epoch = rest
        return images, labels


def read_data_sets(
    train_dir,
    fake_data=False,
    one_hot=False,
    dtype=np.float32,
    reshape=True,
    validation_size=5000,
    seed=None,
    source_url=None,
):
    """Reads the four files of MNIST.

    Args:
      train_dir: the folder that has them.
      validation_size: so many of the training images, from the first, are kept for validation.
      Others as of DataSet.

    Returns:
      Datasets(train, validation, test).

    Raises:
      IOError: a file is missing: they are not downloaded.
      ValueError: there are fewer training images than validation_size.
    """
    missing = [name for name in _FILES if not os.path.isfile(os.path.join(train_dir, name))]
    if missing:
        raise IOError(
            "'%s' has no file %s: put the four files of MNIST there (%s); they are not downloaded."
            % (train_dir, missing[0], ", ".join(_FILES))
        )
    arrays = []
    for number, name in enumerate(_FILES):
        with open(os.path.join(train_dir, name), "rb") as source:
            arrays.append(extract_labels(source, one_hot) if number % 2 else extract_images(source))
    images, labels, test_images, test_labels = arrays
    if not 0 <= validation_size <= len(images):
        raise ValueError("Validation size should be between 0 and %d. Received: %d." % (len(images), validation_size))
    options = dict(dtype=dtype, reshape=reshape, seed=seed)
    return Datasets(
        train=DataSet(images[validation_size:], labels[validation_size:], **options),
        validation=DataSet(images[:validation_size], labels[:validation_size], **options),
        test=DataSet(test_images, test_labels, **options),
    )
