"""Trains cases of the zoo in this process, with plain TensorFlow or with EPL, and writes what came out.

    python -m tests.helpers.zoo_run {plain|epl} OUT CASE...

For each case OUT/<case>.<worker>.npz holds the losses and all global variables after each step. With EPL it also
holds, for the last step, every variable of every replica of every worker. A case that fails leaves
OUT/<case>.<worker>.error and ends the process with status 3, because the other workers cannot go on without this one.
"""

import os
import sys
import traceback

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers import on_gpus, zoo

STEPS = 6
GLOBAL_BATCH = 8


class Part(object):
    """This process' part of the job: everything for plain TensorFlow, else what the cluster says."""

    def __init__(self, epl=None):
        cluster = epl.Env.get().cluster if epl else None
        self.epl = epl
        self.worker = cluster.worker_index if epl else 0
        self.workers = cluster.worker_num if epl else 1
        self.parts = cluster.total_gpu_num * epl.Env.get().config.pipeline.num_micro_batch if epl else 1

    def share(self, batch):
        """The rows of the global batch that this worker consumes."""
        rows = GLOBAL_BATCH // self.workers
        return {key: value[self.worker * rows : (self.worker + 1) * rows] for key, value in batch.items()}

    def batches(self, model):
        return [self.share(model.batch(step, GLOBAL_BATCH)) for step in range(STEPS)]


def placeholders(batch):
    return {
        key: tf.placeholder(
            value.dtype if value.dtype != object else tf.string, [None] + list(value.shape[1:]), name=key
        )
        for key, value in batch.items()
    }


def dataset_inputs(batches, size):
    """The rows of all steps through tf.data, `size` at a time; the iterator is initialized with the tables."""
    rows = {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(size, drop_remainder=True)
    iterator = tf.data.make_initializable_iterator(dataset)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def build(case, inputs, epl):
    """The case's losses and train op; with EPL the forward part stands in a replicate scope, or under a default
    strategy."""
    if epl and case.source == "feed":
        with epl.replicate(device_count=1):
            built = case.model.build(inputs)
    else:
        built = case.model.build(inputs)
    losses, train = built if isinstance(built, tuple) else ({"loss": built}, None)
    if train is None:
        train_op = case.optimizer().minimize(losses["loss"], global_step=tf.train.get_or_create_global_step())
    else:
        train_op = train(case.optimizer)
    return losses, train_op


def open_session(case):
    threads = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
    if case.source == "dataset":
        return tf.train.MonitoredTrainingSession(config=threads)
    session = tf.Session(config=threads)
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])
    return session


def run_case(case, part):
    """Trains the case and returns what it writes: a dict of arrays."""
    epl = part.epl
    if epl:
        epl.init(epl.Config(dict({"communication.check_replicas_every": 2}, **case.model.config)))
        if case.source == "dataset":
            epl.set_default_strategy(epl.replicate(device_count=1))
    batches = part.batches(case.model)
    if case.source == "feed":
        inputs = placeholders(batches[0])
    else:
        inputs = dataset_inputs(batches, GLOBAL_BATCH // part.parts)
    losses, train_op = build(case, inputs, epl)
    variables = {variable.op.name: variable for variable in tf.global_variables()}
    copies = {}
    if epl:
        for loss in losses.values():
            epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        copies = {name: tf.expand_dims(tf.identity(variable), 0) for name, variable in variables.items()}
        for copy in copies.values():
            epl.add_to_collection(copy, epl.GraphKeys.GLOBAL_CONCAT_OBJECTS)

    history = []
    with open_session(case) as session:
        start = session.run(variables)
        for batch in batches:
            feed = {inputs[key]: batch[key] for key in inputs} if case.source == "feed" else None
            values, _ = session.run([losses, train_op], feed)
            history.append((values, session.run(variables)))
        replicas = session.run(copies) if copies else {}
    out = {"loss/" + name: np.array([values[name] for values, _ in history]) for name in losses}
    out.update(("variable/" + name, np.array([state[name] for _, state in history])) for name in variables)
    out.update(("start/" + name, value) for name, value in start.items())
    out.update(("replicas/" + name, value) for name, value in replicas.items())
    return out


def run_and_write(case, part, folder):
    stem = os.path.join(folder, "%s.%d" % (case.name, part.worker))
    if case.model.v2_control_flow:
        tf.enable_control_flow_v2()
    else:
        tf.disable_control_flow_v2()
    try:
        with tf.Graph().as_default():
            out = run_case(case, part)
    except Exception:  # recorded for the test of this case, which fails with it
        with open(stem + ".error", "w") as file:
            file.write(traceback.format_exc())
        return False
    np.savez(stem + ".tmp.npz", **out)
    os.rename(stem + ".tmp.npz", stem + ".npz")
    return True


def main(mode, folder, *names):
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.WARN)
    if mode == "epl":
        import epl  # the plain runs must not import it

        if on_gpus.wanted():
            on_gpus.divide()
        epl.init()
        part = Part(epl)
    else:
        part = Part()
        assert "epl" not in sys.modules
    for name in names:
        if not run_and_write(zoo.CASES[name], part, folder):
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
