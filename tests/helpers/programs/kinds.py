"""Programs of more kinds with packages of others: adversarial, graphs, speech, segmentation, detection, privacy …

As in packages.py they are small, and their data is made here.
"""

import os
import sys
import tempfile
import types

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.others import PACKAGES, module
from tests.helpers.programs import common, estimators
from tests.helpers.programs.by_others import trained

SAMPLES = 16


def adversarial(epl, config=None):
    """tensorflow-gan: a Wasserstein GAN with a gradient penalty, its two train operations in turn."""
    common.init(epl, config)
    gan = module("tensorflow_gan")
    tf.set_random_seed(5)
    noise, real = (tf.placeholder(tf.float32, [None, size]) for size in (4, 6))

    def generator(inputs):
        return tf.layers.dense(tf.layers.dense(inputs, 8, tf.nn.tanh), 6)

    def discriminator(data, _):
        return tf.layers.dense(tf.layers.dense(data, 8, tf.nn.tanh), 1)

    model = gan.gan_model(generator, discriminator, real, noise)
    # The penalty draws points between real and generated rows at random, of which copies have others.
    loss = gan.gan_loss(model, gradient_penalty_weight=None)
    train = gan.gan_train_ops(
        model, loss, tf.train.AdamOptimizer(0.01, 0.5, epsilon=1e-3), tf.train.AdamOptimizer(0.02, 0.5, epsilon=1e-3)
    )
    losses = [common.mean_everywhere(epl, each) for each in (loss.discriminator_loss, loss.generator_loss)]
    operations = [train.discriminator_train_op, train.generator_train_op]
    history = []
    with common.session() as sess:
        common.initialize(sess)
        for step in range(3):
            rng = np.random.RandomState(step)
            feeds = {
                each: common.share(epl, rng.normal(size=[common.BATCH, each.shape[1].value])) for each in (noise, real)
            }
            history += [sess.run(pair, feeds)[0] for pair in zip(losses, operations)]
        return {"losses": history, "states": [common.state(sess)]}


def graphs(epl, config=None):
    """graph-nets: an interaction network over a batch of graphs with four nodes in a ring each."""
    common.init(epl, config)
    nets, snt = module("graph_nets"), module("sonnet")
    tf.set_random_seed(5)
    nodes = tf.placeholder(tf.float32, [None, 4, 3])
    edges = tf.placeholder(tf.float32, [None, 4, 2])
    wanted = tf.placeholder(tf.float32, [None, 4, 1])
    count = tf.shape(nodes)[0]
    offsets = 4 * tf.range(count)[:, None]
    batch = nets.graphs.GraphsTuple(
        nodes=tf.reshape(nodes, [-1, 3]),
        edges=tf.reshape(edges, [-1, 2]),
        receivers=tf.reshape(offsets + [[1, 2, 3, 0]], [-1]),
        senders=tf.reshape(offsets + [[0, 1, 2, 3]], [-1]),
        globals=tf.zeros([count, 1]),
        n_node=tf.fill([count], 4),
        n_edge=tf.fill([count], 4),
    )
    first = nets.modules.InteractionNetwork(lambda: snt.nets.MLP([6, 4]), lambda: snt.nets.MLP([6, 4]))
    output = snt.Linear(1)(first(batch).nodes)
    loss = tf.reduce_mean(tf.square(output - tf.reshape(wanted, [-1, 1])))
    train_op = tf.train.AdamOptimizer(0.01, epsilon=1e-3).minimize(loss)

    def feeds(step):
        rng = np.random.RandomState(step)
        return {
            each: common.share(epl, rng.normal(size=[common.BATCH, 4, each.shape[2].value]))
            for each in (nodes, edges, wanted)
        }

    return trained(epl, loss, train_op, feeds)


def speech(epl, config=None):
    """wavenet: dilated convolutions that predict the next of 16 levels of a sound."""
    common.init(epl, config)
    wavenet = module("wavenet")
    tf.set_random_seed(5)
    levels = tf.placeholder(tf.int32, [None, SAMPLES + 1])
    network = wavenet.Network([wavenet.Conv(8, 2**i) for i in range(3)])
    hidden = network.apply(tf.layers.dense(tf.one_hot(levels[:, :-1], 16), 8))
    logits = tf.layers.dense(tf.nn.relu(hidden), 16)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=levels[:, 1:], logits=logits))
    train_op = tf.train.AdamOptimizer(0.01, epsilon=1e-3).minimize(loss)

    def feeds(step):
        phases = np.random.RandomState(step).uniform(0, 6, [common.BATCH, 1])
        sound = np.sin(phases + np.arange(SAMPLES + 1) * (1 + phases / 9))
        return {levels: common.share(epl, np.digitize(sound, np.linspace(-1, 1, 15)).astype(np.int32))}

    return trained(epl, loss, train_op, feeds)


