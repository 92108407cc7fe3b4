"""Programs whose models, optimizers and loops come from packages of others; each tells its losses and its variables.

They are small, their data is made here, and dropout is off, as copies of a model drop other units than one model does.
"""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.others import module
from tests.helpers.programs import common, estimators
from tests.helpers.programs.by_others import CLIP_THE_WHOLE, trained

LENGTH = 6
WORDS = 20


def words(step, length=LENGTH):
    """A global batch of sentences: [BATCH, length]."""
    return np.random.RandomState(300 + step).randint(1, WORDS, [common.BATCH, length]).astype(np.int32)


def gpt2(epl, config=None):
    """gpt-2-simple: its model, and Adam on tf.gradients as its `finetune` does without accumulation."""
    common.init(epl, config)
    model = module("gpt_2_simple.src.model")
    tf.set_random_seed(5)
    context = tf.placeholder(tf.int32, [None, LENGTH])
    logits = model.model(hparams=model.HParams(WORDS, LENGTH, 16, 2, 2), X=context)["logits"]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=context[:, 1:], logits=logits[:, :-1])
    loss, variables = tf.reduce_mean(losses), tf.trainable_variables()
    optimizer = tf.train.AdamOptimizer(0.01, epsilon=1e-4)
    # In `finetune` updates race with the rest of the backward pass, in plain TensorFlow too: here gradients are first.
    gradients = tf.tuple(tf.gradients(loss, variables))
    train_op = optimizer.apply_gradients(list(zip(gradients, variables)))
    return trained(epl, loss, train_op, lambda step: {context: common.share(epl, words(step))})


def gpt2_accumulated(epl):
    """gpt-2-simple's AccumulatingOptimizer: gradients of two runs, applied by a third."""
    common.init(epl)
    model, accumulate = module("gpt_2_simple.src.model"), module("gpt_2_simple.src.accumulate")
    tf.set_random_seed(5)
    context = tf.placeholder(tf.int32, [None, LENGTH])
    logits = model.model(hparams=model.HParams(WORDS, LENGTH, 16, 2, 1), X=context)["logits"]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=context[:, 1:], logits=logits[:, :-1])
    optimizer = accumulate.AccumulatingOptimizer(
        tf.train.AdamOptimizer(0.01, epsilon=1e-4), var_list=tf.trainable_variables()
    )
    reset, compute = optimizer.reset(), optimizer.compute_gradients(tf.reduce_mean(losses))
    apply = optimizer.apply_gradients()
    history = []
    with common.session() as sess:
        common.initialize(sess)
        for step in range(3):
            sess.run(reset)
            for part in range(2):
                sess.run(compute, {context: common.share(epl, words(2 * step + part))})
            sess.run(apply)
            history.append(sess.run(optimizer.total_loss) / sess.run(optimizer.count_loss))
        state = common.state(sess)
    trained_variables = [v.op.name for v in optimizer.var_list]
    return {"losses": history, "states": [{name: state[name] for name in trained_variables}]}


def fitted_weights(epl, made, inputs, labels, epochs=3):
    """Trains a model of the package keras by `fit`: its losses, its weights and its optimizer's."""
    size = common.BATCH // common.workers(epl)[1]
    fitted = made.fit(inputs, labels, batch_size=size, epochs=epochs, shuffle=False, verbose=0)
    state = dict(enumerate(made.get_weights()))
    state.update(("optimizer %d" % number, value) for number, value in enumerate(made.optimizer.get_weights()))
    return {"losses": fitted.history["loss"], "states": [state]}


def parts_of(epl, batches):
    """This worker's rows of global batches, one after the other, column by column."""
    columns = zip(*[[common.share(epl, column) for column in batch] for batch in batches])
    return [np.concatenate(column) for column in columns]


