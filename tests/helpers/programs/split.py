"""Models of which parts are divided over devices (epl.split)."""

import contextlib
import os
import runpy
import sys
import types

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers import split_models
from tests.helpers.programs import common

CLASSES = 7  # not a multiple of the devices
_MODULE = os.path.join(os.path.dirname(__file__), "..", "..", "..", "epl", "optimizers", "optimizers.py")


def _by_itself(name, *args, **kwargs):
    """One of EPL's optimizers, for the plain process too, into which EPL must not come: without kernels there."""
    if "epl" in sys.modules:
        return getattr(sys.modules["epl"].optimizers, name)(*args, **kwargs)
    package, optimizers = types.ModuleType("epl"), types.ModuleType("epl.optimizers")
    optimizers.fused_updates = types.SimpleNamespace(mark=lambda *what: None, distinct=lambda given: given)
    sys.modules.update({"epl": package, "epl.optimizers": optimizers})
    try:
        return runpy.run_path(_MODULE)[name](*args, **kwargs)
    finally:
        del sys.modules["epl"], sys.modules["epl.optimizers"]


OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    # Some of so many gradients are little more than rounding, which it would divide by itself.
    "adam": lambda: tf.train.AdamOptimizer(0.05, epsilon=1e-3),
    "lamb": lambda: _by_itself("LambOptimizer", 0.05),
    "lars": lambda: _by_itself("LarsOptimizer", 0.5, lars_coeff=0.1),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
}


def dividing_scope(epl, device_count, name="split"):
    return getattr(epl, name)(device_count) if epl else contextlib.suppress()


def _classifier(epl, device_count, optimizer, seed, colocate=False):
    """(x, labels, loss, logits, accuracy, operation that trains) of a classifier whose last layer is split."""
    tf.set_random_seed(seed)
    x = tf.placeholder(tf.float32, [None, common.FEATURES])
    labels = tf.placeholder(tf.int64, [None])
    with dividing_scope(epl, device_count, "replicate") if colocate else contextlib.suppress():
        hidden = tf.nn.tanh(tf.matmul(x, tf.get_variable("hidden", [common.FEATURES, 8])))
        hidden = tf.nn.dropout(hidden, rate=0.25)
    with dividing_scope(epl, device_count):
        kernel = tf.get_variable("kernel", [8, CLASSES])
        bias = tf.get_variable("bias", [CLASSES], initializer=tf.random_normal_initializer())
        logits = tf.nn.xw_plus_b(hidden, kernel, bias)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.reduce_mean(losses) + 1e-3 * tf.nn.l2_loss(kernel)
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))
    made = OPTIMIZERS[optimizer]()
    pairs = made.compute_gradients(loss)
    clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 1.0)
    step = made.apply_gradients(
        [(gradient, variable) for gradient, (_, variable) in zip(clipped, pairs)], tf.train.get_or_create_global_step()
    )
    return x, labels, loss, logits, accuracy, step


def _feeds(x, labels, step):
    rows, _ = common.batch(step)
    return {x: rows, labels: np.random.RandomState(step).randint(0, CLASSES, len(rows))}


def train(epl, device_count, optimizer, folder, colocate=False, resource=False, steps=3, seed=5):
    """What every step gives, and all variables after it; a checkpoint is written in the end."""
    common.init(epl, {"cluster.colocate_split_and_replicate": colocate})
    with tf.variable_scope("model", use_resource=resource):
        x, labels, loss, logits, accuracy, step = _classifier(epl, device_count, optimizer, seed, colocate)
    variables = tf.global_variables()
    saver, history = tf.train.Saver(), []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        history.append(session.run([v.value() for v in variables]))
        for number in range(steps):
            fetched = session.run([loss, logits, accuracy, step], _feeds(x, labels, number))[:3]
            history.append(fetched + session.run([v.value() for v in variables]))
        saver.save(session, os.path.join(folder, "model"))
    return history