def segmentation(epl):
    """dltk: its residual U-Net on small volumes, with batch normalisation over all replicas."""
    common.init(epl, {"communication.sync_batch_norm": True})
    unet = module("dltk.networks.segmentation.unet")
    tf.set_random_seed(5)
    volumes = tf.placeholder(tf.float32, [None, 8, 8, 8, 1])
    labels = tf.placeholder(tf.int32, [None, 8, 8, 8])
    outputs = unet.residual_unet_3d(
        volumes,
        2,
        num_res_units=1,
        filters=(4, 8),
        strides=((1, 1, 1), (2, 2, 2)),
        mode=tf.estimator.ModeKeys.TRAIN,
        kernel_initializer=tf.initializers.variance_scaling(distribution="uniform", seed=2),
    )
    loss = tf.losses.sparse_softmax_cross_entropy(labels, outputs["logits"])
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss)

    def feeds(step):
        rng = np.random.RandomState(step)
        shape = [common.BATCH, 8, 8, 8]
        return {
            volumes: common.share(epl, rng.normal(size=shape + [1])),
            labels: common.share(epl, rng.randint(0, 2, shape)),
        }

    return trained(epl, loss, train_op, feeds)


def ranking(epl, folder):
    """tensorflow-ranking: a list-wise loss in its Estimator head, groups of one, on made-up queries."""
    common.init(epl)
    tfr = module("tensorflow_ranking")

    def score(context, groups, mode, params, config):
        del context, mode, params, config
        flat = tf.layers.flatten(groups["x"])
        hidden = tf.layers.dense(flat, 8, tf.nn.tanh, kernel_initializer=tf.glorot_uniform_initializer(seed=1))
        return tf.layers.dense(hidden, 1, kernel_initializer=tf.glorot_uniform_initializer(seed=2))

    def minimize(loss):
        return tf.train.AdagradOptimizer(0.1).minimize(loss, tf.train.get_global_step())

    head = tfr.head.create_ranking_head(
        tfr.losses.make_loss_fn(tfr.losses.RankingLossKey.PAIRWISE_LOGISTIC_LOSS, reduction=tf.losses.Reduction.MEAN),
        {"ndcg": tfr.metrics.make_ranking_metric_fn(tfr.metrics.RankingMetricKey.NDCG)},
        train_op_fn=minimize,
    )

    def transform(features, mode):
        return tfr.feature.encode_listwise_features(
            features, {}, {"x": tf.feature_column.numeric_column("x", [3])}, mode=mode
        )

    model_fn = tfr.model.make_groupwise_ranking_fn(score, 1, head, transform)
    size = common.BATCH // common.replicas(epl)

    def input_fn(first, last):
        def batch(step):
            rng = np.random.RandomState(step)
            # Each list has as many pairs as every other, as the loss is a mean over pairs.
            labels = np.stack([rng.permutation(4) for _ in range(common.BATCH)]).astype(np.float32)
            return rng.normal(size=[common.BATCH, 4, 3]).astype(np.float32), labels

        parts = [[common.share(epl, column) for column in batch(step)] for step in range(first, last)]
        x, labels = (np.concatenate(column) for column in zip(*parts))
        return lambda: tf.data.Dataset.from_tensor_slices(({"x": x}, labels)).batch(size)

    config = estimators.run_config(estimators.own_folder(epl, folder, False))
    estimator = tf.estimator.Estimator(model_fn, config=config)
    hook = estimators.Losses()
    estimator.train(input_fn(0, 5), hooks=[hook])
    metrics = {"metric/ndcg": estimator.evaluate(input_fn(10, 12))["ndcg"]}
    return {"losses": hook.losses, "metrics": metrics, "states": estimators.variables(estimator)}


def private(epl, config=None):
    """tensorflow-privacy: the gradient of each row is clipped by itself; without noise, which copies draw apart."""
    common.init(epl, config)
    optimizers = module("tensorflow_privacy.privacy.optimizers.dp_optimizer")
    feeds = common.Feeds(epl)
    logits = tf.layers.dense(feeds.x, common.CLASSES, kernel_initializer=tf.glorot_uniform_initializer(seed=1))
    rows = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=feeds.labels, logits=logits)
    optimizer = optimizers.DPGradientDescentGaussianOptimizer(
        l2_norm_clip=0.5,
        noise_multiplier=0.0,
        num_microbatches=common.BATCH // common.replicas(epl),
        unroll_microbatches=True,
        learning_rate=0.5,
    )
    return trained(epl, tf.reduce_mean(rows), optimizer.minimize(rows), feeds.of)


