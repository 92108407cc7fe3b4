"""Programs whose models and optimizers others have written, run as they are; each tells its losses and its variables.

Dropout is off, as copies of a model drop other units than one model does.
"""

import importlib
import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers import processes
from tests.helpers.programs import common, estimators

STEPS = 3


def trained(epl, loss, train_op, feeds, steps=STEPS):
    """Losses and variables of a loop over feeds; `feeds` is a function of the step."""
    loss = common.mean_everywhere(epl, loss)
    losses, states = [], []
    with common.session(as_it_is=False) as sess:
        common.initialize(sess)
        for step in range(steps):
            losses.append(sess.run([loss, train_op], feeds(step))[0])
            states.append(common.state(sess))
    return {"losses": losses, "states": states[-1:]}


def resnet(epl, units=(3, 4, 6, 3), size=32, classes=5):
    """A ResNet of tf.contrib.slim on small images, with its own arguments, weight decay and moving averages.

    `units` are those of its four blocks, by default ResNet-50's. In float64: with a few values for each mean of 53
    normalisations, rounding alone moves float32's gradients by 3 %, on one device too when the rows of the batch change
    places.
    """
    common.init(epl, {"communication.sync_batch_norm": True})
    if epl:
        epl.set_default_strategy(epl.replicate(1))
    nets = importlib.import_module("tensorflow.contrib.slim.nets")
    slim = importlib.import_module("tensorflow.contrib.slim")
    tf.set_random_seed(7)
    images = tf.placeholder(tf.float64, [None, size, size, 3])
    labels = tf.placeholder(tf.int64, [None])
    with slim.arg_scope(nets.resnet_utils.resnet_arg_scope()):
        with slim.arg_scope([slim.batch_norm], fused=False):  # the fused operation has no float64
            blocks = [
                nets.resnet_v1.resnet_v1_block(
                    "block%d" % (i + 1), base_depth=64 * 2**i, num_units=count, stride=stride
                )
                for i, (count, stride) in enumerate(zip(units, (2, 2, 2, 1)))
            ]
            logits, _ = nets.resnet_v1.resnet_v1(images, blocks, classes, is_training=True, scope="resnet")
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.squeeze(logits, [1, 2]))
    loss = tf.reduce_mean(losses) + tf.add_n(tf.losses.get_regularization_losses())
    train_op = slim.learning.create_train_op(loss, tf.train.MomentumOptimizer(0.001, 0.9))

    def feeds(step):
        rng = np.random.RandomState(step)
        batch = rng.normal(size=(common.BATCH, size, size, 3))
        return {
            images: common.share(epl, batch),
            labels: common.share(epl, rng.randint(0, classes, common.BATCH)),
        }

    result = trained(epl, loss, train_op, feeds, 2)
    # Of the millions of numbers a few of each variable, and the mean of their sizes.
    result["states"] = [
        {name: np.append(value.ravel()[:8], np.mean(np.abs(value))) for name, value in state.items()}
        for state in result["states"]
    ]
    return result


LENGTH = 8
VOCABULARY = 40


def bert_config():
    """A tiny BERT without dropout."""
    return importlib.import_module("bert.modeling").BertConfig(
        VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=LENGTH,
    )


def bert_batch(step):
    """ids, mask, segments and labels of a global batch."""
    rng = np.random.RandomState(50 + step)
    shape = [common.BATCH, LENGTH]
    lengths = rng.randint(3, LENGTH + 1, [common.BATCH, 1])
    return {
        "input_ids": rng.randint(0, VOCABULARY, shape).astype(np.int32),
        "input_mask": (np.arange(LENGTH) < lengths).astype(np.int32),
        "segment_ids": rng.randint(0, 2, shape).astype(np.int32),
        "label_ids": rng.randint(0, 3, common.BATCH).astype(np.int32),
    }


CLIP_THE_WHOLE = {"communication.clip_after_allreduce": True}


# Rate, steps, warm-up steps, TPU. The package leaves open whether a rate comes from the count before or after the step:
# with so many steps it makes no difference that one could see.
SCHEDULE = (0.01, 10**7, None, False)


