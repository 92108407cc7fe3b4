"""Input: TFRecord files of JPEG images as ImageNet's usually are, augmentation, evaluation preprocessing. Without EPL.

Each record is a tf.train.Example with `image/encoded` (a JPEG) and `image/class/label` (an integer); other features
may be there and are ignored.
"""

import os

import tensorflow.compat.v1 as tf

MEAN = (123.68, 116.78, 103.94)  # of ImageNet's red, green and blue
DEVIATION = (58.4, 57.1, 57.4)
BORDER = 256.0 / 224.0  # evaluation: the shorter side becomes so many times the size that is cut out of the middle
FILES_AT_ONCE = 8
AUTOTUNE = tf.data.experimental.AUTOTUNE


def find_files(data_dir, part):
    """The files `part`-* of a folder in the order of their names; part is "train" or "validation".

    Raises:
      IOError: there is none.
    """
    pattern = os.path.join(data_dir, part + "-*")
    files = sorted(tf.io.gfile.glob(pattern))
    if not files:
        raise IOError("There is no file %s. --data_dir needs TFRecord files named train-* and validation-*." % pattern)
    return files


def _random_crop(encoded, size):
    """A part of the image with 8 % to 100 % of its area, mirrored or not, made `size` x `size`."""
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(encoded),
        bounding_boxes=[[[0.0, 0.0, 1.0, 1.0]]],
        min_object_covered=0.1,
        aspect_ratio_range=(3.0 / 4.0, 4.0 / 3.0),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], extent[:2]], 0)
    image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
    image = tf.image.resize_bilinear(tf.expand_dims(image, 0), [size, size])[0]
    return tf.image.random_flip_left_right(image)


def _middle(encoded, size):
    """The image made so small, or large, that its shorter side is BORDER * `size`; of that the middle."""
    image = tf.image.decode_jpeg(encoded, channels=3)
    extent = tf.shape(image)[:2]
    factor = BORDER * size / tf.cast(tf.reduce_min(extent), tf.float32)
    extent = tf.maximum(tf.cast(tf.round(factor * tf.cast(extent, tf.float32)), tf.int32), size)
    image = tf.image.resize_bilinear(tf.expand_dims(image, 0), extent)[0]
    top = (extent - size) // 2
    return tf.slice(image, tf.concat([top, [0]], 0), [size, size, 3])


def parse(record, size, augment):
    """One record -> (float32 [size, size, 3] around 0, int32 label)."""
    features = tf.io.parse_single_example(
        record,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    image = (_random_crop if augment else _middle)(features["image/encoded"], size)
    image = (tf.reshape(image, [size, size, 3]) - tf.constant(MEAN)) / tf.constant(DEVIATION)
    return image, tf.cast(features["image/class/label"], tf.int32)


def training_set(files, size, batch, augment=True, shuffle=10000):
    """An endless data set of batches. `shuffle`: images in the buffer that mixes them; 0 leaves them in their order."""
    names = tf.data.Dataset.from_tensor_slices(files)
    if shuffle:
        names = names.shuffle(len(files))
    records = names.interleave(tf.data.TFRecordDataset, cycle_length=FILES_AT_ONCE, num_parallel_calls=AUTOTUNE)
    if shuffle:
        records = records.shuffle(shuffle)
    images = records.repeat().map(lambda record: parse(record, size, augment), num_parallel_calls=AUTOTUNE)
    return images.batch(batch, drop_remainder=True).prefetch(2)


def evaluation_set(files, size, batch):
    """A data set of all images, each once; the last batch may be smaller."""
    names = tf.data.Dataset.from_tensor_slices(files)
    records = names.interleave(tf.data.TFRecordDataset, cycle_length=FILES_AT_ONCE, num_parallel_calls=AUTOTUNE)
    images = records.map(lambda record: parse(record, size, augment=False), num_parallel_calls=AUTOTUNE)
    return images.batch(batch).prefetch(2)