def second_order(epl, config=None):
    """kfac: natural gradients; a run of its own moves the averages of second moments on and inverts them.

    Its PeriodicInvCovUpdateKfacOpt does so in a branch, which is refused.
    """
    common.init(epl, config)
    kfac = module("kfac")
    feeds = common.Feeds(epl)
    layer = tf.layers.Dense(common.CLASSES, kernel_initializer=tf.glorot_uniform_initializer(seed=1))
    logits = layer(feeds.x)
    collection = kfac.LayerCollection()
    collection.register_fully_connected((layer.kernel, layer.bias), feeds.x, logits)
    collection.register_categorical_predictive_distribution(logits, targets=feeds.labels)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=feeds.labels, logits=logits))
    optimizer = kfac.KfacOptimizer(
        learning_rate=0.1,
        damping=0.1,
        layer_collection=collection,
        cov_ema_decay=0.9,
        momentum=0.9,
        estimation_mode="empirical",
    )
    covariances, inverses = optimizer.make_vars_and_create_op_thunks()
    covariances, inverses = (tf.group(*[make() for make in thunks]) for thunks in (covariances, inverses))
    train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    loss = common.mean_everywhere(epl, loss)
    losses = []
    with common.session() as sess:
        common.initialize(sess)
        for step in range(4):
            sess.run(covariances, feeds.of(step))
            sess.run(inverses)
            losses.append(sess.run([loss, train_op], feeds.of(step))[0])
        return {"losses": losses, "states": [common.state(sess)]}


def recommendation(epl):
    """tensorrec: its `fit` on a made-up table of who liked what. Each worker reads all of it, so it has one device."""
    common.init(epl)
    tensorrec, sparse = module("tensorrec"), module("scipy.sparse")
    tf.set_random_seed(5)
    rng = np.random.RandomState(3)
    likes = sparse.coo_matrix(np.sign(rng.normal(size=[6, 5])) * (rng.uniform(size=[6, 5]) < 0.6))
    users, items = (sparse.coo_matrix(np.eye(size)) for size in (6, 5))
    with common.session() as sess:
        module("tensorrec.session_management").set_session(sess)
        model = tensorrec.TensorRec(n_components=3)
        model.fit(likes, users, items, epochs=4, learning_rate=0.05)
        predictions = model.predict(users, items)
        state = common.state(sess)
    module("tensorrec.session_management").set_session(None)
    return {"losses": [], "predictions": predictions, "states": [state]}


def own_trainer(epl):
    """tflearn: DNN.fit with its Trainer's threads that feed, on small images."""
    common.init(epl)
    tflearn = module("tflearn")
    tf.set_random_seed(5)
    tflearn.init_graph(num_cores=1)
    net = tflearn.input_data([None, 6, 6, 1])
    net = tflearn.conv_2d(net, 3, 3, activation="relu", weights_init=tflearn.initializations.truncated_normal(seed=1))
    net = tflearn.fully_connected(
        net, 3, activation="softmax", weights_init=tflearn.initializations.truncated_normal(seed=2)
    )
    net = tflearn.regression(
        net, optimizer=tf.train.MomentumOptimizer(0.1, 0.9), loss="categorical_crossentropy", metric=None
    )
    model = tflearn.DNN(net, tensorboard_verbose=0, tensorboard_dir=tempfile.gettempdir())
    parts = []
    for step in range(4):
        rng = np.random.RandomState(step)
        part = rng.normal(size=[common.BATCH, 6, 6, 1]), np.eye(3)[rng.randint(0, 3, common.BATCH)]
        parts.append([common.share(epl, each) for each in part])
    x, y = (np.concatenate(column) for column in zip(*parts))
    size = common.BATCH // common.workers(epl)[1]
    model.fit(x, y, n_epoch=2, batch_size=size, shuffle=False, show_metric=False, snapshot_epoch=False)
    state = model.session.run({v.op.name: v for v in tf.trainable_variables()})
    return {"losses": [], "states": [state]}