def bert(epl):
    """The package bert-tensorflow's classifier with its AdamWeightDecayOptimizer in a loop."""
    common.init(epl, CLIP_THE_WHOLE)
    tf.set_random_seed(3)
    classifier, optimization = (importlib.import_module("bert." + n) for n in ("run_classifier", "optimization"))
    inputs = {
        key: tf.placeholder(tf.int32, [None] + list(value.shape[1:]), name=key) for key, value in bert_batch(0).items()
    }
    loss, _, _, _ = classifier.create_model(
        bert_config(),
        False,  # its dropout cannot be switched off otherwise
        inputs["input_ids"],
        inputs["input_mask"],
        inputs["segment_ids"],
        inputs["label_ids"],
        3,
        False,
    )
    tf.train.create_global_step()
    train_op = optimization.create_optimizer(loss, *SCHEDULE)

    def feeds(step):
        return {inputs[key]: common.share(epl, value) for key, value in bert_batch(step).items()}

    return trained(epl, loss, train_op, feeds)


def bert_estimator(epl, folder):
    """The same through the package's model function in a TPUEstimator that has no TPU, as its scripts do it."""
    common.init(epl, CLIP_THE_WHOLE)
    classifier = importlib.import_module("bert.run_classifier")
    create_model = classifier.create_model
    classifier.create_model = lambda config, is_training, *args: create_model(config, False, *args)
    model_fn = classifier.model_fn_builder(bert_config(), 3, None, *SCHEDULE, False)
    tpu = tf.estimator.tpu
    config = tpu.RunConfig(
        model_dir=estimators.own_folder(epl, folder, False),
        save_checkpoints_steps=2,
        tf_random_seed=3,
        session_config=common.threads(),
        tpu_config=tpu.TPUConfig(iterations_per_loop=1, num_shards=8),
    )
    size = common.BATCH // common.replicas(epl)
    estimator = tpu.TPUEstimator(
        model_fn, config=config, use_tpu=False, train_batch_size=size, eval_batch_size=size, predict_batch_size=size
    )

    def input_fn(first, last):
        parts = [bert_batch(step) for step in range(first, last)]
        rows = {key: np.concatenate([common.share(epl, part[key]) for part in parts]) for key in parts[0]}

        def make(params):
            return tf.data.Dataset.from_tensor_slices(rows).batch(params["batch_size"], drop_remainder=True)

        return make

    hook = estimators.Losses()
    estimator.train(input_fn(0, STEPS), hooks=[hook], max_steps=STEPS)
    metrics = estimator.evaluate(input_fn(10, 12), steps=2)
    classifier.create_model = create_model
    return {"losses": hook.losses, "metrics": metrics, "states": estimators.variables(estimator)}


def counted_by_hand(epl, resource):
    """Steps that are counted beside the optimizer, and a rate that depends on the count; the weight after each step."""
    common.init(epl)
    step = tf.get_variable("step", [], tf.int64, tf.zeros_initializer(), use_resource=resource, trainable=False)
    weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
    rate = 10.0 ** (-tf.cast(step, tf.float32))
    data = tf.placeholder(tf.float32, [None])
    train_op = tf.train.GradientDescentOptimizer(rate).minimize(tf.reduce_mean(data * weight))
    train_op = tf.group(train_op, step.assign(step + 1))
    weights = []
    with common.session(as_it_is=False) as sess:
        common.initialize(sess)
        for _ in range(4):
            sess.run(train_op, {data: np.ones(common.replicas(epl), np.float32)})
            weights.append(sess.run([weight, rate, step])[0])
        return weights, sess.run(step)


