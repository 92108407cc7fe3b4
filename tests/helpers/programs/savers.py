"""Programs that save in every way that tf.train.Saver has, and that export; plain TensorFlow loads what they leave."""

import os
import resource
import time

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common, estimators

OPTIONS = {
    "part": lambda: {"var_list": tf.trainable_variables()[:3]},
    "renamed": lambda: {"var_list": {"other/" + v.op.name: v for v in tf.global_variables()}},
    "sharded": lambda: {"sharded": True},
    "few": lambda: {"max_to_keep": 2},
    "by time": lambda: {"max_to_keep": 1, "keep_checkpoint_every_n_hours": 1e-7},
    "deferred": lambda: {"defer_build": True},
}


def partitioned_classifier(x, labels):
    """Two layers whose weights are partitioned, with a partial last piece."""
    x.set_shape([None, common.FEATURES])
    initializer = tf.random_uniform_initializer(-0.5, 0.5, seed=5)
    with tf.variable_scope("parts", partitioner=tf.fixed_size_partitioner(3), initializer=initializer):
        hidden = tf.nn.tanh(tf.matmul(x, tf.convert_to_tensor(tf.get_variable("hidden", [common.FEATURES, 8]))))
        logits = tf.matmul(hidden, tf.convert_to_tensor(tf.get_variable("logits", [8, common.CLASSES])))
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)), logits


def save(epl, folder, options, steps=4):
    """Trains and saves at each step; then spoils the variables, restores the last file and trains on.

    Each worker has a folder of its own, and only the chief's holds anything to restore from.
    """
    common.init(epl)
    index = common.workers(epl)[0]
    folder = os.path.join(folder, "worker_%d" % index)
    if index == 0:
        os.makedirs(folder)
    feeds = common.Feeds(epl)
    loss, logits = partitioned_classifier(feeds.x, feeds.labels)
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
    fetched = common.mean_everywhere(epl, loss)
    saver = tf.train.Saver(**OPTIONS[options]())
    if options == "deferred":
        saver.build()
    spoil = [tf.assign(v, tf.zeros_like(v)) for v in tf.trainable_variables()]
    losses, paths = [], []
    with common.session() as sess:
        common.initialize(sess)
        for number in range(steps):
            losses.append(sess.run([fetched, train_op], feeds.of(number))[0])
            paths.append(saver.save(sess, os.path.join(folder, "model"), global_step=step))
        if options != "part":
            sess.run(spoil)
            if index == 0:
                saver.restore(sess, paths[-1])
        for number in range(steps, steps + 2):
            losses.append(sess.run([fetched, train_op], feeds.of(number))[0])
        frozen = tf.graph_util.convert_variables_to_constants(
            sess, tf.get_default_graph().as_graph_def(), [logits.op.name]
        )
        meta = tf.train.export_meta_graph(graph=tf.get_default_graph())
        if options == "few":
            tf.saved_model.simple_save(sess, os.path.join(folder, "export"), {"x": feeds.x}, {"logits": logits})
        rows = common.batch(20)[0]
        predicted = sess.run(logits, {feeds.x: rows})
    return {
        "losses": losses,
        "names": [os.path.basename(path) for path in paths],
        "files": files(folder),
        "frozen": frozen.SerializeToString(),
        "logits": logits.name,
        "predicted": predicted,
        "foreign": estimators.foreign(meta.graph_def) + estimators.foreign(frozen),
    }


def files(folder):
    """Names of the files in a folder and below."""
    return sorted(os.path.join(where[len(folder) :], name) for where, _, names in os.walk(folder) for name in names)


def read(epl, prefix):
    """The tensors of a checkpoint by name."""
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def run_frozen(epl, graph_def, logits):
    """Runs a frozen graph."""
    tf.import_graph_def(tf.GraphDef.FromString(graph_def), name="")
    with common.session() as sess:
        return sess.run(logits, {"x:0": common.batch(20)[0]})


def serve(epl, folder):
    """Runs a SavedModel."""
    with common.session() as sess:
        meta = tf.saved_model.load(sess, ["serve"], folder)
        signature = meta.signature_def["serving_default"]
        logits = sess.run(signature.outputs["logits"].name, {signature.inputs["x"].name: common.batch(20)[0]})
    return logits, estimators.foreign(meta.graph_def)


def resumed(epl, folder, steps):
    """A MonitoredTrainingSession that trains `steps` further steps from its folder, which only the chief has.

    Returns what hooks saw of the global step at the start, and how many steps were made.
    """
    common.init(epl)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
    loss = common.mean_everywhere(epl, loss)
    index = common.workers(epl)[0]
    starts, losses = [], []

    class Start(tf.train.SessionRunHook):
        def after_create_session(self, session, coord):
            starts.append(int(session.run(step)))

    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=os.path.join(folder, "worker_%d" % index),
        hooks=[tf.train.StopAtStepHook(num_steps=steps), Start()],
        config=common.threads(),
    ) as sess:
        while not sess.should_stop():
            losses.append(sess.run([loss, train_op], feeds.of(starts[0] + len(losses)))[0])
    return starts, np.array(losses)


