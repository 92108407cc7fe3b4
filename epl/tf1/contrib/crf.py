"""`tf.contrib.crf`: linear-chain conditional random fields (Lafferty et al. 2001), over batches of sequences.

`inputs` are scores [batch, time, tags], `transition_params` scores [tags, tags] from one tag to the next.
"""

import numpy as np
import tensorflow.compat.v1 as tf


def crf_log_likelihood(inputs, tag_indices, sequence_lengths, transition_params=None):
    """(the log-likelihood of a sequence of tags for each sequence, [batch]; the transition scores).

    Args:
      tag_indices: integers [batch, time].
      sequence_lengths: integers [batch].
      transition_params: default a variable "transitions".
    """
    if transition_params is None:
        tags = tf.compat.dimension_value(inputs.get_shape()[2])
        transition_params = tf.get_variable("transitions", [tags, tags])
    scores = crf_sequence_score(inputs, tag_indices, sequence_lengths, transition_params)
    return scores - crf_log_norm(inputs, sequence_lengths, transition_params), transition_params


def crf_sequence_score(inputs, tag_indices, sequence_lengths, transition_params):
    """The score of a sequence of tags, not normalised: [batch]; 0 for sequences of length 0."""
    return crf_unary_score(tag_indices, sequence_lengths, inputs) + crf_binary_score(
        tag_indices, sequence_lengths, transition_params
    )


def crf_multitag_sequence_score(inputs, tag_bitmap, sequence_lengths, transition_params):
    """The logarithm of the summed scores of all sequences of tags that a mask [batch, time, tags] allows: [batch]."""
    forbidden = tf.fill(tf.shape(inputs), float("-inf"))
    allowed = tf.where(tag_bitmap, inputs, tf.cast(forbidden, inputs.dtype))
    return crf_log_norm(allowed, sequence_lengths, transition_params)


def crf_unary_score(tag_indices, sequence_lengths, inputs):
    """The summed scores of the tags themselves: [batch]."""
    picked = tf.gather(inputs, tag_indices[:, :, None], batch_dims=2)[:, :, 0]
    mask = tf.sequence_mask(sequence_lengths, tf.shape(tag_indices)[1], inputs.dtype)
    return tf.reduce_sum(picked * mask, axis=1)


def crf_binary_score(tag_indices, sequence_lengths, transition_params):
    """The summed scores of the transitions: [batch]."""
    pairs = tf.stack([tag_indices[:, :-1], tag_indices[:, 1:]], axis=2)
    steps = tf.maximum(tf.cast(sequence_lengths, tf.int64) - 1, 0)
    mask = tf.sequence_mask(steps, tf.shape(tag_indices)[1] - 1, transition_params.dtype)
    return tf.reduce_sum(tf.gather_nd(transition_params, pairs) * mask, axis=1)


def crf_log_norm(inputs, sequence_lengths, transition_params):
    """The logarithm of the sum over all sequences of tags: [batch]; 0 for sequences of length 0."""
    lengths = tf.cast(sequence_lengths, tf.int32)
    rest = tf.transpose(inputs[:, 1:], [1, 0, 2])

    def step(alphas, item):
        scores, number = item
        reached = tf.reduce_logsumexp(alphas[:, :, None] + transition_params[None], axis=1) + scores
        return tf.where(tf.less(number, lengths), reached, alphas)

    numbers = tf.range(1, tf.shape(inputs)[1])
    # A loop over no step at all has no last element; the first one stands in front for that.
    alphas = tf.concat([inputs[None, :, 0], tf.scan(step, (rest, numbers), inputs[:, 0])], axis=0)[-1]
    return tf.where(lengths > 0, tf.reduce_logsumexp(alphas, axis=1), tf.zeros_like(alphas[:, 0]))


def crf_decode(potentials, transition_params, sequence_length):
    """The best sequence of tags of each sequence, and its score (the Viterbi algorithm).

    Args:
      potentials: scores [batch, time, tags].
      sequence_length: integers [batch].

    Returns:
      (int32 [batch, time], 0 beyond a sequence's length; [batch]).
    """
    lengths = tf.maximum(tf.cast(sequence_length, tf.int32), 1)
    steps, tags = tf.shape(potentials)[1], tf.shape(potentials)[2]
    rest, numbers = tf.transpose(potentials[:, 1:], [1, 0, 2]), tf.range(1, steps)

    def forward(state, item):
        scores, number = item
        reached = state[0][:, :, None] + transition_params[None]
        inside = tf.less(number, lengths)
        best = tf.where(inside, tf.reduce_max(reached, axis=1) + scores, state[0])
        # Beyond the end the tag stays, so that the last one is found where all sequences end.
        stays = tf.tile(tf.range(tags)[None], [tf.shape(potentials)[0], 1])
        came_from = tf.where(inside, tf.argmax(reached, axis=1, output_type=tf.int32), stays)
        return best, came_from

    start = potentials[:, 0], tf.zeros(tf.shape(potentials[:, 0]), tf.int32)
    best, came_from = tf.scan(forward, (rest, numbers), start)
    best = tf.concat([potentials[None, :, 0], best], axis=0)[-1]
    last = tf.argmax(best, axis=1, output_type=tf.int32)

    def backward(tag, pointers):
        return tf.gather(pointers, tag[:, None], batch_dims=1)[:, 0]

    before = tf.scan(backward, came_from, last, reverse=True)
    found = tf.transpose(tf.concat([before, last[None]], axis=0))
    mask = tf.sequence_mask(lengths, steps, tf.int32)
    return found * mask, tf.reduce_max(best, axis=1)


def viterbi_decode(score, transition_params):
    """The same of one sequence outside of TensorFlow: (list of tags, score).

    Args:
      score: array [time, tags].
      transition_params: array [tags, tags].
    """
    best, pointers = np.array(score[0]), []
    for scores in score[1:]:
        reached = best[:, None] + transition_params
        pointers.append(np.argmax(reached, axis=0))
        best = np.max(reached, axis=0) + scores
    tags = [int(np.argmax(best))]
    for came_from in reversed(pointers):
        tags.append(int(came_from[tags[-1]]))
    return tags[::-1], np.max(best)
