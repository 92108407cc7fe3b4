"""The loss of sequences of logits."""

import tensorflow.compat.v1 as tf


def sequence_loss(
    logits,
    targets,
    weights,
    average_across_timesteps=True,
    average_across_batch=True,
    sum_over_timesteps=False,
    sum_over_batch=False,
    softmax_loss_function=None,
    name=None,
):
    """Weighted cross-entropy of sequences.

    Args:
      logits: [batch, time, classes].
      targets: integers [batch, time].
      weights: [batch, time].
      average_across_timesteps, average_across_batch: divide the sum over that by the sum of weights.
      sum_over_timesteps, sum_over_batch: sum over that, divided by the number of weights that are not 0.
      softmax_loss_function: of `labels` and `logits`, in the place of the cross-entropy.

    Returns:
      A scalar; [batch], [time] or [batch, time] where nothing is done over the other.

    Raises:
      ValueError: a rank does not fit, or both a mean and a sum are wanted over one.
    """
    for tensor, rank, what in (
        (logits, 3, "Logits must be a [batch_size x sequence_length x logits] tensor"),
        (targets, 2, "Targets must be a [batch_size x sequence_length] tensor"),
        (weights, 2, "Weights must be a [batch_size x sequence_length] tensor"),
    ):
        if len(tensor.get_shape()) != rank:
            raise ValueError(what)
    if average_across_timesteps and sum_over_timesteps:
        raise ValueError("average_across_timesteps and sum_over_timesteps cannot be set to True at same time.")
    if average_across_batch and sum_over_batch:
        raise ValueError("average_across_batch and sum_over_batch cannot be set to True at same time.")
    with tf.name_scope(name, "sequence_loss", [logits, targets, weights]):
        classes = tf.shape(logits)[2]
        flat, labels = tf.reshape(logits, [-1, classes]), tf.reshape(targets, [-1])
        if softmax_loss_function is None:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=flat)
        else:
            losses = softmax_loss_function(labels=labels, logits=flat)
        losses *= tf.reshape(weights, [-1])
        if average_across_timesteps and average_across_batch:
            return tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(weights))
        if sum_over_timesteps and sum_over_batch:
            count = tf.cast(tf.math.count_nonzero(weights), losses.dtype)
            return tf.math.divide_no_nan(tf.reduce_sum(losses), count)
        losses = tf.reshape(losses, tf.shape(logits)[:2])
        for axis, mean, total in (
            (1, average_across_timesteps, sum_over_timesteps),
            (0, average_across_batch, sum_over_batch),
        ):
            if mean or total:
                size = (
                    tf.reduce_sum(weights, axis=[axis])
                    if mean
                    else tf.cast(tf.math.count_nonzero(weights, axis=axis), losses.dtype)
                )
                losses = tf.math.divide_no_nan(tf.reduce_sum(losses, axis=[axis]), size)
        return losses
