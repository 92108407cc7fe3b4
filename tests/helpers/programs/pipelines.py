"""Models of several stages, trained with several micro-batches, and the same by hand on one device."""

import contextlib
import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common, random_models
from tests.helpers.programs.recurrent import recurrent  # noqa: F401  one of the models, by its name
from tests.helpers.zoo import model as m

MICRO_BATCH = 4
STEPS = 5


def _cut(count, stages):
    """Divides layers over stages, as evenly as it can be: a list for each stage."""
    parts = range(count)
    return [parts[len(parts) * s // stages : len(parts) * (s + 1) // stages] for s in range(stages)]


def tied_mlp(scope, stages, layers=4):
    """A tied weight: the embedding at the start gives the logits at the end. A tensor of the first stage skips all
    others."""
    tokens, labels = tf.placeholder(tf.int32, [None, 3], "tokens"), tf.placeholder(tf.int64, [None], "labels")
    layers = _cut(layers, stages)
    for stage in range(stages):
        with scope(stage):
            if stage == 0:
                table = tf.get_variable("embedding", [10, 8], initializer=m.initial(1))
                x = start = tf.reduce_mean(tf.gather(table, tokens), axis=1)
            for layer in layers[stage]:
                x = m.dense(x, 8, "layer_%d" % layer, seed=3 + 2 * layer, activation=tf.nn.tanh)
            if stage == stages - 1:
                logits = tf.matmul(x + 0.5 * start, table, transpose_b=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return loss, {"tokens": tokens, "labels": labels}


def classifier(scope, stages, layers=4):
    """A layer, and the classes of a softmax, each in a scope of its own where there are two."""
    x, labels = tf.placeholder(tf.float32, [None, 6], "x"), tf.placeholder(tf.int64, [None], "labels")
    with scope(0):
        hidden = m.dense(x, 8, "hidden", seed=1, activation=tf.nn.tanh)
    with scope(stages - 1):
        hidden = m.dense(hidden, 8, "further", seed=2, activation=tf.nn.tanh)
        logits = m.dense(hidden, 4, "logits", seed=3)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return loss, {"x": x, "labels": labels}


def moments_cnn(scope, stages, layers=4):
    """batch_norm_cnn with batch normalisation that is built of plain operations."""
    return batch_norm_cnn(scope, stages, layers, fused=False)


def batch_norm_cnn(scope, stages, layers=4, fused=True):
    """Convolutions with batch normalisation, whose averages each micro-batch moves."""
    images, labels = tf.placeholder(tf.float32, [None, 6, 6, 2], "images"), tf.placeholder(tf.int64, [None], "labels")
    layers = _cut(layers, stages)
    x = images
    for stage in range(stages):
        with scope(stage):
            for layer in layers[stage]:
                name, kernel = "conv_%d" % layer, m.initial(11 + layer)
                x = tf.layers.conv2d(x, 4, 3, padding="same", use_bias=False, name=name, kernel_initializer=kernel)
                norm = dict(momentum=0.8, training=True, name=name + "_norm", fused=fused)
                x = tf.nn.relu(tf.layers.batch_normalization(x, **norm))
            if stage == stages - 1:
                logits = m.dense(tf.reduce_mean(x, [1, 2]), 3, "logits", seed=5)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return loss, {"images": images, "labels": labels}


def norm_at_the_end(scope, stages, layers=4):
    """The last stage alone has batch normalisation, and so sees which rows are together."""
    x = start = tf.placeholder(tf.float32, [None, 6], "x")
    labels = tf.placeholder(tf.int64, [None], "labels")
    layers = _cut(layers, stages)
    for stage in range(stages):
        with scope(stage):
            for layer in layers[stage]:
                x = m.dense(x, 8, "layer_%d" % layer, seed=3 + 2 * layer, activation=tf.nn.tanh)
            if stage == stages - 1:
                y = tf.layers.batch_normalization(x, momentum=0.8, training=True, name="norm", fused=False)
                x = x + 0.5 * tf.nn.tanh(y)  # what is only normalised has gradients that are next to nothing
                logits = m.dense(x, 3, "logits", seed=5)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return loss, {"x": start, "labels": labels}


def _layer_norm(x, name):
    with tf.variable_scope(name):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        gain = tf.get_variable("gain", [x.shape[-1]], initializer=tf.ones_initializer())
        return gain * (x - mean) * tf.rsqrt(variance + 1e-6)


def _attention(x, mask, name, seed):
    with tf.variable_scope(name):
        width = int(x.shape[-1])
        queries, values = m.dense(x, width, "query", seed=seed), m.dense(x, width, "value", seed=seed + 2)
        # The gradient of a bias would be 0, and Adam keeps its rounding errors. So it is before a normalisation, too.
        keys = tf.layers.dense(x, width, use_bias=False, kernel_initializer=m.initial(seed + 1), name="key")
        scores = tf.matmul(queries, keys, transpose_b=True) / np.sqrt(width) + mask
        return x + m.dense(tf.matmul(tf.nn.softmax(scores), values), width, "output", seed=seed + 3)


def tiny_bert(scope, stages, layers=4):
    """Token and position embeddings, transformer layers, a pooled classifier; the mask is needed by every stage."""
    tokens, labels = tf.placeholder(tf.int32, [None, 5], "tokens"), tf.placeholder(tf.int64, [None], "labels")
    return bert_loss(tokens, labels, scope, stages, layers), {"tokens": tokens, "labels": labels}


def bert_loss(tokens, labels, scope, stages=1, layers=4):
    """The mean loss of the same for tokens [rows, 5] and labels [rows]."""
    layers = _cut(layers, stages)
    for stage in range(stages):
        with scope(stage):
            if stage == 0:
                mask = -1e4 * tf.cast(tf.equal(tokens, 0), tf.float32)[:, None, :]
                table = tf.get_variable("tokens", [12, 8], initializer=m.initial(21))
                places = tf.get_variable("positions", [5, 8], initializer=m.initial(22))
                x = _layer_norm(tf.gather(table, tokens) + places, "embedded")
            for layer in layers[stage]:
                with tf.variable_scope("layer_%d" % layer):
                    x = _layer_norm(_attention(x, mask, "attention", 31 + 10 * layer), "attended")
                    hidden = m.dense(x, 16, "hidden", seed=35 + 10 * layer, activation=tf.nn.relu)
                    x = _layer_norm(x + m.dense(hidden, 8, "output", seed=36 + 10 * layer), "normalised")
            if stage == stages - 1:
                logits = m.dense(tf.tanh(m.dense(x[:, 0], 8, "pooled", seed=5)), 3, "logits", seed=6)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return loss


def _built(model, scope, stages, layers):
    """(loss, placeholders by name) of the model of that name."""
    make = random_models.named(model) if model.startswith(random_models.PREFIX) else globals()[model]
    return make(scope, stages, layers)


def _data(feeds, step, size):
    """The global batch of a step for the placeholders."""
    rng = np.random.RandomState(100 + step)
    found = {}
    for name, placeholder in sorted(feeds.items()):
        shape = [size] + placeholder.shape.as_list()[1:]
        whole = {"labels": 3, "tokens": 10}.get(name)
        found[name] = rng.randint(0, whole, shape) if whole else rng.normal(size=shape)
    return found


def optimizer():
    return tf.train.AdamOptimizer(0.01, epsilon=1e-3)


@contextlib.contextmanager
def devices_of(count):
    """Gives this worker `count` devices."""
    before = os.environ["EPL_GPU_PER_WORKER"]
    os.environ["EPL_GPU_PER_WORKER"] = str(count)
    try:
        yield
    finally:
        os.environ["EPL_GPU_PER_WORKER"] = before


def start(epl, devices, model, stages, micro_batches, **config):
    """Builds the model's training under EPL, or plainly; returns (loss, placeholders by name, train op).

    With begin=False EPL goes on as it was started. `device_counts`, by default 1 for each, are those of the stages.
    With `split` so many devices share a copy of the model: the second half is divided among them (epl.split).
    """
    keys = {"pipeline.num_micro_batch": micro_batches}
    keys.update((key.replace("__", "."), value) for key, value in config.items())
    scoped = epl and not keys.get("auto.auto_parallel")
    layers, counts = keys.pop("layers", 4), keys.pop("device_counts", [1] * stages)
    split = keys.pop("split", 0)
    if split:
        keys["cluster.colocate_split_and_replicate"] = True
    if epl and keys.pop("begin", True):
        with devices_of(devices):
            common.init(epl, keys)

    def scope(stage):
        if scoped and split:
            return epl.split(split) if stage else epl.replicate(split)
        return epl.replicate(counts[stage], name="stage_%d" % stage) if scoped else _nothing()

    loss, feeds = _built(model, scope, 2 if split else stages, layers)
    common.mean_everywhere(epl, loss)
    return loss, feeds, _trained(loss, model)


def _trained(loss, model):
    """The operation that trains, after the updates of moving averages."""
    updates, steps = tf.get_collection(tf.GraphKeys.UPDATE_OPS), tf.train.get_or_create_global_step()
    if model.startswith(random_models.PREFIX):
        # TensorFlow's gradients of loops never come where they are built under control dependencies.
        gradients = optimizer().compute_gradients(loss)
        with tf.control_dependencies(updates):
            return optimizer().apply_gradients(gradients, steps)
    with tf.control_dependencies(updates):
        return optimizer().minimize(loss, steps)


def train(epl, devices, model, stages, micro_batches, replicas, strategy="PreferBackward", chunks=1, **config):
    """Trains with EPL; `replicas` times `micro_batches` micro-batches make a global batch.

    With automatic=S there are no scopes, and EPL makes S stages. `groups`, by default as many as replicas, divide the
    data. The model has 4 `layers`. Other keyword arguments are configuration keys with "__" for the dot.
    """
    automatic, groups = config.pop("automatic", 0), config.pop("groups", replicas)
    if automatic:
        config.update(auto__auto_parallel=True, pipeline__num_stages=automatic)
    config.update(pipeline__strategy=strategy, pipeline__num_chunks=chunks)
    loss, feeds, train_op = start(epl, devices, model, stages, micro_batches, **config)
    losses, states = [], []
    with common.session() as sess:
        common.initialize(sess)
        for step in range(STEPS):
            mine = fed(epl, feeds, step, micro_batches, replicas, groups)
            if step == 1:
                evaluated = sess.run(loss, mine)
                assert all(np.array_equal(states[0][n], v) for n, v in common.state(sess).items()), "it trained"
            value, _ = sess.run([loss, train_op], mine)
            assert step != 1 or np.shape(value) == np.shape(evaluated), (value, evaluated)  # nothing is close to all
            assert step != 1 or np.allclose(value, evaluated, rtol=1e-5), (value, evaluated)
            losses.append(value)
            states.append(common.state(sess))
    return {"losses": losses, "states": states}


def saved(epl, path, devices, model, stages, micro_batches, replicas, **config):
    """Trains two steps, saves, trains one, restores, trains that one again; returns both losses and where it saved."""
    loss, feeds, train_op = start(epl, devices, model, stages, micro_batches, **config)
    saver = tf.train.Saver()
    with common.session() as sess:
        common.initialize(sess)
        for step in range(2):
            sess.run(train_op, fed(epl, feeds, step, micro_batches, replicas))
        prefix = saver.save(sess, path, global_step=2)
        first, _ = sess.run([loss, train_op], fed(epl, feeds, 2, micro_batches, replicas))
        saver.restore(sess, prefix)
        again, _ = sess.run([loss, train_op], fed(epl, feeds, 2, micro_batches, replicas))
        return first, again, prefix


def resumed(epl, prefix, devices, model, stages, micro_batches, replicas, **config):
    """The loss of the third step after restoring what `saved` left, and all variables after it."""
    loss, feeds, train_op = start(epl, devices, model, stages, micro_batches, **config)
    saver = tf.train.Saver()
    with common.session() as sess:
        saver.restore(sess, prefix)
        assert sess.run(tf.train.get_global_step()) == 2
        value, _ = sess.run([loss, train_op], fed(epl, feeds, 2, micro_batches, replicas))
        return value, common.state(sess)


def seen(epl, devices, counts):
    """The share of the rows that the second of two stages sees, in a run that does not train."""
    with devices_of(devices):
        common.init(epl, {"pipeline.num_micro_batch": 2})
    x, labels = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.float32, [None])
    with epl.replicate(counts[0]):
        hidden = m.dense(x, 4, "hidden", seed=1)
        target = labels * 2
    with epl.replicate(counts[1]):
        outputs = m.dense(hidden, 1, "outputs", seed=2)
        tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(outputs))
        rows = tf.shape(outputs)[0] + 0 * tf.shape(target - labels)[0]
    with common.session() as sess:
        common.initialize(sess)
        return sess.run(rows, {x: np.ones([8, 2]), labels: np.ones(8)}) / 8


def reads(epl, devices, counts, micro_batches):
    """Trains two stages on a data set by gradient descent on clipped gradients; returns the losses, the numbers of the
    rows that the first stage has seen, and all variables."""
    if epl:
        with devices_of(devices):
            common.init(epl, {"pipeline.num_micro_batch": micro_batches})
    rows = tf.data.Dataset.range(96).map(lambda row: (row, tf.sin(tf.cast(row, tf.float32) * [1.0, 2.0, 3.0])))
    data = rows.batch(4 if epl else 4 * micro_batches)
    number, x = tf.data.make_one_shot_iterator(data).get_next()
    with epl.replicate(counts[0]) if epl else _nothing():
        hidden = tf.tanh(m.dense(x, 4, "hidden", seed=1))
        seen = common.rows_everywhere(epl, tf.identity(number))
    with epl.replicate(counts[1]) if epl else _nothing():
        outputs = m.dense(hidden, 1, "outputs", seed=2)
        loss = tf.reduce_mean(tf.square(outputs[:, 0] - tf.cos(tf.cast(number, tf.float32))))
    common.mean_everywhere(epl, loss)
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.1)
    train_op = tf.train.GradientDescentOptimizer(0.1).apply_gradients(zip(gradients, variables))
    losses, read = [], []
    with common.session() as sess:
        common.initialize(sess)
        for _ in range(4):
            value, numbers, _ = sess.run([loss, seen, train_op])
            losses.append(value)
            read.append(sorted(numbers))
        return losses, read, common.state(sess)


