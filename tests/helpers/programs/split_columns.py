"""Feature columns whose tables devices have rows of, which also divide the batch (epl.split)."""

import contextlib

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.programs.split import OPTIMIZERS, share_of_copy
from tests.helpers.programs.split_tables import entries, exchanged_for_tables, share_of_entries

ROWS, WIDTH, IDS = 301, 8, 5
WORDS = np.array(["", "a", "few", "words"])


def _columns(layer):
    """Three that look up, of which two share a table where the layer goes with that; and one that does not."""
    columns = tf.feature_column
    seen, bought = [columns.categorical_column_with_identity(key, ROWS) for key in ("seen", "bought")]
    words = columns.categorical_column_with_hash_bucket("words", 53)
    if layer == "input_layer":
        looked_up = columns.shared_embedding_columns([seen, bought], WIDTH, combiner="sqrtn")
    else:
        bought = columns.weighted_categorical_column(bought, "weights")
        looked_up = [columns.embedding_column(each, WIDTH) for each in (seen, bought)]
    return looked_up + [columns.embedding_column(words, WIDTH, combiner="sum"), columns.numeric_column("age")]


def _looked_up(given, layer):
    columns = _columns(layer)
    if layer == "input_layer":
        return tf.feature_column.input_layer(given, columns)
    return tf.keras.layers.DenseFeatures(columns)(given)


def columns(epl, device_count, optimizer, layer="input_layer", sizes=(8, 7, 1), **config):
    """What every step gives, and all variables after it.

    Args:
      epl: the module, or None.
      device_count: that have parts of the tables.
      optimizer: a name.
      layer: "input_layer" or "DenseFeatures", in the scope of the tables.
      sizes: of the batches.
    """
    config = {key.replace("__", "."): value for key, value in config.items()}
    config["cluster.colocate_split_and_replicate"] = True
    common.init(epl, config)
    tf.set_random_seed(12)
    if epl:
        epl.set_default_strategy(epl.replicate(device_count))
    seen, words = tf.placeholder("int64", [None, IDS]), tf.placeholder(tf.string, [None])
    bought, age = tf.sparse_placeholder("int64", [None, IDS]), tf.placeholder(tf.float32, [None, 1])
    weights = tf.SparseTensor(bought.indices, 0.02 * tf.cast(bought.values, tf.float32) - 1.0, bought.dense_shape)
    given = {"seen": seen, "words": words, "bought": bought, "weights": weights, "age": age}
    with tf.variable_scope("model"), epl.split(device_count) if epl else contextlib.suppress():
        found = _looked_up(given, layer)
    hidden = tf.tanh(tf.layers.dense(found, 5, name="hidden"))
    loss = tf.reduce_mean(tf.square(hidden - 0.5))
    step = OPTIMIZERS[optimizer]().minimize(loss, tf.train.get_or_create_global_step())
    fetches = [common.mean_everywhere(epl, loss), common.rows_everywhere(epl, found)]
    variables, history = tf.global_variables(), []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        history.append(session.run([v.value() for v in variables]))
        for number, size in enumerate(sizes):
            draw = np.random.RandomState(number)
            ids = draw.randint(-1, ROWS, [size, IDS])
            ids[1:2] = -1  # none at all
            feed = {seen: ids, words: WORDS[draw.randint(0, 4, size)], age: draw.rand(size, 1)}
            feed = {key: share_of_copy(epl, device_count, value) for key, value in feed.items()}
            feed[bought] = share_of_entries(epl, device_count, entries(draw.randint(0, ROWS, [size, IDS]), "sparse"))
            history.append(session.run(fetches + [step], feed)[:-1] + session.run([v.value() for v in variables]))
        exchanged = exchanged_for_tables(epl, session)
    return history, exchanged