def objects(epl, folder):
    """tf.train.Checkpoint: trains, saves twice, spoils the variables, restores on the chief and trains on."""
    common.init(epl)
    index = common.workers(epl)[0]
    folder = os.path.join(folder, "worker_%d" % index)
    feeds = common.Feeds(epl)
    loss = common.classifier(feeds.x, feeds.labels)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    loss = common.mean_everywhere(epl, loss)
    saved = tf.train.Checkpoint(**{"v%d" % i: v for i, v in enumerate(tf.trainable_variables())})
    spoil = [tf.assign(v, tf.zeros_like(v)) for v in tf.trainable_variables()]
    losses, names = [], []
    with common.session() as sess:
        common.initialize(sess)
        for step in range(2):
            losses.append(sess.run([loss, train_op], feeds.of(step))[0])
            names.append(os.path.basename(saved.save(os.path.join(folder, "objects"), session=sess)))
        sess.run(spoil)
        if index == 0:
            saved.restore(tf.train.latest_checkpoint(folder)).run_restore_ops(sess)
        for step in range(2, 4):
            losses.append(sess.run([loss, train_op], feeds.of(step))[0])
    return {"losses": losses, "names": names, "files": files(folder)}


def no_room(epl, folder):
    """A monitored session whose second checkpoint finds no room for a file of more than 4 KB.

    Returns the error's class and text, or the number of steps that went well.
    """
    common.init(epl)
    tf.get_variable("large", [1 << 16], trainable=False)
    feeds = common.Feeds(epl)
    step = tf.train.get_or_create_global_step()
    loss = common.classifier(feeds.x, feeds.labels)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    limits, done = resource.getrlimit(resource.RLIMIT_FSIZE), 0
    saving = tf.train.CheckpointSaverHook(folder, save_steps=2)
    try:
        with tf.train.MonitoredTrainingSession(hooks=[saving], config=common.threads()) as sess:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
            for number in range(6):
                sess.run(train_op, feeds.of(number))
                done += 1
    except tf.errors.OpError as error:
        return type(error).__name__, str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return "no error", done


def damaged(epl, folder, size):
    """Restores a checkpoint of whose data nothing is left but the first `size` bytes. Returns the error."""
    common.init(epl)
    tf.get_variable("large", [1 << 10])
    saver = tf.train.Saver()
    with common.session() as sess:
        common.initialize(sess)
        path = saver.save(sess, os.path.join(folder, "model"))
        with open(path + ".data-00000-of-00001", "r+b") as file:
            file.truncate(size)
        try:
            saver.restore(sess, path)
        except tf.errors.OpError as error:
            return type(error).__name__, str(error)
    return None


def saved_and_read(epl, folder):
    """All workers save into one folder and read at once what they have saved; one saves alone, then not the chief."""
    common.init(epl)
    index = common.workers(epl)[0]
    feeds = common.Feeds(epl)
    tf.get_variable("large", [1 << 20], trainable=False)
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(common.classifier(feeds.x, feeds.labels), global_step=step)
    saver, found = tf.train.Saver(), []
    with common.session() as sess:
        common.initialize(sess)
        for number in range(3):
            sess.run(train_op, feeds.of(number))
            if index == 0:
                saver.save(sess, os.path.join(folder, "chief"))  # nobody waits for it
                time.sleep(0.5)  # the others are at their save long before
            path = saver.save(sess, os.path.join(folder, "model"), global_step=step)
            found.append(os.path.basename(tf.train.get_checkpoint_state(folder).model_checkpoint_path))
            assert tf.train.latest_checkpoint(folder) == path
            saver.restore(sess, path)
            found.append(int(tf.train.load_checkpoint(path).get_tensor("global_step")))
        elsewhere = os.path.join(folder, "of_%d" % index)  # the chief's is another folder: this one is not shared
        if index == 0:
            os.makedirs(elsewhere)
        path, error = saver.save(sess, os.path.join(elsewhere, "model")), None
        try:
            saver.restore(sess, path)
        except epl.errors.EplError as raised:
            error = type(raised).__name__, str(raised)
        state = common.state(sess)
        sess.run(train_op, feeds.of(3))
    return found, error, state


def saved_alone(epl, folder):
    """Only worker 1 saves. Returns the error there; the chief goes on to the next step."""
    common.init(epl, {"communication.timeout_s": 5})
    feeds = common.Feeds(epl)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(common.classifier(feeds.x, feeds.labels))
    saver = tf.train.Saver()
    with common.session() as sess:
        common.initialize(sess)
        sess.run(train_op, feeds.of(0))
        if common.workers(epl)[0] == 1:
            try:
                saver.save(sess, os.path.join(folder, "model"))
            except epl.errors.CommunicationError as error:
                return str(error)
    return None