def deepfm(epl, config=None):
    """deepctr's DeepFM, a tf.keras model, trained by `fit` on made-up clicks."""
    common.init(epl, config)
    models, columns = module("deepctr.models"), module("deepctr.feature_column")
    tf.set_random_seed(5)
    features = [columns.SparseFeat("f%d" % i, 5, embedding_dim=4) for i in range(3)] + [columns.DenseFeat("d", 2)]
    made = models.DeepFM(features, features, dnn_hidden_units=(8, 4))
    made.compile(tf.keras.optimizers.Adam(0.01, epsilon=1e-4), "binary_crossentropy")

    def batch(step):
        rng = np.random.RandomState(400 + step)
        sparse = [rng.randint(0, 5, common.BATCH) for _ in range(3)]
        dense = rng.normal(size=[common.BATCH, 2]).astype(np.float32)
        return sparse + [dense, rng.randint(0, 2, common.BATCH).astype(np.float32)]

    rows = parts_of(epl, [batch(step) for step in range(3)])
    names = ["f0", "f1", "f2", "d"]
    size = common.BATCH // common.workers(epl)[1]
    fitted = made.fit(dict(zip(names, rows)), rows[-1], batch_size=size, epochs=3, shuffle=False, verbose=0)
    return {"losses": fitted.history["loss"], "states": [dict(enumerate(made.get_weights()))]}


