"""A word-level language model of stacked LSTMs (Zaremba and others, arXiv:1409.2329). Knows nothing about EPL."""

import tensorflow.compat.v1 as tf


class LanguageModel(object):
    """Reads a window of words and says at each word which comes next.

    The first dimension of everything that is fed is the rows of the batch, and unknown when the graph is built.

    Args:
      vocabulary: number of different words.
      width: numbers for each word, and units of each LSTM.
      layers: LSTMs on top of each other.
      scale: initial values are drawn uniformly from -scale to scale.

    Attributes:
      words, targets: int32 [rows, length], to be fed.
      state: float32 [rows, layers, 2, width], to be fed: what the LSTMs remember of the words before. At first 0.
      keep: scalar, the share of units that dropout keeps. 1 where it is not fed.
      final_state: as `state`, after the last word. Feed it with the next window.
      loss: scalar, the mean cross-entropy of a word; its exponential is the perplexity.
    """

    def __init__(self, vocabulary, width, layers, scale=0.1):
        self.words = tf.placeholder(tf.int32, [None, None], "words")
        self.targets = tf.placeholder(tf.int32, [None, None], "targets")
        self.state = tf.placeholder(tf.float32, [None, layers, 2, width], "state")
        self.keep = tf.placeholder_with_default(1.0, [], "keep")
        with tf.variable_scope("model", initializer=tf.random_uniform_initializer(-scale, scale)):
            table = tf.get_variable("embedding", [vocabulary, width])
            outputs = self._lstms(tf.nn.embedding_lookup(table, self.words), width, layers)
            logits = tf.layers.dense(outputs, vocabulary, name="logits")
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.targets, logits=logits)
        self.loss = tf.reduce_mean(losses, name="loss")

    def _lstms(self, inputs, width, layers):
        """The outputs of the last layer; sets `final_state`. Dropout between the layers, not from word to word."""
        cells = [tf.nn.rnn_cell.LSTMCell(width, forget_bias=0.0, name="lstm_%d" % n) for n in range(layers)]
        dropped = [tf.nn.rnn_cell.DropoutWrapper(cell, output_keep_prob=self.keep) for cell in cells]
        first = tuple(tf.nn.rnn_cell.LSTMStateTuple(self.state[:, n, 0], self.state[:, n, 1]) for n in range(layers))
        outputs, last = tf.nn.dynamic_rnn(
            tf.nn.rnn_cell.MultiRNNCell(dropped), tf.nn.dropout(inputs, rate=1 - self.keep), initial_state=first
        )
        self.final_state = tf.stack([tf.stack(each, axis=1) for each in last], axis=1, name="final_state")
        return outputs


def training(loss, length, rate, clip, step):
    """A step of gradient descent on the loss summed over a window; the gradients' global norm is clipped to `clip`."""
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss * length, variables), clip)
    return tf.train.GradientDescentOptimizer(rate).apply_gradients(list(zip(gradients, variables)), step)
