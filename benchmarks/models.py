"""The models that the benchmarks train: plain TensorFlow, single-device."""

import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

BATCH = 64


def batches(shape, classes):
    """An endless data set of one random batch, so that reading data takes no time."""
    rng = np.random.RandomState(0)
    x = rng.normal(size=(BATCH,) + shape).astype(np.float32)
    labels = rng.randint(0, classes, BATCH).astype(np.int64)
    dataset = tf.data.Dataset.from_tensors((x, labels)).repeat()
    return tf.data.make_one_shot_iterator(dataset).get_next()


def mlp():
    """Four hidden layers of 1024 on 1024 inputs, 10 classes: 4.2 M parameters in the layers, batch 64."""
    x, labels = batches((1024,), 10)
    for _ in range(4):
        x = tf.layers.dense(x, 1024, activation=tf.nn.relu)
    return tf.losses.sparse_softmax_cross_entropy(labels, tf.layers.dense(x, 10))


def cnn():
    """Two convolutions with pooling and a dense layer on images of 28 x 28, batch 64."""
    x, labels = batches((28, 28, 1), 10)
    for filters in (32, 64):
        x = tf.layers.conv2d(x, filters, 3, padding="same", activation=tf.nn.relu)
        x = tf.layers.max_pooling2d(x, 2, 2)
    x = tf.layers.dense(tf.layers.flatten(x), 128, activation=tf.nn.relu)
    return tf.losses.sparse_softmax_cross_entropy(labels, tf.layers.dense(x, 10))


def resnet20():
    """The residual network of 20 layers for images of 32 x 32 (He et al. 2015, section 4.2), batch 64."""
    x, labels = batches((32, 32, 3), 10)

    def layer(x, filters, size=3, stride=1):
        x = tf.layers.conv2d(x, filters, size, stride, padding="same", use_bias=False)
        return tf.layers.batch_normalization(x, training=True)

    x = tf.nn.relu(layer(x, 16))
    for filters in (16, 32, 64):
        for _ in range(3):
            stride = filters // x.shape[-1].value
            shortcut = x if stride == 1 else layer(x, filters, 1, stride)
            x = tf.nn.relu(shortcut + layer(tf.nn.relu(layer(x, filters, stride=stride)), filters))
    return tf.losses.sparse_softmax_cross_entropy(labels, tf.layers.dense(tf.reduce_mean(x, [1, 2]), 10))


def normed():
    """Twelve rounds of normalisation and activation on rows of 512 numbers, 512 rows: much memory, few products."""
    x, labels = batches((8, 512), 10)
    for _ in range(12):
        mean = tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x - mean), -1, keepdims=True)
        x = (x - mean) * tf.rsqrt(variance + 1e-6) * tf.Variable(tf.ones([512])) + tf.Variable(tf.zeros([512]))
        x = 0.5 * x * (1.0 + tf.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
    return tf.losses.sparse_softmax_cross_entropy(labels, tf.layers.dense(tf.reduce_mean(x, 1), 10))


def bert():
    """BERT of 4 layers, 128 wide, with 4 heads, on 8 rows of 64 bytes: the model of examples/bert_pipeline."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "bert_pipeline"))
    import model

    rows = np.random.RandomState(0).randint(0, 256, [8, 64]).astype(np.int32)
    tokens = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensors(rows).repeat()).get_next()
    x = model.embed(tokens, 128)
    for layer in range(4):
        x = model.transformer_layer(x, 4, "layer_%d" % layer)
    return model.masked_loss(x, tokens, tf.ones_like(tokens, tf.float32))[0]


def empty():
    """A constant and nothing to train: what is left is the session's own time."""
    return tf.constant(1.0)


MODELS = {"mlp": mlp, "cnn": cnn, "resnet20": resnet20, "normed": normed, "bert": bert, "empty": empty}


def optimizer():
    return tf.train.MomentumOptimizer(0.001, 0.9)