def chief_reads(epl, devices, stages, **config):
    """Worker 0 alone reads variables between steps, wherever they are; returns what it has read and all variables."""
    _, feeds, train_op = start(epl, devices, "tied_mlp", stages, 2, **config)
    alone = []
    with common.session() as sess:
        common.initialize(sess)
        for step in range(3):
            if common.workers(epl)[0] == 0:
                alone.append({v.op.name: sess.run(v) for v in tf.trainable_variables()})
            sess.run(train_op, fed(epl, feeds, step, 2, 1))
        return alone, common.state(sess)


def monitored(epl, folder, devices, stages, micro_batches, strategy="PreferBackward", **config):
    """Four steps of a MonitoredTrainingSession with summaries, checkpoints and a measured schedule.

    Returns:
      (losses, losses in the event file, most micro-batches alive at each stage by the measured schedule, its page).
    """
    from epl.profiler.schedule import ScheduleHook

    loss, feeds, train_op = start(
        epl, devices, "tied_mlp", stages, micro_batches, pipeline__strategy=strategy, **config
    )
    tf.summary.scalar("loss", loss)
    hook, losses = ScheduleHook(os.path.join(folder, "schedule")), []
    saving = dict(checkpoint_dir=folder, save_checkpoint_steps=2, save_summaries_steps=1)
    with tf.train.MonitoredTrainingSession(config=common.threads(), hooks=[hook], **saving) as sess:
        for step in range(4):
            losses.append(sess.run([loss, train_op], fed(epl, feeds, step, micro_batches, 1))[0])
    found = []
    for name in sorted(os.listdir(folder)) if common.workers(epl)[0] == 0 else ():  # who writes them may read them
        if "tfevents" in name:
            events = tf.train.summary_iterator(os.path.join(folder, name))
            found += [(e.step, v.simple_value) for e in events for v in e.summary.value if v.tag == "loss"]
    page = open(hook.path).read() if hook.path else ""
    return losses, [value for _, value in sorted(found)], hook.timeline and hook.timeline.peak_live, page