def share_of_copy(epl, device_count, rows):
    """What this worker is fed of a global batch: workers of one copy of the model get the same."""
    if not epl:
        return rows
    cluster = epl.Env.get().cluster
    copies = cluster.total_gpu_num // device_count
    workers = max(1, device_count // cluster.gpu_num_per_worker)
    size = len(rows) // min(copies, cluster.worker_num)
    place = cluster.worker_index // workers
    return rows[place * size : (place + 1) * size]


def lookup(epl, device_count, optimizer, tokens, labels, clip, state, recompute):
    """(merged tensors, operation that trains): rows of a divided table, a layer that is whole, a divided classifier; of
    its logits a moving average is kept."""
    with dividing_scope(epl, device_count):
        table = tf.get_variable("table", [11, 4])
        found = tf.nn.embedding_lookup(table, tokens)
    hidden = tf.nn.tanh(tf.layers.dense(found, 8, name="hidden"))
    with dividing_scope(epl, device_count), epl.recompute() if recompute and epl else contextlib.suppress():
        hidden = tf.nn.tanh(tf.layers.dense(hidden, 9, name="wide"))
        hidden = tf.nn.tanh(tf.layers.dense(hidden, 8, name="narrow"))
    with dividing_scope(epl, device_count):
        logits = tf.layers.dense(hidden, CLASSES, name="logits")
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        changes = []
        if state:
            average = tf.get_variable("average", [CLASSES], trainable=False)
            changes.append(tf.assign(average, 0.9 * average + 0.1 * tf.reduce_mean(logits, 0)))
    total = tf.get_variable("total", [], tf.int64, initializer=tf.zeros_initializer(), trainable=False)
    changes.append(tf.assign_add(total, tf.reduce_sum(labels)))
    made = OPTIMIZERS[optimizer]()
    pairs = made.compute_gradients(loss)
    clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], clip)
    pairs = [(gradient, variable) for gradient, (_, variable) in zip(clipped, pairs)]
    with tf.control_dependencies(changes):
        step = made.apply_gradients(pairs, tf.train.get_or_create_global_step())
    if epl:
        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        epl.add_to_collection(logits, epl.GraphKeys.GLOBAL_CONCAT_OBJECTS)
    return [loss, logits], step


def several_copies(
    epl,
    device_count,
    optimizer,
    resource=False,
    sizes=(8, 8, 8),
    as_dense=False,
    clip=0.5,
    state=True,
    recompute=False,
    clip_after=True,
    restored=None,
    saved=None,
    **config,
):
    """What every step gives of the whole batch, and all variables after it, of copies of a divided model, which begins
    with the checkpoint `restored` and writes `saved`."""
    config = {key.replace("__", "."): value for key, value in config.items()}
    config.update({"communication.clip_after_allreduce": clip_after, "communication.sparse_as_dense": as_dense})
    config["cluster.colocate_split_and_replicate"] = True
    common.init(epl, config)
    tf.set_random_seed(4)
    if epl:
        epl.set_default_strategy(epl.replicate(device_count))
    tokens = tf.placeholder(tf.int64, [None])
    labels = tf.placeholder(tf.int64, [None])
    with tf.variable_scope("model", use_resource=resource):
        fetches, step = lookup(epl, device_count, optimizer, tokens, labels, clip, state, recompute)
    variables, history, saver = tf.global_variables(), [], tf.train.Saver()
    with tf.Session() as session:
        if restored:
            saver.restore(session, restored)
        else:
            session.run(tf.global_variables_initializer())
        history.append(session.run([v.value() for v in variables]))
        for number, size in enumerate(sizes):
            rng = np.random.RandomState(number)
            fed = [share_of_copy(epl, device_count, rng.randint(0, most, size)) for most in (11, CLASSES)]
            fetched = session.run(fetches + [step], dict(zip((tokens, labels), fed)))[:-1]
            history.append(fetched + session.run([v.value() for v in variables]))
        if saved:
            saver.save(session, saved)
    return history


def stages(epl, device_count, optimizer, kinds, resource, folder=None, steps=3, times=1, **config):
    """What every step gives, and all variables after it, of a model of two stages with devices of their own; a
    checkpoint is written into `folder`. `times`: how often each row is fed, as when that many workers feed them."""
    config = {key.replace("__", "."): value for key, value in config.items()}
    common.init(epl, config)
    tf.set_random_seed(13)
    tokens, labels = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [None])
    with tf.variable_scope("model", use_resource=resource):
        with dividing_scope(epl, device_count, kinds[0]):
            hidden = tf.nn.embedding_lookup(tf.get_variable("table", [11, 4]), tokens)
            hidden = tf.nn.tanh(tf.layers.dense(hidden, 9, name="wide"))
        with dividing_scope(epl, device_count, kinds[1]):
            hidden = tf.nn.tanh(tf.layers.dense(hidden, 8, name="narrow"))
            logits = tf.layers.dense(hidden, CLASSES, name="logits")
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    made = OPTIMIZERS[optimizer]()
    pairs = made.compute_gradients(loss)
    clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 0.5)
    step = made.apply_gradients(
        [(gradient, variable) for gradient, (_, variable) in zip(clipped, pairs)], tf.train.get_or_create_global_step()
    )
    if epl:
        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        epl.add_to_collection(logits, epl.GraphKeys.GLOBAL_CONCAT_OBJECTS)
    drawn = [[np.random.RandomState(step).randint(0, most, 8) for most in (11, CLASSES)] for step in range(steps)]
    drawn = [[np.tile(each, times) for each in batch] for batch in drawn]
    saved = os.path.join(folder, "model") if folder else None
    return history_of([loss, logits], step, [dict(zip((tokens, labels), each)) for each in drawn], saved)


