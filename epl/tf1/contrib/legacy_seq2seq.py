"""`tf.contrib.legacy_seq2seq`: sequence-to-sequence models over lists of tensors, unrolled."""

import copy

import tensorflow.compat.v1 as tf

from epl.tf1.more_cells import EmbeddingWrapper, OutputProjectionWrapper


def _extract_argmax_and_embed(embedding, output_projection=None, update_embedding=True):
    """A loop_function that embeds the likeliest id of the step before."""

    def loop_function(previous, _):
        if output_projection is not None:
            previous = tf.nn.xw_plus_b(previous, output_projection[0], output_projection[1])
        embedded = tf.nn.embedding_lookup(embedding, tf.argmax(previous, 1))
        return embedded if update_embedding else tf.stop_gradient(embedded)

    return loop_function


def rnn_decoder(decoder_inputs, initial_state, cell, loop_function=None, scope=None):
    """Runs a cell over a list of inputs.

    Args:
      decoder_inputs: list of [batch, width].
      initial_state: of the cell.
      cell: an RNNCell.
      loop_function: of the output before and the step's number: makes the next input, in the place of the given one.
      scope: default "rnn_decoder".

    Returns:
      (list of outputs, last state).
    """
    with tf.variable_scope(scope or "rnn_decoder"):
        state, outputs, previous = initial_state, [], None
        for number, given in enumerate(decoder_inputs):
            if loop_function is not None and previous is not None:
                with tf.variable_scope("loop_function", reuse=True):
                    given = loop_function(previous, number)
            if number > 0:
                tf.get_variable_scope().reuse_variables()
            output, state = cell(given, state)
            outputs.append(output)
            if loop_function is not None:
                previous = output
    return outputs, state


def basic_rnn_seq2seq(encoder_inputs, decoder_inputs, cell, dtype=tf.float32, scope=None):
    """An encoder and a decoder of the same cell, with variables of their own: (outputs, last state)."""
    with tf.variable_scope(scope or "basic_rnn_seq2seq"):
        encoder = copy.deepcopy(cell)
        _, state = tf.nn.static_rnn(encoder, encoder_inputs, dtype=dtype)
        return rnn_decoder(decoder_inputs, state, cell)


def tied_rnn_seq2seq(encoder_inputs, decoder_inputs, cell, loop_function=None, dtype=tf.float32, scope=None):
    """The same with the variables shared."""
    with tf.variable_scope("combined_tied_rnn_seq2seq"):
        scope = scope or "tied_rnn_seq2seq"
        _, state = tf.nn.static_rnn(cell, encoder_inputs, dtype=dtype, scope=scope)
        tf.get_variable_scope().reuse_variables()
        return rnn_decoder(decoder_inputs, state, cell, loop_function, scope)


def embedding_rnn_decoder(
    decoder_inputs,
    initial_state,
    cell,
    num_symbols,
    embedding_size,
    output_projection=None,
    feed_previous=False,
    update_embedding_for_previous=True,
    scope=None,
):
    """rnn_decoder over ids, which are looked up in a variable "embedding" [num_symbols, embedding_size].

    Args:
      decoder_inputs: list of int32 [batch].
      output_projection: (weights, biases) that make logits of outputs.
      feed_previous: go on with what was likeliest.
      update_embedding_for_previous: with gradients through that.
    """
    with tf.variable_scope(scope or "embedding_rnn_decoder"):
        if output_projection is not None:
            _check_projection(output_projection, cell.output_size, num_symbols)
        embedding = tf.get_variable("embedding", [num_symbols, embedding_size])
        loop = None
        if feed_previous:
            loop = _extract_argmax_and_embed(embedding, output_projection, update_embedding_for_previous)
        embedded = [tf.nn.embedding_lookup(embedding, ids) for ids in decoder_inputs]
        return rnn_decoder(embedded, initial_state, cell, loop_function=loop)


def _check_projection(projection, width, num_symbols):
    tf.convert_to_tensor(projection[0]).get_shape().assert_is_compatible_with([width, num_symbols])
    tf.convert_to_tensor(projection[1]).get_shape().assert_is_compatible_with([num_symbols])


def embedding_rnn_seq2seq(
    encoder_inputs,
    decoder_inputs,
    cell,
    num_encoder_symbols,
    num_decoder_symbols,
    embedding_size,
    output_projection=None,
    feed_previous=False,
    dtype=None,
    scope=None,
):
    """An encoder and a decoder over ids: (outputs, last state). feed_previous may be a boolean tensor."""
    with tf.variable_scope(scope or "embedding_rnn_seq2seq") as here:
        if dtype is not None:
            here.set_dtype(dtype)
        else:
            dtype = here.dtype
        encoder = EmbeddingWrapper(
            copy.deepcopy(cell), embedding_classes=num_encoder_symbols, embedding_size=embedding_size
        )
        _, state = tf.nn.static_rnn(encoder, encoder_inputs, dtype=dtype)
        if output_projection is None:
            cell = OutputProjectionWrapper(cell, num_decoder_symbols)

        def decode(feed):
            return embedding_rnn_decoder(
                decoder_inputs, state, cell, num_decoder_symbols, embedding_size, output_projection, feed
            )

        return _decoded(feed_previous, decode)


