"""Programs whose copies of the model train by themselves and are averaged now and then, and what simulates them."""

import collections
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.checks import assert_same_state
from tests.helpers.programs import common, estimators, keras_models
from tests.helpers.references import LocalMomentum
from tests.helpers.zoo import model as m

STEPS = 20
RATE, MOMENTUM = 0.1, 0.9
LATE = {"local_sgd.k_steps": 3, "local_sgd.overlap": True, "local_sgd.average_slots": False}
ADAPTIVE = {"local_sgd.k_steps": 8, "local_sgd.adaptive": True, "local_sgd.init_k_steps": 2}
OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.3),
    "momentum": lambda: tf.train.MomentumOptimizer(RATE, MOMENTUM),
    "adam": lambda: tf.train.AdamOptimizer(0.02),
    "rows": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
}


def _model(feeds, optimizer, resource=False):
    with tf.variable_scope("", use_resource=resource):
        loss = common.classifier(feeds.x, feeds.labels)
        if optimizer == "normed":  # moving averages besides
            hidden = tf.layers.batch_normalization(feeds.x, training=True, momentum=0.7)
            loss += tf.reduce_mean(tf.square(m.dense(hidden, 1, "beside", seed=5)))
        if optimizer == "summed":
            loss += 1e-2 * tf.reduce_sum(tf.square(m.dense(feeds.x, 1, "beside", seed=5)))
        if optimizer == "rows":  # sparse gradients besides
            table = m.variable("table", [10, 3], seed=6)
            loss += tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, feeds.labels) - 1))
        step = tf.train.get_or_create_global_step()
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train = OPTIMIZERS.get(optimizer, OPTIMIZERS["sgd"])().minimize(loss, global_step=step)
    return loss, train, step


def _slots():
    """Names of the variables that optimizers keep for others."""
    trained = {v.op.name for v in tf.trainable_variables()}
    return {v.op.name for v in tf.global_variables() if v.op.name.rpartition("/")[0] in trained}


def simulate(epl, ranks, optimizer, periods, average_slots=True, start=None, steps=STEPS):
    """All ranks in one process of plain TensorFlow, one after the other.

    Args:
      periods: the steps, from 1, after which all variables are averaged.
      start: {variable: value} to begin with; default as the model says.

    Returns:
      (for each rank {"losses", "states": variables after each step}, initial variables).
    """
    common.init(epl)
    feeds = common.Feeds(epl)
    loss, train, step = _model(feeds, optimizer)
    kept = set() if average_slots else _slots()
    history = [{"losses": [], "states": []} for _ in range(ranks)]
    with common.session() as sess:
        common.initialize(sess)
        variables = {v.op.name: v for v in tf.global_variables()}

        def load(values):
            for name, value in values.items():
                variables[name].load(value, sess)

        if start is not None:
            load(start)
        initial = common.state(sess)
        states = [initial] * ranks
        for number in range(int(initial["global_step"]), int(initial["global_step"]) + steps):
            x, labels = common.batch(number)
            size = len(x) // ranks
            for rank in range(ranks):
                rows = slice(rank * size, (rank + 1) * size)
                load(states[rank])
                history[rank]["losses"].append(
                    sess.run([loss, train], {feeds.x: x[rows], feeds.labels: labels[rows]})[0]
                )
                states[rank] = common.state(sess)
            if number + 1 in periods:
                mean = {n: np.mean([s[n] for s in states], axis=0).astype(v.dtype) for n, v in initial.items()}
                states = [{n: s[n] if n in kept else mean[n] for n in s} for s in states]
            for rank in range(ranks):
                history[rank]["states"].append(states[rank])
    return history, initial


def simulated_late(initial, ranks, begin_step, first, steps):
    """The states of all ranks after each step from global step `first` on with LATE, by a simulation in NumPy."""
    simulation, found = LocalMomentum(initial, ranks, RATE, MOMENTUM, False), []
    for number in range(first, first + steps):
        parts = list(zip(*[np.split(rows, ranks) for rows in common.batch(number)]))
        since = number + 1 - max(begin_step, first)
        simulation.step(parts, since <= 0 or since % 3 == 0, late=since > 0)
        found.append([dict(state, global_step=np.int64(number + 1)) for state in simulation.states])
    return found


