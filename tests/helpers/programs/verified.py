"""A user's script: rows of a data set, a table that is looked up, dropout, Adam, a monitored session.

    python verified.py [fixed] [norm]

`fixed`: batches whose number of rows the graph knows; `norm`: batch normalisation.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import epl

tf.disable_v2_behavior()
epl.init()
epl.set_default_strategy(epl.replicate(1))
random = np.random.RandomState(epl.Env.get().cluster.worker_index)
rows = random.normal(size=(64, 6)).astype(np.float32), random.randint(0, 20, 64).astype(np.int32)
data = tf.data.Dataset.from_tensor_slices(rows).shuffle(64).batch(8, drop_remainder="fixed" in sys.argv)
x, places = tf.data.make_one_shot_iterator(data).get_next()
found = tf.nn.embedding_lookup(tf.get_variable("table", [20, 4]), places)
hidden = tf.concat([tf.nn.tanh(x @ tf.get_variable("kernel", [6, 8])), found], 1)
hidden = tf.nn.dropout(hidden, rate=0.3)
if "norm" in sys.argv:
    hidden = tf.layers.batch_normalization(hidden, training=True)
loss = tf.reduce_mean(tf.square(hidden @ tf.get_variable("out", [12, 1]) - x[:, :1]))
with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    step = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=tf.train.get_or_create_global_step())
with tf.train.MonitoredTrainingSession() as session:
    while not session.should_stop():
        session.run([step, loss])