def _decoded(feed_previous, decode):
    """What a decoder gives, where it may depend on a tensor whether it goes on with its own outputs."""
    if isinstance(feed_previous, bool):
        return decode(feed_previous)

    def flat(feed, reuse):
        with tf.variable_scope(tf.get_variable_scope(), reuse=reuse):
            outputs, state = decode(feed)
            return outputs + tf.nest.flatten(state), (len(outputs), state)

    structure = []

    def branch(feed, reuse):
        values, shape = flat(feed, reuse)
        structure.append(shape)
        return values

    found = tf.cond(feed_previous, lambda: branch(True, None), lambda: branch(False, True))
    count, state = structure[0]
    return found[:count], tf.nest.pack_sequence_as(state, found[count:])


def sequence_loss_by_example(
    logits, targets, weights, average_across_timesteps=True, softmax_loss_function=None, name=None
):
    """The cross-entropy of each sequence: [batch].

    Args:
      logits: list of [batch, classes].
      targets: list of int32 [batch].
      weights: list of float [batch].
      average_across_timesteps: divide by the sum of a sequence's weights.
      softmax_loss_function: of `labels` and `logits`, in the place of the cross-entropy.

    Raises:
      ValueError: the lists have other lengths.
    """
    if len(targets) != len(logits) or len(weights) != len(logits):
        raise ValueError(
            "Lengths of logits, weights, and targets must be the same %d, %d, %d."
            % (len(logits), len(weights), len(targets))
        )
    with tf.name_scope(name, "sequence_loss_by_example", logits + targets + weights):
        losses = []
        for logit, target, weight in zip(logits, targets, weights):
            if softmax_loss_function is None:
                target = tf.reshape(target, [-1])
                loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=logit)
            else:
                loss = softmax_loss_function(labels=target, logits=logit)
            losses.append(loss * weight)
        total = tf.add_n(losses)
        if average_across_timesteps:
            total /= tf.add_n(weights) + 1e-12  # of a sequence without any weight
        return total


def sequence_loss(
    logits,
    targets,
    weights,
    average_across_timesteps=True,
    average_across_batch=True,
    softmax_loss_function=None,
    name=None,
):
    """The sum of sequence_loss_by_example, or its mean over the batch; arguments as there."""
    with tf.name_scope(name, "sequence_loss", logits + targets + weights):
        by_example = sequence_loss_by_example(logits, targets, weights, average_across_timesteps, softmax_loss_function)
        cost = tf.reduce_sum(by_example)
        return cost / tf.cast(tf.shape(targets[0])[0], cost.dtype) if average_across_batch else cost


def model_with_buckets(
    encoder_inputs,
    decoder_inputs,
    targets,
    weights,
    buckets,
    seq2seq,
    softmax_loss_function=None,
    per_example_loss=False,
    name=None,
):
    """A model for each of some lengths, with shared variables.

    Args:
      encoder_inputs, decoder_inputs, targets, weights: lists as long as the longest bucket wants.
      buckets: list of (length of the encoder, of the decoder).
      seq2seq: function of two lists that gives (outputs, state).
      per_example_loss: losses are [batch] instead of scalars.

    Returns:
      (list of lists of outputs, list of losses).
    """
    for name_, given, place in (
        ("encoder_inputs", encoder_inputs, 0),
        ("targets", targets, 1),
        ("weights", weights, 1),
    ):
        if len(given) < buckets[-1][place]:
            raise ValueError(
                "Length of %s (%d) must be at least that of last bucket (%d)." % (name_, len(given), buckets[-1][place])
            )
    losses, outputs = [], []
    loss = sequence_loss_by_example if per_example_loss else sequence_loss
    with tf.name_scope(name, "model_with_buckets", encoder_inputs + decoder_inputs + targets + weights):
        for number, (encoder, decoder) in enumerate(buckets):
            with tf.variable_scope(tf.get_variable_scope(), reuse=True if number > 0 else None):
                found, _ = seq2seq(encoder_inputs[:encoder], decoder_inputs[:decoder])
                outputs.append(found)
                losses.append(
                    loss(found, targets[:decoder], weights[:decoder], softmax_loss_function=softmax_loss_function)
                )
    return outputs, losses