def restore(epl, device_count, optimizer, path, resource=False, seed=6):
    """All variables as a checkpoint has them, and after a further step."""
    common.init(epl)
    with tf.variable_scope("model", use_resource=resource):
        x, labels, loss, _, _, step = _classifier(epl, device_count, optimizer, seed)
    variables = tf.global_variables()
    with tf.Session() as session:
        tf.train.Saver().restore(session, path)
        before = session.run([v.value() for v in variables])
        session.run(step, _feeds(x, labels, 9))
        return before, session.run([v.value() for v in variables])


def contents(epl, path):
    """Name to value of all that a checkpoint holds, as plain TensorFlow reads it."""
    del epl
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def feeds_a_part(epl, device_count):
    """Feeds what is divided; raises."""
    common.init(epl)
    _, labels, loss, logits, *_ = _classifier(epl, device_count, "sgd", 1)
    with tf.Session() as session:
        session.run(loss, {logits: np.zeros([2, CLASSES]), labels: [0, 1]})


def without_seed(epl, device_count, steps=2):
    """What each device of this worker has of the variables that are not divided, after some steps without any seed."""
    common.init(epl)
    x, labels, _, _, _, step = _classifier(epl, device_count, "adam", None)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number in range(steps):
            session.run(step, _feeds(x, labels, number))
        driver = epl.session.hooks.driver_of(session)
        names = [name for name in driver.graph.nodes if name.endswith("hidden")]
        return [driver.read((name + ":0",))[0] for name in names if driver.graph.nodes[name].op == "VariableV2"]


def different_data(epl, device_count):
    """Each worker feeds rows of its own; raises."""
    common.init(epl)
    x, labels, *_, step = _classifier(epl, device_count, "sgd", 1)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step, _feeds(x, labels, 0))
        session.run(step, _feeds(x, labels, 1 + epl.Env.get().cluster.worker_index))


def different_hints(epl, device_count, of_workers):
    """Trains with a hint of this worker's own for the only variable; raises. `of_workers`: dimensions, by worker; None
    for no hint, -1 for epl.whole."""
    common.init(epl)
    x = tf.placeholder(tf.float32, [8, common.FEATURES])
    with epl.split(device_count):
        kernel = tf.get_variable("kernel", [common.FEATURES, 4])
        dim = of_workers[epl.Env.get().cluster.worker_index]
        if dim is not None:
            kernel = epl.whole(kernel) if dim < 0 else epl.shard(kernel, dim)
        loss = tf.reduce_mean(tf.square(tf.matmul(x, kernel) - 1.0))
    step = tf.train.AdamOptimizer(0.1).minimize(loss)
    history_of([loss], step, [{x: common.batch(0)[0]}])


def one_initialises(epl, device_count):
    """Worker 0 gives the variables values again; raises."""
    common.init(epl)
    x, labels, *_, step = _classifier(epl, device_count, "sgd", 1)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step, _feeds(x, labels, 0))
        if epl.Env.get().cluster.worker_index == 0:
            session.run(tf.global_variables_initializer())
        session.run(step, _feeds(x, labels, 1))


def keras_model(epl, device_count, path):
    """Trains a model of Keras and saves its weights in TensorFlow's format; raises with several workers."""
    common.init(epl)
    with dividing_scope(epl, device_count):
        model = tf.keras.Sequential([tf.keras.layers.Dense(CLASSES, input_shape=[common.FEATURES])])
    model.compile("sgd", "mse")
    model.fit(np.zeros([8, common.FEATURES]), np.zeros([8, CLASSES]), verbose=0)
    model.save_weights(path, save_format="tf")