def deepfm_estimator(epl, folder):
    """deepctr's DeepFMEstimator: a sum over the rows plus penalties on weights, two optimizers; batches of 16 rows."""
    common.init(epl)
    made, columns = module("deepctr.estimator"), tf.feature_column
    rng = np.random.RandomState(400)
    rows = {"f%d" % i: rng.randint(0, 5, 96) for i in range(3)}
    rows["d"] = rng.normal(size=[96, 2]).astype(np.float32)
    labels = rng.randint(0, 2, 96).astype(np.float32)
    index, count = common.workers(epl)
    blocks = np.arange(96).reshape(-1, 16)  # the rows of each global batch; a worker has its part of each
    mine = blocks[:, index * 16 // count : (index + 1) * 16 // count].reshape(-1)
    size = 16 // common.replicas(epl)

    def input_fn(which, batch):
        features = {name: value[which] for name, value in rows.items()}
        return lambda: tf.data.Dataset.from_tensor_slices((features, labels[which])).batch(batch)

    kinds = [columns.categorical_column_with_identity("f%d" % i, 5) for i in range(3)]
    dense = columns.numeric_column("d", shape=(2,))
    estimator = made.DeepFMEstimator(
        kinds + [dense],
        [columns.embedding_column(kind, 4) for kind in kinds] + [dense],
        dnn_hidden_units=(8, 4),
        l2_reg_linear=0.1,
        l2_reg_embedding=0.1,
        l2_reg_dnn=0.1,
        config=estimators.run_config(estimators.own_folder(epl, folder, False)),
    )
    hook = estimators.Losses()
    estimator.train(input_fn(mine, size), hooks=[hook])
    metrics = estimator.evaluate(input_fn(np.arange(96)[index::count], 7))  # 48 rows of each of two workers
    return {
        "losses": hook.losses,
        "metrics": {name: metrics[name] for name in ("AUC", "prediction/mean", "label/mean")},
        "states": estimators.variables(estimator),
    }


def keras_package(epl, config=None):
    """The package keras, which is not tf.keras: two layers with batch normalisation left out, its own Adam."""
    common.init(epl, config)
    keras = fresh_keras()
    initializers = keras.initializers
    made = keras.models.Sequential(
        [
            keras.layers.Dense(
                8, activation="tanh", input_shape=(common.FEATURES,), kernel_initializer=initializers.glorot_uniform(1)
            ),
            keras.layers.Dense(common.CLASSES, activation="softmax", kernel_initializer=initializers.glorot_uniform(2)),
        ]
    )
    made.compile(counts_last(keras.optimizers.Adam(0.05, epsilon=1e-3)), "sparse_categorical_crossentropy")
    x, labels = parts_of(epl, [common.batch(step) for step in range(2)])
    return fitted_weights(epl, made, x, labels)


def fresh_keras():
    """The package keras with a session of its own in the default graph."""
    keras = module("keras")
    keras.backend.set_session(common.session())
    return keras


def counts_last(optimizer):
    """An optimizer of the package keras that counts a step once all that may read the count is through.

    As it is, both happen at once, and the same program gives other weights from run to run.
    """
    original = optimizer.get_updates

    def get_updates(loss, params):
        updates = original(loss, params)
        assert "iterations" in updates[0].op.inputs[0].name
        with tf.control_dependencies(updates[1:]):
            updates[0] = module("keras").backend.update_add(optimizer.iterations, 1)
        return updates

    optimizer.get_updates = get_updates
    return optimizer


def bert4keras(epl, config=None):
    """bert4keras' BERT over the package keras, with a classifier and the Adam of bert4keras with weight decay."""
    common.init(epl, config)
    np.random.seed(5)  # the package keras takes its seeds from here
    keras = fresh_keras()
    models, optimizers = module("bert4keras.models"), module("bert4keras.optimizers")
    tf.set_random_seed(5)
    made = models.build_transformer_model(
        model="bert",
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_act="gelu",
        max_position=LENGTH,
        dropout_rate=0.0,
    )
    first = keras.layers.Lambda(lambda x: x[:, 0])(made.output)
    output = keras.layers.Dense(2, activation="softmax")(first)
    made = keras.models.Model(made.inputs, output)
    optimizer = optimizers.extend_with_weight_decay(optimizers.Adam)(0.005, epsilon=1e-3, weight_decay_rate=0.01)
    made.compile(counts_last(optimizer), "sparse_categorical_crossentropy")

    def batch(step):
        labels = np.random.RandomState(step).randint(0, 2, common.BATCH)
        return words(step), np.zeros([common.BATCH, LENGTH], np.int32), labels

    tokens, segments, labels = parts_of(epl, [batch(step) for step in range(3)])
    return fitted_weights(epl, made, [tokens, segments], labels, epochs=1)


def sonnet(epl, config=None):
    """sonnet's LSTM with a linear layer, and the temporal-difference loss of trfl."""
    common.init(epl, config)
    snt, trfl = module("sonnet"), module("trfl")
    tf.set_random_seed(5)
    observations = tf.placeholder(tf.float32, [None, LENGTH, 3])
    actions = tf.placeholder(tf.int32, [None])
    rewards = tf.placeholder(tf.float32, [None])
    core, head = snt.LSTM(8), snt.nets.MLP([8, 4])
    states, _ = tf.nn.dynamic_rnn(core, observations, dtype=tf.float32)
    before, after = head(states[:, -2]), head(states[:, -1])
    loss = tf.reduce_mean(trfl.qlearning(before, actions, rewards, 0.9 * tf.ones_like(rewards), after).loss)
    train_op = tf.train.RMSPropOptimizer(0.01, epsilon=1e-2).minimize(loss)

    def feeds(step):
        rng = np.random.RandomState(step)
        values = (rng.normal(size=[common.BATCH, LENGTH, 3]), rng.randint(0, 4, common.BATCH), rng.normal(size=[8]))
        return {key: common.share(epl, value) for key, value in zip((observations, actions, rewards), values)}

    return trained(epl, loss, train_op, feeds)


def ppo2(epl):
    """stable-baselines' PPO2 for an environment that is made here: its setup, and its own training step.

    Every half of a batch has the same returns and values in another order, as PPO2 normalises advantages over the batch
    that it is given.
    """
    common.init(epl, CLIP_THE_WHOLE)
    gym, stable = module("gym"), module("stable_baselines")

    class Walk(gym.Env):
        """A walk on a line."""

        observation_space = gym.spaces.Box(-9.0, 9.0, [3], np.float32)
        action_space = gym.spaces.Discrete(2)

        def reset(self):
            return np.zeros([3], np.float32)

        def step(self, action):
            return np.full([3], float(action), np.float32), 1.0, True, {}

    options = {"n_steps": 4, "nminibatches": 1, "noptepochs": 1, "seed": 3, "n_cpu_tf_sess": 1, "verbose": 0}
    model = stable.PPO2("MlpPolicy", Walk(), policy_kwargs={"net_arch": [8]}, **options)
    losses = []
    for step in range(3):
        rng = np.random.RandomState(step)
        half = common.BATCH // 2
        returns, values = (np.concatenate([part, part[::-1]]) for part in rng.normal(size=[2, half]))
        rows = (
            rng.normal(size=[common.BATCH, 3]).astype(np.float32),
            returns,
            np.zeros([common.BATCH], bool),
            rng.randint(0, 2, common.BATCH),
            values,
            np.log(rng.uniform(0.3, 0.7, common.BATCH)),
        )
        model._train_step(0.01, 0.2, *[common.share(epl, each) for each in rows], update=1, writer=None)
        action, _ = model.predict(np.ones([3]), deterministic=True)  # one observation
        losses.append(float(action))
    return {"losses": [], "actions": losses, "states": [model.get_parameters()]}


def tensorpack(epl, folder):
    """tensorpack's SimpleTrainer on feeds, with a moving summary: its own loop, session and callbacks."""
    common.init(epl)
    train, dataflow, tfutils = (module("tensorpack." + name) for name in ("train", "dataflow", "tfutils"))
    callbacks, inputs = module("tensorpack.callbacks"), module("tensorpack.input_source")
    logger = module("tensorpack.utils.logger")
    logger.set_logger_dir(os.path.join(folder, "log"), action="k")  # where it looks for what it has saved
    weights = tf.random_normal_initializer(0.0, 0.3, seed=2)

    class Model(train.ModelDesc):
        def inputs(self):
            return [tf.TensorSpec([None, common.FEATURES], tf.float32, "x"), tf.TensorSpec([None], tf.int64, "labels")]

        def build_graph(self, x, labels):
            # One layer: tensorpack lets updates and the rest of the backward pass race, plain TensorFlow included.
            logits = tf.layers.dense(x, common.CLASSES, kernel_initializer=weights)
            cost = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), name="cost"
            )
            module("tensorpack.tfutils.summary").add_moving_summary(cost)
            return common.mean_everywhere(epl, cost)

        def optimizer(self):
            return tf.train.MomentumOptimizer(0.1, 0.9)

    history, states = [], []

    class Watch(callbacks.Callback):
        def _before_run(self, _):
            return tf.train.SessionRunArgs("cost:0")

        def _after_run(self, _, values):
            history.append(values.results)

        def _after_train(self):
            variables = tf.global_variables() + tf.local_variables()
            states.append(self.trainer.sess.run({v.op.name: v for v in variables if v.dtype.base_dtype == tf.float32}))

    batches = [[common.share(epl, column) for column in common.batch(step)] for step in range(4)]
    config = train.TrainConfig(
        model=Model(),
        data=inputs.FeedInput(dataflow.DataFromList(batches, shuffle=False)),
        callbacks=[Watch(), callbacks.ModelSaver()],
        extra_callbacks=[callbacks.MovingAverageSummary()],
        session_creator=tfutils.sesscreate.NewSessionCreator(config=common.threads()),
        monitors=[],
        steps_per_epoch=4,
        max_epoch=2,
    )
    train.launch_train_with_config(config, train.SimpleTrainer())
    return {"losses": history, "states": states}