def simulated_adaptive(initial, ranks, first, steps):
    """The same with ADAPTIVE, and the global steps that ended with an average."""
    simulation, found, ends = LocalMomentum(initial, ranks, RATE, MOMENTUM, True), [], []
    period, taken, losses, at_first = 2, 0, [], None
    for number in range(first, first + steps):
        taken += 1
        parts = list(zip(*[np.split(rows, ranks) for rows in common.batch(number)]))
        losses.extend(simulation.step(parts, taken == period))
        found.append([dict(state, global_step=np.int64(number + 1)) for state in simulation.states])
        if taken == period:
            at_first = at_first or np.mean(losses)
            ends.append(number + 1)
            period, taken, losses = min(8, int(np.ceil(np.sqrt(np.mean(losses) / at_first) * 2))), 0, []
    return found, ends


def assert_states(got, want, rank):
    """The same variables of a rank after each step; biases are small sums of large terms, here in float64."""
    assert len(got) == len(want)
    for one, of_ranks in zip(got, want):
        in_numpy = {name: of_ranks[rank][name].astype(value.dtype) for name, value in one.items()}
        assert_same_state(one, in_numpy, atol=1e-5)


def train(epl, config, optimizer, steps=STEPS, resource=False):
    """What this worker's first copy of the model computes: {"losses", "states"}, and initial variables."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    loss, update, _ = _model(feeds, optimizer, resource)
    if config.get("pipeline.num_micro_batch", 1) > 1 and epl.Env.get().cluster.gpu_num_per_worker == 1:
        epl.add_to_collection(loss, epl.GraphKeys.LOCAL_MEAN_OBJECTS)
    # Of graphs as they are, XLA makes clusters with operations of several CPU devices, which it then refuses.
    return common.trained(feeds, loss, update, steps, as_it_is="execution.xla" not in config)


def saved(epl, folder, config, steps, then):
    """Saves after `steps`, in the middle of a period, and trains on; then restores on the chief and trains on from it.

    Returns (states after saving, the file, the global step that was restored, states after that).
    """
    common.init(epl, config)
    feeds = common.Feeds(epl)
    _, update, step = _model(feeds, "momentum")
    saver = tf.train.Saver()

    def trained(sess, first, count):
        states = []
        for number in range(first, first + count):
            sess.run(update, feeds.of(number))
            states.append(common.state(sess))
        return states

    with common.session() as sess:
        common.initialize(sess)
        trained(sess, 0, steps)
        path = saver.save(sess, os.path.join(folder, "model"))
        going_on = trained(sess, steps, then)
    with common.session() as sess:
        common.initialize(sess)
        if common.workers(epl)[0] == 0:
            saver.restore(sess, path)
            with open(os.path.join(folder, "first"), "w") as file:
                file.write("%d" % sess.run(step))
        else:
            _wait_for(os.path.join(folder, "first"))
        with open(os.path.join(folder, "first")) as file:
            first = int(file.read())
        resumed = trained(sess, first, then)
    return going_on, path, first, resumed


def _wait_for(path):
    deadline = time.time() + 60
    while not (os.path.exists(path) and os.path.getsize(path)):
        assert time.time() < deadline, path
        time.sleep(0.01)


def monitored(epl, folder, config, steps):
    """A monitored session that ends after `steps`; only the chief's folder holds its checkpoint."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    _, update, _ = _model(feeds, "momentum")
    number = 0
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=os.path.join(folder, "of_%d" % common.workers(epl)[0]),
        hooks=[tf.train.StopAtStepHook(last_step=steps)],
        config=common.threads(),
    ) as sess:
        while not sess.should_stop():
            sess.run(update, feeds.of(number))
            number += 1
    return number