def monitored(epl, device_count, folder, steps):
    """Losses of a monitored session that reads tf.data, writes checkpoints into `folder` and goes on from them."""
    common.init(epl)
    tf.set_random_seed(2)
    rows, _ = common.batch(0, size=24)
    data = tf.data.Dataset.from_tensor_slices((rows, np.arange(24) % CLASSES)).repeat().batch(6)
    x, labels = tf.data.make_one_shot_iterator(data).get_next()
    with dividing_scope(epl, device_count):
        hidden = tf.layers.dense(x, 8, activation=tf.nn.relu, name="hidden")
        logits = tf.layers.dense(tf.layers.batch_normalization(hidden, training=True), CLASSES, name="logits")
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    tf.summary.scalar("loss", loss)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        step = tf.train.AdamOptimizer(0.05).minimize(loss, tf.train.get_or_create_global_step())
    losses = []
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=folder, save_checkpoint_steps=2, save_summaries_steps=1, log_step_count_steps=None
    ) as session:
        for _ in range(steps):
            losses.append(session.run([loss, step])[0])
    return losses


def top(epl, device_count):
    """The loss, the largest logits, whether they hold the label and the accuracy, of a batch that is fed."""
    common.init(epl)
    x, labels, loss, logits, *_, step = _classifier(epl, device_count, "sgd", 1)
    values, places = tf.nn.top_k(logits, 2)
    found = tf.cast(tf.nn.in_top_k(logits, labels, 2), tf.float32)
    _, accuracy = tf.metrics.accuracy(labels, tf.argmax(logits, 1))
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        return session.run([loss, values, places, found, accuracy, step], _feeds(x, labels, 0))[:-1]


def estimator(epl, device_count, folder):
    """Loss and accuracy of an evaluation after some training, and all variables of the checkpoint."""
    common.init(epl)

    def input_fn():
        rows, _ = common.batch(0, size=24)
        return tf.data.Dataset.from_tensor_slices((rows, np.arange(24) % CLASSES)).batch(6)

    def model_fn(features, labels, mode):
        with dividing_scope(epl, device_count):
            logits = tf.layers.dense(features, CLASSES)
            loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        metrics = {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1))}
        step = None
        if mode == tf.estimator.ModeKeys.TRAIN:
            step = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step, eval_metric_ops=metrics)

    made = tf.estimator.Estimator(model_fn, folder, tf.estimator.RunConfig(tf_random_seed=3))
    made.train(input_fn)
    found = made.evaluate(input_fn)
    return [found["loss"], found["accuracy"]] + [made.get_variable_value(name) for name in made.get_variable_names()]


def several_steps(epl, device_count, steps, calls, **config):
    """The loss and all variables after each call that makes so many steps, on batches of tf.data."""
    config = {key.replace("__", "."): value for key, value in config.items()}
    common.init(epl, dict(config, **({"execution.steps_per_run": steps} if steps > 1 else {})))
    tf.set_random_seed(12)
    rows, labels = common.batch(0, size=24)
    data = tf.data.Dataset.from_tensor_slices((rows, labels)).repeat().batch(6)
    x, labels = tf.data.make_one_shot_iterator(data).get_next()
    with dividing_scope(epl, device_count):
        hidden = tf.nn.dropout(tf.layers.dense(x, 8, activation=tf.nn.relu, name="hidden"), rate=0.25)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, tf.layers.dense(hidden, CLASSES, name="logits"))
    made = tf.train.AdamOptimizer(0.05)
    pairs = made.compute_gradients(loss)
    clipped = [(tf.clip_by_norm(gradient, 0.1), variable) for gradient, variable in pairs]
    step = made.apply_gradients(clipped, tf.train.get_or_create_global_step())
    return history_of([loss], step, [{}] * (1 if epl else steps) * calls)


def history_of(fetches, step, feeds, saved=None, after=None):
    """What every step gives, and all variables after it.

    Args:
      fetches: what is fetched with `step`.
      step: the train op.
      feeds: for each step.
      saved: the name of the checkpoint that is written at the end.
      after: called with the session after each step.
    """
    variables, history = tf.global_variables(), []
    saver = tf.train.Saver() if saved else None
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        history.append(session.run([v.value() for v in variables]))
        for fed in feeds:
            fetched = session.run(fetches + [step], fed)[:-1]
            history.append(fetched + session.run([v.value() for v in variables]))
            if after is not None:
                after(session)
        if saver is not None:
            saver.save(session, saved)
    return history


