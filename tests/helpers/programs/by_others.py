"""Programs whose models and optimizers others have written, run as they are; each tells its losses and its variables.

Dropout is off, as copies of a model drop other units than one model does.
"""

import importlib

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common, estimators

STEPS = 3


def trained(epl, loss, train_op, feeds, steps=STEPS):
    """Losses and variables of a loop over feeds; `feeds` is a function of the step."""
    loss = common.mean_everywhere(epl, loss)
    losses, states = [], []
    with common.session() as sess:
        common.initialize(sess)
        for step in range(steps):
            losses.append(sess.run([loss, train_op], feeds(step))[0])
            states.append(common.state(sess))
    return {"losses": losses, "states": states[-1:]}


def resnet(epl, size=32, classes=5):
    """ResNet-50 of tf.contrib.slim on small images, with its own arguments, weight decay and moving averages."""
    common.init(epl, {"communication.sync_batch_norm": True})
    if epl:
        epl.set_default_strategy(epl.replicate(1))
    nets = importlib.import_module("tensorflow.contrib.slim.nets")
    slim = importlib.import_module("tensorflow.contrib.slim")
    tf.set_random_seed(7)
    images = tf.placeholder(tf.float32, [None, size, size, 3])
    labels = tf.placeholder(tf.int64, [None])
    with slim.arg_scope(nets.resnet_utils.resnet_arg_scope()):
        logits, _ = nets.resnet_v1.resnet_v1_50(images, classes, is_training=True)
    tf.losses.sparse_softmax_cross_entropy(labels, tf.squeeze(logits, [1, 2]))
    loss = tf.losses.get_total_loss()
    train_op = slim.learning.create_train_op(loss, tf.train.MomentumOptimizer(0.01, 0.9))

    def feeds(step):
        rng = np.random.RandomState(step)
        batch = rng.normal(size=(common.BATCH, size, size, 3)).astype(np.float32)
        return {
            images: common.share(epl, batch),
            labels: common.share(epl, rng.randint(0, classes, common.BATCH)),
        }

    return trained(epl, loss, train_op, feeds, 2)


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


# Rate, steps, warm-up steps, TPU. The package leaves open whether a step's rate comes from the count before or after it:
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
    return {"losses": hook.losses, "metrics": metrics}


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
    with common.session() as sess:
        common.initialize(sess)
        for _ in range(4):
            sess.run(train_op, {data: np.ones(common.replicas(epl), np.float32)})
            weights.append(sess.run([weight, rate, step])[0])
        return weights, sess.run(step)