def computed_wrongly(epl, devices):
    """Whether a session finds out that what is computed again comes to something else."""
    from epl.errors import GradientError
    from epl.passes.model import compute_again

    original = compute_again._copy

    def wrong(graph, name, *args):
        node = original(graph, name, *args)
        node.op = {"Tanh": "Sin"}.get(node.op, node.op)
        return node

    compute_again._copy = wrong
    try:
        config = {"gradient_checkpoint.type": "auto", "gradient_checkpoint.check_gradients": True}
        loss, feeds, train_op = start(epl, devices, "tied_mlp", 1, 1, **config)
        with common.session() as sess:
            common.initialize(sess)
            try:
                sess.run([loss, train_op], fed(epl, feeds, 0, 1, devices))
            except GradientError as error:
                return "is another one with recomputation" in str(error)
            return False
    finally:
        compute_again._copy = original


def fed(epl, feeds, step, micro_batches, replicas, groups=1):
    data = _data(feeds, step, MICRO_BATCH * micro_batches * replicas)
    return {feeds[name]: share(epl, values, groups) for name, values in data.items()}


def share(epl, rows, groups):
    """What this worker feeds: the rows of the replicas that it holds stages of."""
    index, workers = common.workers(epl)
    groups = min(workers, groups)
    group, size = index * groups // workers, len(rows) // groups
    return rows[group * size : (group + 1) * size]


