"""Programs that do with TensorFlow what EPL does in another way: some are refused, some serve."""

import importlib
import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.programs.pipelines import fed, start


def refusal(epl, program, *args, **kwargs):
    """(name of the class, message) of EPL's refusal of a program of this module; ("", "") if it goes through."""
    errors = importlib.import_module("epl.errors")
    try:
        globals()[program](epl, *args, **kwargs)
    except errors.EplError as error:
        return type(error).__name__, str(error)
    return "", ""


def distributes(epl, name):
    """Makes a distribution strategy."""
    common.init(epl)
    make = {
        "MirroredStrategy": lambda: tf.distribute.MirroredStrategy(["/cpu:0"]),
        "OneDeviceStrategy": lambda: tf.distribute.OneDeviceStrategy("/cpu:0"),
        "CentralStorageStrategy": lambda: tf.distribute.experimental.CentralStorageStrategy(["/cpu:0"]),
        "MultiWorkerMirroredStrategy": tf.distribute.experimental.MultiWorkerMirroredStrategy,
        "contrib": lambda: importlib.import_module("tensorflow.contrib.distribute").OneDeviceStrategy("/cpu:0"),
    }
    make[name]()


def scope_of_an_older_strategy(epl):
    """Enters the scope of a strategy that was there before epl.init()."""
    strategy = object.__new__(tf.distribute.MirroredStrategy)
    common.init(epl)
    with strategy.scope():
        pass


def run_config_replaced(epl):
    common.init(epl)
    strategy = object.__new__(tf.distribute.MirroredStrategy)
    tf.estimator.RunConfig().replace(train_distribute=strategy)


def server(epl):
    common.init(epl)
    tf.train.Server({"worker": ["127.0.0.1:0"], "ps": ["127.0.0.1:0"]}, job_name="ps", task_index=0).join()


def target(epl, monitored):
    common.init(epl)
    if monitored:
        tf.train.get_or_create_global_step()
        tf.train.MonitoredTrainingSession(master="grpc://127.0.0.1:2222")
    else:
        tf.Session("grpc://127.0.0.1:2222")


def optimizer(epl, name):
    """Makes an optimizer around another one."""
    common.init(epl)
    inner = tf.train.GradientDescentOptimizer(0.1)
    if name == "SyncReplicasOptimizer":
        tf.train.SyncReplicasOptimizer(inner, replicas_to_aggregate=2)
    elif name == "CrossShardOptimizer":
        tf.tpu.CrossShardOptimizer(inner)
    elif name == "Horovod":
        # As its package makes it: a class of its own around the optimizer, known by its module.
        own = type("_DistributedOptimizer", (tf.train.Optimizer,), {"__module__": "horovod.tensorflow"})
        own(False, "DistributedGradientDescent")
    else:
        opt = importlib.import_module("tensorflow.contrib.opt")
        arguments = {
            "DropStaleGradientOptimizer": (2,),
            "ElasticAverageOptimizer": (2, None),
            "ModelAverageOptimizer": (2, True, None),
            "AGNOptimizer": (2, None),
        }
        getattr(opt, name)(inner, *arguments[name])


class SyncReplicasOptimizer(tf.train.GradientDescentOptimizer):
    """A program's own class that is called like one of TensorFlow's."""


def own_class_of_that_name(epl):
    return trained(epl, lambda: SyncReplicasOptimizer(0.1))


def operation(epl, name):
    common.init(epl)
    if name == "accumulator":
        tf.ConditionalAccumulator(tf.float32, [])
    elif name == "collective":
        tf.raw_ops.CollectiveReduce(
            input=tf.constant([1.0]),
            group_size=2,
            group_key=1,
            instance_key=1,
            merge_op="Add",
            final_op="Id",
            subdiv_offsets=[0],
        )
    elif name == "nccl":
        tf.raw_ops.NcclAllReduce(input=tf.constant([1.0]), reduction="sum", num_devices=2, shared_name="all")
    elif name == "tpu_system":
        tf.tpu.initialize_system()
    elif name == "tpu_rewrite":
        tf.tpu.rewrite(lambda: tf.constant(1.0))


def tpu_estimator(epl, **arguments):
    common.init(epl)
    tpu = tf.estimator.tpu
    tpu.TPUEstimator(
        lambda features, labels, mode, params: None, config=tpu.RunConfig(), train_batch_size=8, **arguments
    )


