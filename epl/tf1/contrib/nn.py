"""`tf.contrib.nn`."""

import tensorflow.compat.v1 as tf


def alpha_dropout(x, keep_prob, noise_shape=None, seed=None, name=None):
    """Dropout that keeps the mean and variance of units with the SELU activation (Klambauer et al. 2017).

    Raises:
      ValueError: keep_prob is not in (0, 1].
    """
    if isinstance(keep_prob, (int, float)) and not 0 < keep_prob <= 1:
        raise ValueError("keep_prob must be a scalar tensor or a float in the range (0, 1], got %g" % keep_prob)
    with tf.name_scope(name, "alpha_dropout", [x]):
        x = tf.convert_to_tensor(x, name="x")
        if isinstance(keep_prob, (int, float)) and keep_prob == 1:
            return x
        keep = tf.cast(keep_prob, x.dtype)
        draws = tf.random_uniform(noise_shape if noise_shape is not None else tf.shape(x), seed=seed, dtype=x.dtype)
        kept = tf.cast(tf.floor(keep + draws), x.dtype)
        low = -1.7580993408473766  # what SELU tends to: minus its scale times its alpha
        scale = (keep + low * low * keep * (1 - keep)) ** -0.5
        return scale * (x * kept + low * (1 - kept)) - scale * low * (1 - keep)


def scaled_softplus(x, alpha, clip=None, name=None):
    """alpha * log(1 + exp(x / alpha)), at most `clip`."""
    with tf.name_scope(name, "scaled_softplus", [x, alpha]):
        found = alpha * tf.nn.softplus(x / alpha)
        return found if clip is None else tf.minimum(found, clip)


def nth_element(input, n, reverse=False, name=None):
    """The n-th smallest (largest) number of the last dimension."""
    return tf.raw_ops.NthElement(input=input, n=n, reverse=reverse, name=name)


def deprecated_flipped_softmax_cross_entropy_with_logits(logits, labels, dim=-1, name=None):
    return tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits, dim=dim, name=name)


def deprecated_flipped_sparse_softmax_cross_entropy_with_logits(logits, labels, name=None):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits, name=name)


def deprecated_flipped_sigmoid_cross_entropy_with_logits(logits, targets, name=None):
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits, name=name)
