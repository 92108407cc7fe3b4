"""Models whose gradients are IndexedSlices, tables, and inputs of strings."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.zoo import model as m


def embedding_bag(inputs):
    """The mean of looked-up rows; ids repeat within and across replicas."""
    table = m.variable("table", [10, 6], seed=1)
    bag = tf.reduce_mean(tf.nn.embedding_lookup(table, inputs["ids"]), axis=1)
    return m.classification(m.dense(bag, 3, "logits", seed=2), inputs["labels"])


def sparse_bag(inputs):
    """embedding_lookup_sparse over a SparseTensor of changing size, two lookups in a partitioned table."""
    table = tf.get_variable("table", [12, 4], initializer=m.initial(1), partitioner=tf.fixed_size_partitioner(2))
    ids = inputs["ids"]
    where = tf.where(tf.not_equal(ids, 0))
    present = tf.SparseTensor(where, tf.gather_nd(ids, where), tf.shape(ids, out_type=tf.int64))
    # A row without any id would be dropped: column 0 is always present.
    first = tf.nn.embedding_lookup(table, ids[:, 0], partition_strategy="div")
    bag = tf.nn.embedding_lookup_sparse(
        table, tf.sparse_reset_shape(present), None, partition_strategy="div", combiner="sqrtn"
    )
    return m.classification(m.dense(tf.concat([bag, first], axis=1), 3, "logits", seed=2), inputs["labels"])


def padded_tokens(rng, size):
    """Data of `sparse_bag`: `ids` [size, 5], 0 is padding but never in column 0."""
    ids = rng.randint(0, 12, (size, 5)).astype(np.int32)
    ids[:, 0] = rng.randint(1, 12, size)
    return {"ids": ids, "labels": rng.randint(0, 3, size).astype(np.int64)}


def tied_embedding(inputs):
    """One table for looking up and for the output: its gradient is the sum of a sparse and a dense one."""
    table = m.variable("table", [10, 6], seed=1)
    context = tf.reduce_mean(tf.nn.embedding_lookup(table, inputs["ids"]), axis=1)
    hidden = m.dense(context, 6, "hidden", seed=2, activation=tf.nn.tanh)
    return m.classification(tf.matmul(hidden, table, transpose_b=True), inputs["labels"])


def resource_embedding(inputs):
    """Resource variable tables of two widths, one of them looked up twice."""
    with tf.variable_scope("tables", use_resource=True):
        wide = m.variable("wide", [10, 6], seed=1)
        narrow = m.variable("narrow", [10, 2], seed=2)
        words = tf.reduce_sum(tf.nn.embedding_lookup(wide, inputs["ids"]), axis=1)
        pairs = tf.nn.embedding_lookup(wide, inputs["ids"][:, 0]) * tf.nn.embedding_lookup(wide, inputs["ids"][:, 1])
        features = tf.concat([words, pairs, tf.nn.embedding_lookup(narrow, inputs["ids"][:, 2])], axis=1)
        return m.classification(m.dense(features, 3, "logits", seed=3), inputs["labels"])


COLORS = ("red", "green", "blue", "black")


def feature_columns(inputs):
    """A lookup table from strings, and feature columns of several kinds."""
    column = tf.feature_column
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(COLORS[:2]), tf.constant([1.5, -0.5])), default_value=0.25
    )
    color = column.categorical_column_with_vocabulary_list("color", COLORS)
    features = {"color": inputs["color"], "age": inputs["age"]}
    layer = column.input_layer(
        features,
        [
            column.numeric_column("age"),
            column.indicator_column(column.bucketized_column(column.numeric_column("age"), [-0.5, 0.5])),
            column.embedding_column(color, 3, initializer=m.initial(1)),
            column.indicator_column(column.categorical_column_with_hash_bucket("color", 5)),
        ],
    )
    layer = tf.concat([layer, tf.expand_dims(table.lookup(inputs["color"]), 1)], axis=1)
    return m.classification(m.dense(layer, 2, "logits", seed=2), inputs["labels"])


def people(rng, size):
    """Data of `feature_columns`: strings (some not in the vocabulary), numbers and labels, each [size]."""
    return {
        "color": rng.choice(np.array(COLORS + ("pink",), dtype=object), size),
        "age": rng.normal(size=size).astype(np.float32),
        "labels": rng.randint(0, 2, size).astype(np.int64),
    }


def dynamic_shapes(inputs):
    """Shapes that depend on the data: masks, unique ids, partition and stitch."""
    x, labels = inputs["x"], inputs["labels"]
    count = tf.cast(tf.shape(x)[0], tf.float32)
    positive = tf.cast(x[:, 0] > 0, tf.int32)
    parts = tf.dynamic_partition(x, positive, 2)
    sides = [m.dense(part, 4, "side_%d" % index, seed=10 + 2 * index) for index, part in enumerate(parts)]
    joined = tf.dynamic_stitch(tf.dynamic_partition(tf.range(tf.shape(x)[0]), positive, 2), sides)
    ids, where = tf.unique(labels)
    rows = tf.gather(tf.gather(m.variable("table", [3, 4], seed=1), ids), where)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        logits=m.dense(joined + rows, 3, "logits", seed=3), labels=labels
    )
    return tf.reduce_sum(tf.boolean_mask(losses, tf.not_equal(labels, 2))) / count


MODELS = [
    m.Model("embedding_bag", embedding_bag, m.tokens(4, 10, 3), m.ALL_OPTIMIZERS),
    m.Model("tied_embedding", tied_embedding, m.tokens(4, 10, 10), m.ALL_OPTIMIZERS),
    m.Model("resource_embedding", resource_embedding, m.tokens(4, 10, 3), m.ALL_OPTIMIZERS),
    m.Model(
        "embedding_as_dense", embedding_bag, m.tokens(4, 10, 3), ("adagrad",), {"communication.sparse_as_dense": True}
    ),
    m.Model("sparse_bag", sparse_bag, padded_tokens, ("adagrad",)),
    m.Model("feature_columns", feature_columns, people, ("adagrad",)),
    m.Model("dynamic_shapes", dynamic_shapes, m.vectors(6, 3), ("momentum",)),
]