def text(epl, config=None):
    """texar: a recurrent encoder and decoder with teacher forcing, by its own training function."""
    common.init(epl, config)
    texar = module("texar.tf")
    tf.set_random_seed(5)
    tokens = tf.placeholder(tf.int32, [None, 6])
    lengths = tf.fill([tf.shape(tokens)[0]], 5)
    embedder = texar.modules.WordEmbedder(vocab_size=12, hparams={"dim": 6})
    cell = {"rnn_cell": {"kwargs": {"num_units": 8}}}
    _, state = texar.modules.UnidirectionalRNNEncoder(hparams=cell)(embedder(tokens))
    decoder = texar.modules.BasicRNNDecoder(vocab_size=12, hparams=cell)
    outputs, _, _ = decoder(
        decoding_strategy="train_greedy", initial_state=state, inputs=embedder(tokens[:, :-1]), sequence_length=lengths
    )
    loss = texar.losses.sequence_sparse_softmax_cross_entropy(tokens[:, 1:], outputs.logits, lengths)
    options = {"optimizer": {"type": "AdamOptimizer", "kwargs": {"learning_rate": 0.01, "epsilon": 1e-3}}}
    step_counter = tf.train.get_or_create_global_step()
    train_op = texar.core.get_train_op(loss, global_step=step_counter, hparams=options)

    def feeds(step):
        return {tokens: common.share(epl, np.random.RandomState(step).randint(0, 12, [common.BATCH, 6]))}

    return trained(epl, loss, train_op, feeds)


def detection(epl):
    """luminoth: the region proposal network of its Faster R-CNN, which takes one image at a time, with two images."""
    common.init(epl)
    network, settings = _luminoth("models.fasterrcnn.rpn"), module("easydict").EasyDict
    tf.set_random_seed(5)
    size, stride, sides, images_here = 32, 8, (6.0, 10.0, 14.0), 2 // common.replicas(epl)
    centres = np.stack(np.meshgrid(*[np.arange(size // stride) * stride + stride / 2.0] * 2), -1).reshape([-1, 1, 2])
    half = np.array(sides).reshape([1, -1, 1]) / 2
    anchors = np.concatenate([centres - half, centres + half], -1).reshape([-1, 4]).astype(np.float32)
    initializer = {"type": "truncated_normal_initializer", "mean": 0.0, "stddev": 0.1}
    proposals = dict(pre_nms_top_n=20, post_nms_top_n=10, nms_threshold=0.6, min_size=0, clip_after_nms=False)
    proposals.update(filter_outside_anchors=False, apply_nms=True, min_prob_threshold=0.0)
    # As many anchors as there are may take part: which ones are left out would be drawn, other ones in each copy.
    target = dict(allowed_border=0, clobber_positives=False, foreground_threshold=0.5, foreground_fraction=0.5)
    target.update(background_threshold_high=0.3, background_threshold_low=0.0, minibatch_size=4 * len(anchors))
    wanted = dict(num_channels=8, kernel_shape=[3, 3], l2_regularization_scale=0.0005, l1_sigma=3.0)
    wanted.update(activation_function="relu6", proposals=proposals, target=target)
    wanted.update(rpn_initializer=initializer, cls_initializer=initializer, bbox_initializer=initializer)
    rpn = network.RPN(len(sides), settings(wanted))
    images, boxes = tf.placeholder(tf.float32, [None, size, size, 3]), tf.placeholder(tf.float32, [None, 2, 5])
    features = tf.layers.conv2d(images, 6, 5, strides=stride, padding="same", activation=tf.nn.tanh)
    losses = []
    for place in range(images_here):
        predicted = rpn(features[place : place + 1], (size, size), anchors, boxes[place], is_training=True)
        losses.append(tf.add_n(sorted(rpn.loss(predicted).values(), key=lambda loss: loss.name)))
    loss = tf.add_n(losses) / images_here + tf.losses.get_regularization_loss()
    train_op = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss)

    def feeds(step):
        rng = np.random.RandomState(step)
        corner = rng.uniform(2, 16, [2, 2, 2])
        found = np.concatenate([corner, corner + rng.uniform(6, 14, [2, 2, 2]), np.ones([2, 2, 1])], -1)
        return {
            images: common.share(epl, rng.normal(size=[2, size, size, 3])),
            boxes: common.share(epl, found),
        }

    return trained(epl, loss, train_op, feeds)


def _luminoth(name):
    """A module of luminoth without its command line, which its package imports first, and what that needs."""
    module("sonnet")  # whatever comes first puts the folder on the path
    package = sys.modules.setdefault("luminoth", types.ModuleType("luminoth"))
    package.__path__ = [os.path.join(PACKAGES, "luminoth")]
    return module("luminoth." + name)