def by_hand(epl, model, micro_batches, replicas, layers=4, together=False):
    """The same with plain TensorFlow on one device: a run for each micro-batch of each replica, then one update.

    With `together` a run takes a micro-batch of all replicas: the rows that have its number.
    """
    assert not epl
    loss, feeds = _built(model, lambda stage: _nothing(), 1, layers)
    variables = tf.trainable_variables()
    gradients = tf.gradients(loss, variables)
    sums = [tf.placeholder(tf.float32, v.shape) for v in variables]
    train_op = optimizer().apply_gradients(zip(sums, variables), tf.train.get_or_create_global_step())
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    moved = [v for v in tf.global_variables() if "moving" in v.op.name]
    losses, states = [], []
    gradients = [tf.convert_to_tensor(g) for g in gradients]
    with common.session() as sess:
        common.initialize(sess)
        for step in range(STEPS):
            data = _data(feeds, step, MICRO_BATCH * micro_batches * replicas)
            totals, values = [0.0] * len(variables), []
            for micro_batch in range(micro_batches):
                before, after = sess.run(moved), []
                chosen = [_rows(micro_batches, micro_batch, replica) for replica in range(replicas)]
                for rows in [np.concatenate(chosen)] if together else chosen:
                    feed = {feeds[name]: array[rows] for name, array in data.items()}
                    for variable, value in zip(moved, before):
                        variable.load(value, sess)
                    value, parts = sess.run([loss, gradients], feed)
                    sess.run(updates, feed)
                    after.append(sess.run(moved))
                    values.append(value)
                    totals = [total + part.astype(np.float64) for total, part in zip(totals, parts)]
                for variable, each in zip(moved, zip(*after)):
                    variable.load(np.mean(each, axis=0), sess)
            sess.run(train_op, {s: total / len(values) for s, total in zip(sums, totals)})
            losses.append(np.mean(values))
            states.append(common.state(sess))
    return {"losses": losses, "states": states}


def _rows(micro_batches, micro_batch, replica):
    """Which rows of a global batch a replica takes as a micro-batch."""
    return (replica * micro_batches + micro_batch) * MICRO_BATCH + np.arange(MICRO_BATCH)


@contextlib.contextmanager
def _nothing():
    yield