def eager_after_init(epl):
    common.init(epl)
    tf.enable_eager_execution()


def partial_run(epl):
    common.init(epl)
    x = tf.placeholder(tf.float32, [])
    with common.session() as sess:
        sess.partial_run_setup([x + 1.0], [x])


def metadata_of_a_callable(epl):
    common.init(epl)
    options = tf.CallableOptions() if hasattr(tf, "CallableOptions") else _callable_options()
    options.fetch.append((tf.constant(1.0) + 1.0).name)
    with common.session() as sess:
        sess._make_callable_from_options(options)(run_metadata=tf.RunMetadata())


def _callable_options():
    return importlib.import_module("tensorflow.core.protobuf.config_pb2").CallableOptions()


def supervisor_of_another(epl):
    common.init(epl)
    with tf.device("/job:worker"):  # TensorFlow insists on one
        tf.get_variable("weight", [])
    tf.train.Supervisor(is_chief=False).prepare_or_wait_for_session()


# ---------------------------------------------------------------------------------------------------------------------
# What serves.


def trained(epl, make_optimizer, steps=4, bad_step=None, config=None):
    """Losses and variables. At `bad_step` one row of the global batch gives gradients that are not finite."""
    common.init(epl, config)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    train_op = make_optimizer().minimize(loss, tf.train.get_or_create_global_step())
    return _trained(epl, feeds, loss, train_op, steps, bad_step)


def _trained(epl, feeds, loss, train_op, steps=4, bad_step=None):
    loss = common.mean_everywhere(epl, loss)
    losses, states = [], []
    with common.session() as sess:
        common.initialize(sess)
        for step in range(steps):
            x, labels = common.batch(step)
            if step == bad_step:
                x[-1] = np.inf
            fed = {feeds.x: common.share(epl, x), feeds.labels: common.share(epl, labels)}
            losses.append(sess.run([loss, train_op], fed)[0])
            states.append(common.state(sess))
    return {"losses": losses, "states": states}


class _WhereFinite(object):
    """Momentum of which a branch that stands outside of it leaves out steps, as optimizers of GANs do."""

    def __init__(self):
        self._inner = tf.train.MomentumOptimizer(0.1, 0.9)

    def minimize(self, loss, global_step=None):
        pairs = self._inner.compute_gradients(loss)
        finite = tf.reduce_all(tf.stack([tf.reduce_all(tf.is_finite(gradient)) for gradient, _ in pairs]))
        apply = lambda: self._inner.apply_gradients(pairs, global_step=global_step)  # noqa: E731
        return tf.cond(finite, apply, tf.no_op)


def loss_scale(epl, kind, config=None):
    """Optimizers that scale the loss, and leave a step out whose gradients are not finite."""
    inner = lambda: tf.train.MomentumOptimizer(0.1, 0.9)  # noqa: E731
    if kind == "outside":
        return trained(epl, _WhereFinite, bad_step=1, config=config)
    if kind == "contrib":
        mixed = importlib.import_module("tensorflow.contrib.mixed_precision")
        manager = lambda: mixed.ExponentialUpdateLossScaleManager(128.0, 2)  # noqa: E731
        return trained(epl, lambda: mixed.LossScaleOptimizer(inner(), manager()), bad_step=1, config=config)
    scale = {"dynamic": "dynamic", "fixed": 64.0}[kind]
    enable = tf.train.experimental.enable_mixed_precision_graph_rewrite
    try:
        return trained(epl, lambda: enable(inner(), scale), bad_step=1 if kind == "dynamic" else None, config=config)
    finally:
        tf.train.experimental.disable_mixed_precision_graph_rewrite()


def parameter_server_devices(epl):
    """The device functions of a script for parameter servers."""
    cluster = tf.train.ClusterSpec({"ps": ["a:1"], "worker": ["b:1", "c:1"]})
    setter = tf.train.replica_device_setter(cluster=cluster, worker_device="/job:worker/task:1")
    with tf.device(setter if epl else None):
        return trained(epl, lambda: tf.train.AdamOptimizer(0.02, epsilon=1e-3))