def hinted(epl, device_count, optimizer, resource=False):
    """A model of three layers of which the program says what lies where."""
    common.init(epl)
    tf.set_random_seed(7)
    shard, whole = (epl.shard, epl.whole) if epl else (lambda value, dim: value, lambda value: value)
    x = tf.placeholder(tf.float32, [7, common.FEATURES])
    with tf.variable_scope("model", use_resource=resource), dividing_scope(epl, device_count):
        hidden = tf.tanh(tf.matmul(x, shard(tf.get_variable("first", [common.FEATURES, 6]), 0)))
        hidden = tf.tanh(tf.matmul(shard(hidden, 0), whole(tf.get_variable("second", [6, 9]))))
        out = whole(tf.matmul(hidden, shard(tf.get_variable("third", [9, 5]), 1)))
        loss = tf.reduce_mean(tf.square(out - 1.0))
    step = OPTIMIZERS[optimizer]().minimize(loss)
    return history_of([loss, hidden, out], step, [{x: common.batch(number)[0][:7]} for number in range(3)])


def features(epl, device_count, optimizer, rows=None, sizes=(8, 8, 8), resource=False):
    """A classifier, divided, of features of which each device computes those of its rows."""
    common.init(epl, {"cluster.colocate_split_and_replicate": True})
    tf.set_random_seed(8)
    x = tf.placeholder(tf.float32, [rows, common.FEATURES])
    labels = tf.placeholder(tf.int64, [rows])
    with tf.variable_scope("model", use_resource=resource):
        with dividing_scope(epl, device_count, "replicate"):
            hidden = tf.nn.tanh(tf.layers.dense(x, 8, name="first"))
            hidden = tf.nn.dropout(hidden, rate=0.25)
            mean, variance = tf.nn.moments(hidden, [0])
            hidden = tf.layers.dense((hidden - mean) * tf.rsqrt(variance + 0.1), 6, name="second")
            average = tf.get_variable("average", [8], trainable=False)
            update = tf.assign(average, 0.9 * average + 0.1 * mean)
            seen = tf.assign_add(tf.get_variable("seen", [], tf.int32, trainable=False), tf.shape(x)[0])
        with dividing_scope(epl, device_count):
            logits = tf.layers.dense(hidden, CLASSES, name="classes")
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(losses)
    with tf.control_dependencies([update, seen]):
        step = OPTIMIZERS[optimizer]().minimize(loss)
    feeds = []
    for number, size in enumerate(sizes):
        drawn = np.random.RandomState(number).randint(0, CLASSES, size)
        feeds.append({x: common.batch(number, size)[0], labels: drawn})
    return history_of([loss, hidden, logits], step, feeds)


def experts(epl, device_count, optimizer, groups=None, resource=False, fed=4, **config):
    """A mixture of experts, each on one of the devices that divide the tokens, of which `fed` groups are fed."""
    config = {key.replace("__", "."): value for key, value in config.items()}
    common.init(epl, dict(config, **{"cluster.colocate_split_and_replicate": True}))
    tf.set_random_seed(9)
    if epl:
        epl.set_default_strategy(epl.replicate(device_count))
    x = tf.placeholder(tf.float32, [groups, 6, 8])
    with tf.variable_scope("model", use_resource=resource):
        tokens = x * tf.get_variable("gain", [8], initializer=tf.ones_initializer())
        y = tokens + split_models.experts(tokens, 4, 16, lambda: dividing_scope(epl, device_count))
        loss = tf.reduce_mean(tf.square(tf.tanh(y) - 1.0))
    step = OPTIMIZERS[optimizer]().minimize(loss)
    feeds = [{x: np.random.RandomState(number).normal(size=[fed, 6, 8])} for number in range(3)]
    return history_of([loss, y], step, feeds)


def embeddings(epl, device_count, optimizer, rows=None, resource=False):
    """Rows of a divided table are looked up by the devices that divide the batch."""
    common.init(epl, {"cluster.colocate_split_and_replicate": True})
    tf.set_random_seed(10)
    if epl:
        epl.set_default_strategy(epl.replicate(device_count))
    ids = tf.placeholder(tf.int64, [rows, 3])
    with tf.variable_scope("model", use_resource=resource):
        with dividing_scope(epl, device_count):
            table = tf.get_variable("table", [11, 4])
        found = tf.reduce_sum(tf.nn.embedding_lookup(table, ids), 1)
        loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.tanh(found), 5) - 1.0))
    step = OPTIMIZERS[optimizer]().minimize(loss)
    feeds = [{ids: np.random.RandomState(number).randint(0, 11, [7, 3])} for number in range(3)]
    return history_of([loss, found], step, feeds)