def estimated(epl, folder, config, steps):
    """The variables that an Estimator leaves in its checkpoint after `steps`."""
    common.init(epl, config)
    batch = collections.namedtuple("Batch", "x labels")

    def model_fn(features, labels, mode):
        loss, update, _ = _model(batch(features["x"], labels), "momentum")
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=update)

    estimator = tf.estimator.Estimator(model_fn, config=estimators.run_config(folder))
    estimator.train(estimators.input_fn(epl, 0, steps), steps=steps)
    return estimators.variables(estimator)[0]


def of_keras(epl, config):
    """The error of a Keras model that is trained."""
    common.init(epl, config)
    model = keras_models.compiled()
    try:
        model.train_on_batch(*keras_models.rows(epl, 0, 1))
    except epl.errors.UnsupportedError as error:
        return str(error)
    return None


def unequal(epl, config, sizes):
    """Worker i has sizes[i] batches; two epochs in one session. Returns batches of each epoch, and the variables
    before and after the first step of the second one."""
    common.init(epl, config)
    size = sizes[common.workers(epl)[0]]
    batches = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(common.batch(0, size)).batch(1))
    loss = common.classifier(*batches.get_next())
    rate = tf.placeholder(tf.float32, [])
    update = tf.train.GradientDescentOptimizer(rate).minimize(loss)
    counts, before = [], None
    with common.session() as sess:
        common.initialize(sess)
        for epoch in range(2):
            sess.run(batches.initializer)
            counts.append(0)
            try:
                while True:
                    sess.run(update, {rate: 0.0 if epoch == 1 and counts[1] == 0 else 0.3})
                    counts[-1] += 1
                    if epoch == 1 and counts[1] == 1:
                        after = common.state(sess)
            except tf.errors.OutOfRangeError:
                before = before or common.state(sess)
    return counts, before, after


def apart(epl, folder, config, steps):
    """Worker 1 takes no step after its first before worker 0 has taken `steps`. Returns how often they exchanged."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    _, update, _ = _model(feeds, "sgd")
    from epl.session.hooks import job

    done = os.path.join(folder, "done")
    with common.session() as sess:
        common.initialize(sess)
        sess.run(update, feeds.of(0))
        before = job().place
        if common.workers(epl)[0] == 1:
            _wait_for(done)
        for number in range(1, steps):
            sess.run(update, feeds.of(number))
        if common.workers(epl)[0] == 0:
            with open(done, "w") as file:
                file.write("done")
        return before == job().place


def killed(epl, config):
    """Worker 1 ends without a word in the middle of a period. Returns the error of worker 0, which only trains on."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    _, update, _ = _model(feeds, "sgd")
    with common.session() as sess:
        common.initialize(sess)
        sess.run(update, feeds.of(0))
        if common.workers(epl)[0] == 1:
            os._exit(3)
        deadline = time.time() + 60
        try:
            while time.time() < deadline:
                sess.run(update, feeds.of(1))
        except epl.errors.CommunicationError as error:
            return type(error).__name__, str(error)
    return None


def refused(epl, config, kind):
    """The error of a program that local_sgd does not compose with."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    if kind == "counter":
        counter = tf.get_variable("seen", [], tf.int64, trainable=False, initializer=tf.zeros_initializer())
        seen = tf.assign_add(counter, tf.reduce_sum(feeds.labels))
    if kind == "stages":
        with epl.replicate(1):
            hidden = tf.layers.dense(feeds.x, 4)
        with epl.replicate(1):
            loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1)))
    else:
        loss = common.classifier(feeds.x, feeds.labels)
    if kind == "global":
        loss = common.mean_everywhere(epl, loss)
    update = OPTIMIZERS["sgd"]().minimize(loss)
    if kind == "counter":
        update = tf.group(update, seen)
    try:
        with common.session() as sess:
            common.initialize(sess)
            sess.run(update, feeds.of(0))
    except epl.errors.UnsupportedError as error:
        return str(error)
    return None