def canned(epl, folder, micro_batches=1):
    """tf.estimator's DNNClassifier on scikit-learn's wine data, by a sum over the rows: training, evaluation of all."""
    common.init(epl, {"pipeline.num_micro_batch": micro_batches})
    table = importlib.import_module("sklearn.datasets").load_wine()
    x = ((table.data - table.data.mean(0)) / table.data.std(0)).astype(np.float32)
    order = np.random.RandomState(0).permutation(len(x))
    x, labels = x[order], table.target[order]
    names = ["f%d" % column for column in range(x.shape[1])]
    size = 16 // common.replicas(epl) // (micro_batches if epl else 1)

    def input_fn(rows, repeat, batch):
        features, classes = ({n: x[rows, i] for i, n in enumerate(names)}, labels[rows])
        return lambda: tf.data.Dataset.from_tensor_slices((features, classes)).repeat(repeat).batch(batch)

    index, count = common.workers(epl)
    blocks = np.arange(128).reshape(-1, 16)  # the rows of each global batch; a worker has its part of each
    mine = blocks[:, index * 16 // count : (index + 1) * 16 // count].reshape(-1)
    estimator = tf.estimator.DNNClassifier(
        [16, 8],
        [tf.feature_column.numeric_column(name) for name in names],
        n_classes=3,
        optimizer=lambda: tf.train.AdagradOptimizer(0.1),
        config=estimators.run_config(estimators.own_folder(epl, folder, False)),
        loss_reduction=tf.losses.Reduction.SUM,
    )
    hook = estimators.Losses()
    estimator.train(input_fn(mine, None, size), steps=24, hooks=[hook])
    held = np.arange(128, len(x))  # 50 rows: workers have unequal numbers of them
    metrics = estimator.evaluate(input_fn(held[index::count], 1, 7))
    metrics = {key: metrics[key] for key in ("accuracy", "average_loss")}
    return {"losses": hook.losses, "metrics": metrics, "states": estimators.variables(estimator)}


def gan(epl):
    """A DCGAN-like program: two networks, two losses, two optimizers over their own variables, run in turns."""
    common.init(epl)
    side, noise_size = 8, 5
    real = tf.placeholder(tf.float32, [None, side, side, 1], name="real")
    noise = tf.placeholder(tf.float32, [None, noise_size], name="noise")
    layers = tf.layers

    def initializer(seed):
        return tf.random_normal_initializer(0.0, 0.1, seed=seed)

    def generator(z):
        with tf.variable_scope("generator"):
            hidden = tf.nn.relu(layers.dense(z, 2 * 2 * 8, kernel_initializer=initializer(1)))
            hidden = tf.reshape(hidden, [-1, 2, 2, 8])
            hidden = layers.conv2d_transpose(hidden, 4, 3, 2, "same", kernel_initializer=initializer(2))
            return tf.tanh(
                layers.conv2d_transpose(tf.nn.relu(hidden), 1, 3, 2, "same", kernel_initializer=initializer(3))
            )

    def discriminator(image):
        with tf.variable_scope("discriminator", reuse=tf.AUTO_REUSE):
            hidden = tf.nn.leaky_relu(layers.conv2d(image, 4, 3, 2, "same", kernel_initializer=initializer(4)))
            return layers.dense(layers.flatten(hidden), 1, kernel_initializer=initializer(5))

    def cross_entropy(logits, label):
        labels = label * tf.ones_like(logits)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))

    made = generator(noise)
    on_real, on_made = discriminator(real), discriminator(made)
    losses = {
        "discriminator": cross_entropy(on_real, 0.9) + cross_entropy(on_made, 0.0),
        "generator": cross_entropy(on_made, 1.0),
    }
    train = {
        scope: tf.train.AdamOptimizer(0.01, 0.5, epsilon=1e-4).minimize(loss, var_list=tf.trainable_variables(scope))
        for scope, loss in losses.items()
    }
    for loss in losses.values():
        common.mean_everywhere(epl, loss)
    history = []
    with common.session(as_it_is=False) as sess:
        common.initialize(sess)
        for step in range(6):
            rng = np.random.RandomState(step)
            feed = {
                real: common.share(epl, rng.normal(size=(8, side, side, 1)).astype(np.float32)),
                noise: common.share(epl, rng.normal(size=(8, noise_size)).astype(np.float32)),
            }
            for scope in ("discriminator", "generator"):
                history.append(sess.run([losses[scope], train[scope]], feed)[0])
        state = common.state(sess)
    return {"losses": history, "states": [state]}


def language_model(epl):
    """A word-level LSTM on this repository's own text, with gradients clipped by their global norm."""
    common.init(epl, CLIP_THE_WHOLE)
    with open(os.path.join(processes.REPOSITORY, "LICENSE")) as text:
        words = text.read().lower().split()
    vocabulary = {word: number for number, word in enumerate(sorted(set(words)))}
    ids = np.array([vocabulary[word] for word in words], np.int32)
    length, batch = 6, 8
    tokens = tf.placeholder(tf.int32, [None, length + 1], name="tokens")
    initializer = tf.random_uniform_initializer(-0.1, 0.1, seed=4)
    with tf.variable_scope("model", initializer=initializer):
        table = tf.get_variable("embedding", [len(vocabulary), 12])
        cell = tf.nn.rnn_cell.LSTMCell(10)
        outputs, _ = tf.nn.dynamic_rnn(cell, tf.nn.embedding_lookup(table, tokens[:, :-1]), dtype=tf.float32)
        logits = tf.layers.dense(outputs, len(vocabulary))
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tokens[:, 1:], logits=logits))
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.05)
    train_op = tf.train.GradientDescentOptimizer(1.0).apply_gradients(zip(gradients, variables))

    def feeds(step):
        starts = np.arange(batch) * 40 + step * length
        return {tokens: common.share(epl, np.stack([ids[s : s + length + 1] for s in starts]))}

    return trained(epl, loss, train_op, feeds, 6)
