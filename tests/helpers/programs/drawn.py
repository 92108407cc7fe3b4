"""A program of what is drawn at random: blocks of a model, its data, loss, optimizer, options and layout.

A draw is a dict with these keys:

    scopes, workers, devices    the layout: scopes such as "replicate(2)", one for each stage; workers, devices of each
    copies                      of the model, over all workers
    blocks, loss, optimizer     names, see below
    clips, resource             whether gradients are clipped by their norm, and variables are resources
    data                        "fed", "read" or "fixed", of a size that the graph knows
    options                     configuration keys and values
"""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.control_flow import control_flow
from tests.helpers.programs import common, random_models
from tests.helpers.zoo import model as m

STEPS, ROWS = 4, 48
WIDTH, CLASSES = random_models.WIDTH, random_models.CLASSES


def _attention(x, seed):
    """Between the columns, two at a time."""
    steps = tf.reshape(x, [-1, WIDTH // 2, 2])
    queries, values = m.dense(steps, 2, "query", seed=seed), m.dense(steps, 2, "value", seed=seed + 1)
    weights = tf.nn.softmax(tf.matmul(queries, steps, transpose_b=True))
    return tf.reshape(tf.matmul(weights, values), [-1, WIDTH])


def _convolution(x, seed):
    image = tf.reshape(x, [-1, WIDTH // 2, 2, 1])
    image = tf.layers.conv2d(image, 2, 2, padding="same", name="conv", kernel_initializer=m.initial(seed))
    return tf.reshape(tf.nn.relu(image), [-1, 2 * WIDTH])[:, :WIDTH]


def _embedding(x, seed):
    """Rows of a table by the signs of the columns: a gradient that is sparse."""
    table = tf.get_variable("table", [8, WIDTH], initializer=m.initial(seed))
    ids = tf.reduce_sum(tf.cast(x[:, :3] > 0, tf.int32) * [1, 2, 4], 1)
    return tf.nn.embedding_lookup(table, tf.stop_gradient(ids))


BLOCKS = dict(random_models.BLOCKS, attention=_attention, convolution=_convolution, embedding=_embedding)
NORMS = frozenset(["norm", "fused norm"])


def _mean(logits, labels):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def _penalised(logits, labels):
    return _mean(logits, labels) + 1e-3 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])


def _summed(logits, labels):
    return tf.losses.sparse_softmax_cross_entropy(labels, logits, reduction=tf.losses.Reduction.SUM) / 64.0


LOSSES = {"mean": _mean, "penalised": _penalised, "summed": _summed}
OPTIMIZERS = {
    "adam": lambda: tf.train.AdamOptimizer(0.01, epsilon=1e-3),
    "momentum": lambda: tf.train.MomentumOptimizer(0.05, 0.9),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.05),
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
}


def build(epl, draw):
    """(loss, operation that trains, what this worker feeds in a step: a function of its number)."""
    given = [_share(epl, draw, part) for part in _rows()]
    size = ROWS // _groups(epl, draw)
    if draw["data"] == "fed":
        x, labels = tf.placeholder(tf.float32, [None, WIDTH], "x"), tf.placeholder(tf.int64, [None], "labels")
    else:
        # A copy of the model takes a batch for each of its micro-batches.
        pulls = draw["options"].get("pipeline.num_micro_batch", 1) * _copies_here(draw) if epl else 1
        data = tf.data.Dataset.from_tensor_slices(tuple(given)).batch(size // pulls, draw["data"] == "fixed")
        x, labels = tf.data.make_one_shot_iterator(data).get_next()

    holders = x, labels

    def feeds(step):
        pairs = zip(holders, given) if draw["data"] == "fed" else ()
        return {holder: part[step * size : (step + 1) * size] for holder, part in pairs}

    stages = draw["scopes"] if epl else [""]
    with tf.variable_scope("model", use_resource=draw["resource"]), control_flow("v1"):
        for stage, part in enumerate(np.array_split(range(len(draw["blocks"])), len(stages))):
            with _scope(epl, stages[stage]):
                for number in part:
                    with tf.variable_scope("block_%d" % number):
                        y = BLOCKS[draw["blocks"][number]](x, 10 * int(number) + 1)
                        x = m.dense(x + 0.5 * y, WIDTH, "out", seed=int(number))
                if stage == len(stages) - 1:
                    loss = LOSSES[draw["loss"]](m.dense(x, CLASSES, "logits", seed=5), labels)
        if epl and draw["options"].get("local_sgd.k_steps", 0) == 0:
            common.mean_everywhere(epl, loss)
        return loss, _trained(loss, draw), feeds


def _trained(loss, draw):
    made = OPTIMIZERS[draw["optimizer"]]()
    gradients, variables = zip(*made.compute_gradients(loss))
    if draw["clips"]:
        gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        return made.apply_gradients(zip(gradients, variables), tf.train.get_or_create_global_step())


def train(epl, draw):
    """The losses of a drawn program, and its variables at the end."""
    common.init(epl, draw["options"])
    loss, train_op, feeds = build(epl, draw)
    losses = []
    with common.session() as session:
        common.initialize(session)
        for step in range(STEPS // draw["options"].get("execution.steps_per_run", 1) if epl else STEPS):
            losses.append(session.run([loss, train_op], feeds(step))[0])
        return losses, common.state(session)


def _rows():
    """The features and the labels of all steps."""
    batches = [common.batch(step, ROWS, WIDTH) for step in range(STEPS)]
    return [np.concatenate(parts) for parts in zip(*batches)]


def _share(epl, draw, rows):
    """Those of a worker: of each step, its part."""
    if epl and draw["options"].get("io.shard_dataset"):
        return rows
    (index, workers), groups = common.workers(epl), _groups(epl, draw)
    group = index * groups // workers
    steps = rows.reshape([STEPS, groups, -1] + list(rows.shape[1:]))
    return steps[:, group].reshape([-1] + list(rows.shape[1:]))


def _groups(epl, draw):
    """Of workers, each of which has data of its own."""
    return min(common.workers(epl)[1], draw["copies"])


def _copies_here(draw):
    """Of those that this worker, or those that have a copy together with it, have: each takes data of its own."""
    return max(1, draw["copies"] // draw["workers"])


def _scope(epl, text):
    if not epl or not text:
        return common.no_scope()
    kind, count = text[:-1].split("(")
    return getattr(epl, kind)(int(count))