def opennmt(epl, folder, accumulate=1):
    """OpenNMT-tf's Runner with a small transformer, from text files of its own to a checkpoint."""
    common.init(epl)
    onmt, runner = module("opennmt"), module("opennmt.runner")
    index, _ = common.workers(epl)
    own = os.path.join(folder, "worker_%d" % index)
    model_dir = os.path.join(folder, "model")
    os.makedirs(own)
    if index == 0:
        os.makedirs(model_dir)  # its command-line program does
    lines = [" ".join("w%d" % word for word in row) for step in range(6) for row in common.share(epl, words(step))]
    write(os.path.join(own, "text"), lines)
    write(os.path.join(own, "vocabulary"), ["<blank>", "<s>", "</s>"] + ["w%d" % word for word in range(1, WORDS)])

    def embedder(side):
        return onmt.inputters.WordEmbedder(vocabulary_file_key=side + "_vocabulary", embedding_size=8)

    model = onmt.models.Transformer(
        embedder("source"), embedder("target"), 1, 8, 2, 16, dropout=0.0, attention_dropout=0.0, relu_dropout=0.0
    )
    data = {key: os.path.join(own, "vocabulary") for key in ("source_vocabulary", "target_vocabulary")}
    data.update(train_features_file=os.path.join(own, "text"), train_labels_file=os.path.join(own, "text"))
    size = common.BATCH // common.replicas(epl)
    config = {
        "model_dir": model_dir,
        "data": data,
        "params": {"optimizer": "GradientDescentOptimizer", "learning_rate": 0.1, "gradients_accum": accumulate},
        "train": {
            "batch_size": size,
            "sample_buffer_size": 0,
            "train_steps": 6,
            "save_checkpoints_steps": 3,
            "num_threads": 1,
        },
    }
    made = runner.Runner(model, config, seed=3, session_config=common.threads())
    made.train()
    names = [name for name, _ in tf.train.list_variables(model_dir)]
    state = {name: tf.train.load_variable(model_dir, name) for name in names}
    return {"losses": [], "states": [state]}


def write(path, lines):
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")