def towers(epl):
    """A loop over devices that the script itself has, with the gradients averaged by hand."""
    common.init(epl)
    feeds = common.Feeds(epl)
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    losses, gradients = [], []
    for number, (x, labels) in enumerate(zip(tf.split(feeds.x, 2), tf.split(feeds.labels, 2))):
        with tf.device("/cpu:%d" % number if epl else None), tf.variable_scope("tower", reuse=tf.AUTO_REUSE):
            losses.append(common.classifier(x, labels))
            gradients.append(optimizer.compute_gradients(losses[-1]))
    pairs = [((pair[0][0] + pair[1][0]) / 2.0, pair[0][1]) for pair in zip(*gradients)]
    return _trained(epl, feeds, (losses[0] + losses[1]) / 2.0, optimizer.apply_gradients(pairs))


def by_hand(epl):
    """Gradient descent without an optimizer."""
    common.init(epl)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    variables = tf.trainable_variables()
    gradients = tf.tuple(tf.gradients(loss, variables))
    return _trained(epl, feeds, loss, tf.group(*[v.assign_sub(0.1 * g) for v, g in zip(variables, gradients)]))


def tape(epl):
    """tf.GradientTape in a graph."""
    common.init(epl)
    x = tf.placeholder(tf.float32, [None], name="x")
    weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer(), use_resource=True)
    with tf.GradientTape() as tape_:
        loss = tf.reduce_mean((weight - x) ** 2)
    train_op = tf.train.GradientDescentOptimizer(0.1).apply_gradients([(tape_.gradient(loss, weight), weight)])
    with common.session() as sess:
        common.initialize(sess)
        for step in range(3):
            sess.run(train_op, {x: common.share(epl, np.arange(8, dtype=np.float32) + step)})
        return common.state(sess)


def counting_py_func(epl):
    """A Python function with state: each copy of the model calls it with its part of the batch."""
    common.init(epl)
    rows = []
    x = tf.placeholder(tf.float32, [None], name="x")
    weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())

    def note(values):
        rows.append(len(values))
        return values

    loss = tf.reduce_mean(tf.py_func(note, [x], tf.float32, stateful=True) * weight)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with common.session() as sess:
        common.initialize(sess)
        sess.run(train_op, {x: common.share(epl, np.arange(8, dtype=np.float32))})
        return sess.run(weight), sorted(rows)


def object_checkpoint_over_workers(epl, folder):
    """Saves with tf.train.Checkpoint."""
    _, feeds, train_op = start(epl, 1, "tied_mlp", 2, 2)
    with common.session() as sess:
        common.initialize(sess)
        sess.run(train_op, fed(epl, feeds, 0, 2, 1))
        tf.train.Checkpoint(step=tf.train.get_global_step()).save(os.path.join(folder, "objects"), session=sess)


def restore_by_the_chief_alone(epl, folder):
    """The chief restores a checkpoint that has the variables of all stages; the worker of the last one does not."""
    _, feeds, train_op = start(epl, 1, "tied_mlp", 2, 2)
    saver = tf.train.Saver()
    with common.session() as sess:
        common.initialize(sess)
        path = saver.save(sess, os.path.join(folder, "model"))
        sess.run(train_op, fed(epl, feeds, 0, 2, 1))
        if common.workers(epl)[0] == 0:
            saver.restore(sess, path)
        sess.run(train_op, fed(epl, feeds, 1, 2, 1))


def read_of_what_only_the_chief_has(epl):
    """The chief reads what only its graph has."""
    _, feeds, train_op = start(epl, 1, "tied_mlp", 2, 2)
    with common.session() as sess:
        common.initialize(sess)
        last = [v for v in tf.trainable_variables() if "layer_3/kernel" in v.op.name][0]
        if common.workers(epl)[0] == 0:
            mine = tf.reduce_sum(last, name="only_here")
            sess.run(mine)
        sess.run(train_op, fed(epl, feeds, 0, 2, 1))


def resume_from_a_folder_of_its_own(epl, folder):
    """A monitored session over two stages goes on, but the same name is another folder for each worker."""
    before, own = os.getcwd(), os.path.join(folder, str(common.workers(epl)[0]))
    os.makedirs(own)
    os.chdir(own)
    try:
        for _ in range(2):
            with tf.Graph().as_default():
                _, feeds, train_op = start(epl, 1, "tied_mlp", 2, 2)
                with tf.train.MonitoredTrainingSession(checkpoint_dir="here", config=common.threads()) as sess:
                    sess.run(train_op, fed(epl, feeds, 0, 2, 1))
    finally:
        os.chdir(before)
