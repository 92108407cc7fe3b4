"""What the board of a worker shows of programs that train in different ways."""

import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from epl.session.hooks import current_job

ROWS, STEPS = 8, 3


def _begin(epl, **config):
    epl.init(epl.Config(config))
    epl.set_default_strategy(epl.replicate(1))


def _shows():
    board = current_job().following.board
    names = ("steps", "offset", "total", "loss", "rows", "in_steps_s", "waited_others_s", "waited_data_s")
    found = {name: board[name] for name in names}
    return found


def _loss(x, y):
    return tf.losses.mean_squared_error(y, tf.layers.dense(x, 1))


def session(epl, io_stats):
    """A MonitoredTrainingSession with a StopAtStepHook, on data of its own; the last loss that it fetched besides."""
    _begin(epl, **{"io.stats": io_stats})
    data = np.random.RandomState(0).rand(ROWS * STEPS * 2, 4).astype(np.float32)
    batches = tf.data.Dataset.from_tensor_slices(data).repeat().batch(ROWS)
    x = tf.data.make_one_shot_iterator(batches).get_next()
    loss = _loss(x, tf.reduce_sum(x, 1, keepdims=True))
    global_step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, global_step)
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        for last in (STEPS, 2 * STEPS):  # the second one restores the first one's checkpoint
            chief = epl.Env.get().cluster.worker_index == 0
            hooks = [tf.train.StopAtStepHook(last_step=last)]
            with tf.train.MonitoredTrainingSession(
                is_chief=chief, checkpoint_dir=folder if chief else None, hooks=hooks
            ) as sess:
                while not sess.should_stop():
                    losses.append(float(sess.run([train, loss])[1]))
        current_job().following._settle()  # as at the end of the process
    return _shows(), losses[-1], len(losses)


def fed(epl):
    """Feeds; fetches no loss."""
    _begin(epl)
    x, y = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None, 1])
    train = tf.train.GradientDescentOptimizer(0.01).minimize(_loss(x, y))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(STEPS):
            sess.run(train, {x: np.ones([ROWS, 4]), y: np.ones([ROWS, 1])})
    return _shows()


def keras(epl):
    """`fit` of two epochs."""
    _begin(epl)
    x = np.random.RandomState(0).rand(ROWS * STEPS, 4).astype(np.float32)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
    model.compile("sgd", "mse")
    model.fit(x, x.sum(1, keepdims=True), batch_size=ROWS, epochs=2, verbose=0)
    return _shows()


def estimator(epl):
    """train(max_steps=...)."""
    _begin(epl)

    def model_fn(features, labels, mode):
        loss = _loss(features, labels)
        train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def input_fn():
        x = np.ones([ROWS, 4], np.float32)
        return tf.data.Dataset.from_tensors((x, x[:, :1])).repeat()

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "worker-%d" % epl.Env.get().cluster.worker_index)
        tf.estimator.Estimator(model_fn, path).train(input_fn, max_steps=STEPS)
    return _shows()
