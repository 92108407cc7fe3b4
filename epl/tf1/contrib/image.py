"""`tf.contrib.image`: rotations, projections and warps of images [batch, height, width, channels]."""

import tensorflow.compat.v1 as tf

_MODES = ("NEAREST", "BILINEAR")


def _batched(images):
    """(images [batch, height, width, channels], function back to the given rank)."""
    images = tf.convert_to_tensor(images, name="images")
    rank = images.get_shape().ndims
    if rank == 2:
        return images[None, :, :, None], lambda found: found[0, :, :, 0]
    if rank == 3:
        return images[None], lambda found: found[0]
    if rank == 4:
        return images, lambda found: found
    raise TypeError("Images should have rank between 2 and 4.")


def transform(images, transforms, interpolation="NEAREST", output_shape=None, name=None):
    """Images by projections: point (x, y) of the result is (k x', k y') of the image, k being 1 / (c0 x + c1 y + 1).

    Args:
      images: [height, width], [height, width, channels] or with a batch in front.
      transforms: [8] or [batch, 8]: a0, a1, a2, b0, b1, b2, c0, c1, of x' = a0 x + a1 y + a2 and y' = b0 x + b1 y + b2.
      interpolation: "NEAREST" or "BILINEAR".
      output_shape: height and width of the result; default those of the image.
    """
    if interpolation.upper() not in _MODES:
        raise ValueError("interpolation must be one of %s, got %s" % (", ".join(_MODES), interpolation))
    with tf.name_scope(name, "transform"):
        batch, back = _batched(images)
        transforms = tf.convert_to_tensor(transforms, tf.float32, name="transforms")
        transforms = transforms[None] if transforms.get_shape().ndims == 1 else transforms
        size = tf.shape(batch)[1:3] if output_shape is None else tf.convert_to_tensor(output_shape, tf.int32)
        found = tf.raw_ops.ImageProjectiveTransformV2(
            images=batch, transforms=transforms, output_shape=size, interpolation=interpolation.upper()
        )
        known = tf.get_static_value(size)
        size = list(known) if known is not None else batch.get_shape()[1:3].as_list()
        found.set_shape([batch.get_shape()[0], size[0], size[1], batch.get_shape()[3]])
        return back(found)


def angles_to_projective_transforms(angles, image_height, image_width, name=None):
    """Transforms [batch, 8] that turn images counterclockwise around their centre.

    Args:
      angles: radians, a scalar or [batch].
      image_height, image_width: scalars.
    """
    with tf.name_scope(name, "angles_to_projective_transforms"):
        angles = tf.reshape(tf.convert_to_tensor(angles, tf.float32), [-1])
        width, height = tf.cast(image_width, tf.float32) - 1, tf.cast(image_height, tf.float32) - 1
        cos, sin, zero = tf.cos(angles), tf.sin(angles), tf.zeros_like(angles)
        right, down = (width - (cos * width - sin * height)) / 2, (height - (sin * width + cos * height)) / 2
        return tf.stack([cos, -sin, right, sin, cos, down, zero, zero], axis=1)


def rotate(images, angles, interpolation="NEAREST", name=None):
    """Images turned counterclockwise by angles in radians, a scalar or [batch]."""
    with tf.name_scope(name, "rotate"):
        batch, back = _batched(images)
        size = tf.shape(batch)
        return back(transform(batch, angles_to_projective_transforms(angles, size[1], size[2]), interpolation))


def translations_to_projective_transforms(translations, name=None):
    """Transforms [batch, 8] that move images by (dx, dy), [2] or [batch, 2]."""
    with tf.name_scope(name, "translations_to_projective_transforms"):
        moves = tf.reshape(tf.convert_to_tensor(translations, tf.float32), [-1, 2])
        one, zero = tf.ones_like(moves[:, 0]), tf.zeros_like(moves[:, 0])
        return tf.stack([one, zero, -moves[:, 0], zero, one, -moves[:, 1], zero, zero], axis=1)


def translate(images, translations, interpolation="NEAREST", name=None):
    """Images moved by (dx, dy) pixels, [2] or [batch, 2]."""
    with tf.name_scope(name, "translate"):
        return transform(images, translations_to_projective_transforms(translations), interpolation)


def flat_transforms_to_matrices(transforms):
    """Transforms [8] or [batch, 8] as matrices [batch, 3, 3]."""
    flat = tf.reshape(tf.convert_to_tensor(transforms, tf.float32), [-1, 8])
    return tf.reshape(tf.concat([flat, tf.ones([tf.shape(flat)[0], 1])], axis=1), [-1, 3, 3])


def matrices_to_flat_transforms(transform_matrices):
    """The way back."""
    flat = tf.reshape(tf.convert_to_tensor(transform_matrices, tf.float32), [-1, 9])
    return (flat / flat[:, 8:])[:, :8]


def compose_transforms(*transforms):
    """The transform that does some one after the other."""
    if not transforms:
        raise ValueError("transforms cannot be empty")
    found = flat_transforms_to_matrices(transforms[0])
    for other in transforms[1:]:
        found = tf.matmul(found, flat_transforms_to_matrices(other))
    return matrices_to_flat_transforms(found)


def dense_image_warp(image, flow, name="dense_image_warp"):
    """Images of which point (b, j, i) comes from (b, j - flow[b, j, i, 0], i - flow[b, j, i, 1]), between points
    bilinearly, at the border as there.

    Args:
      image: [batch, height, width, channels].
      flow: [batch, height, width, 2].
    """
    with tf.name_scope(name):
        image, flow = tf.convert_to_tensor(image), tf.convert_to_tensor(flow)
        size = tf.shape(image)
        height, width = size[1], size[2]
        down, right = tf.meshgrid(tf.range(height), tf.range(width), indexing="ij")
        wanted = tf.cast(tf.stack([down, right], axis=2)[None], flow.dtype) - flow
        corners, parts = [], []
        for axis, length in enumerate((height, width)):
            place = wanted[..., axis]
            first = tf.clip_by_value(tf.floor(place), 0.0, tf.cast(length - 2, flow.dtype))
            corners.append(tf.cast(first, tf.int32))
            parts.append(tf.cast(tf.clip_by_value(place - first, 0.0, 1.0), image.dtype)[..., None])

        def at(row, column):
            return tf.gather_nd(image, tf.stack([corners[0] + row, corners[1] + column], axis=-1), batch_dims=1)

        above = parts[1] * (at(0, 1) - at(0, 0)) + at(0, 0)
        below = parts[1] * (at(1, 1) - at(1, 0)) + at(1, 0)
        found = parts[0] * (below - above) + above
        found.set_shape(image.get_shape())
        return found
