"""BERT, with the variables of the published checkpoints, and the logits of answers. Knows nothing about EPL."""

import json
import math

import tensorflow.compat.v1 as tf

_KEYS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
)


def read_config(path):
    """The dict in a bert_config.json; says which keys are missing."""
    with open(path) as source:
        config = json.load(source)
    missing = [key for key in _KEYS if key not in config]
    if missing:
        raise ValueError("%s lacks %s" % (path, ", ".join(missing)))
    if config.get("hidden_act", "gelu") != "gelu":
        raise ValueError("%s wants hidden_act=%r; this model has gelu only" % (path, config["hidden_act"]))
    if config["hidden_size"] % config["num_attention_heads"]:
        raise ValueError("%s: hidden_size is not a multiple of num_attention_heads" % path)
    return config


class Bert(object):
    """The model; calling it adds it to the default graph.

    Args:
      config: as read_config gives it.
      training: whether units are dropped.
    """

    def __init__(self, config, training):
        self._config = config
        self._training = training

    def __call__(self, tokens, mask, segments):
        """Numbers for each token of some rows.

        Args:
          tokens, mask, segments: int32 [batch, length]; mask is 1 where there is a token.

        Returns:
          float32 [batch, length, hidden_size].
        """
        with tf.variable_scope("bert"):
            with tf.variable_scope("embeddings"):
                x = self._embed(tokens, segments)
            # Added to the attention's logits: nothing for a token, so much less for none that it gets no weight.
            ignored = (1.0 - tf.cast(mask, tf.float32))[:, tf.newaxis, tf.newaxis, :] * -10000.0
            for layer in range(self._config["num_hidden_layers"]):
                with tf.variable_scope("encoder/layer_%d" % layer):
                    x = self._layer(x, ignored)
        return x

    def _initializer(self):
        return tf.truncated_normal_initializer(stddev=self._config["initializer_range"])

    def _dense(self, x, width, name, activation=None):
        return tf.layers.dense(x, width, activation, kernel_initializer=self._initializer(), name=name)

    def _drop(self, x, key):
        rate = self._config[key]
        return tf.nn.dropout(x, rate=rate) if self._training and rate else x

    def _normalise(self, x):
        with tf.variable_scope("LayerNorm"):
            shift = tf.get_variable("beta", [x.shape[-1]], initializer=tf.zeros_initializer())
            gain = tf.get_variable("gamma", [x.shape[-1]], initializer=tf.ones_initializer())
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            return gain * (x - mean) * tf.rsqrt(variance + 1e-12) + shift

    def _embed(self, tokens, segments):
        config, width = self._config, self._config["hidden_size"]
        words = tf.get_variable("word_embeddings", [config["vocab_size"], width], initializer=self._initializer())
        kinds = tf.get_variable(
            "token_type_embeddings", [config["type_vocab_size"], width], initializer=self._initializer()
        )
        places = tf.get_variable(
            "position_embeddings", [config["max_position_embeddings"], width], initializer=self._initializer()
        )
        # The second table is so small that a product is quicker than looking up.
        kind = tf.tensordot(tf.one_hot(segments, config["type_vocab_size"]), kinds, 1)
        x = tf.gather(words, tokens) + kind + places[: tokens.shape[1]]
        return self._drop(self._normalise(x), "hidden_dropout_prob")

    def _layer(self, x, ignored):
        width = self._config["hidden_size"]
        with tf.variable_scope("attention"):
            with tf.variable_scope("self"):
                attended = self._attend(x, ignored)
            with tf.variable_scope("output"):
                attended = self._drop(self._dense(attended, width, "dense"), "hidden_dropout_prob")
                x = self._normalise(x + attended)
        with tf.variable_scope("intermediate"):
            hidden = self._dense(x, self._config["intermediate_size"], "dense", gelu)
        with tf.variable_scope("output"):
            hidden = self._drop(self._dense(hidden, width, "dense"), "hidden_dropout_prob")
            return self._normalise(x + hidden)

    def _attend(self, x, ignored):
        length, width = int(x.shape[1]), int(x.shape[2])
        heads = self._config["num_attention_heads"]

        def split(name):
            parts = tf.reshape(self._dense(x, width, name), [-1, length, heads, width // heads])
            return tf.transpose(parts, [0, 2, 1, 3])

        queries, keys, values = split("query"), split("key"), split("value")
        logits = tf.matmul(queries, keys, transpose_b=True) / math.sqrt(width // heads) + ignored
        weights = self._drop(tf.nn.softmax(logits), "attention_probs_dropout_prob")
        return tf.reshape(tf.transpose(tf.matmul(weights, values), [0, 2, 1, 3]), [-1, length, width])


def gelu(x):
    """The Gaussian error linear unit, by the tanh that published checkpoints were trained with."""
    return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def answer_logits(x):
    """[batch, length, width] -> (logits of where the answer begins, and of where it ends), [batch, length] each."""
    with tf.variable_scope("cls/squad"):
        weights = tf.get_variable(
            "output_weights", [2, x.shape[-1]], initializer=tf.truncated_normal_initializer(stddev=0.02)
        )
        bias = tf.get_variable("output_bias", [2], initializer=tf.zeros_initializer())
    return tf.unstack(tf.tensordot(x, weights, [[2], [1]]) + bias, axis=2)


def variables_from(path, variables):
    """Lets variables begin with the values of a checkpoint: those of the model that have the same name there.

    Args:
      path: of the checkpoint.
      variables: the model's.

    Returns:
      Names of the variables that were found.
    """
    there = {name for name, _ in tf.train.list_variables(path)}
    found = [v.op.name for v in variables if v.op.name in there]
    if not found:
        raise ValueError("the checkpoint %s has none of this model's variables, such as %s" % (path, variables[0].name))
    tf.train.init_from_checkpoint(path, {name: name for name in found})
    return found
