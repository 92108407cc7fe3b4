"""Training on GPUs, told with where its operations ran."""

import collections
import os
import signal

import tensorflow.compat.v1 as tf

from tests.helpers.programs import common

STEPS = 4


def _model(epl):
    feeds = common.Feeds(epl)
    with epl.replicate(1):
        loss = common.classifier(feeds.x, feeds.labels)
        train = tf.train.AdamOptimizer(0.01).minimize(loss)
    return feeds, common.mean_everywhere(epl, loss), train


def places(epl, **config):
    """Trains the classifier; returns what carries the data, and {operation type: the devices, "GPU" and "CPU"} of the
    last step's graphs."""
    from epl.session import hooks

    common.init(epl, {key.replace("__", "."): value for key, value in config.items()})
    feeds, loss, train = _model(epl)
    options, record = tf.RunOptions(output_partition_graphs=True), tf.RunMetadata()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        losses = [session.run([loss, train], feeds.of(step))[0] for step in range(STEPS)]
        session.run([loss, train], feeds.of(STEPS), options=options, run_metadata=record)
        backend = hooks.current_job().pool.backend
    found = collections.defaultdict(set)
    for graph in record.partition_graphs:
        for node in graph.node:
            found[node.op].add(node.device.split(":")[-2].split("/")[-1])
    return {"backend": backend, "losses": losses, "devices": {kind: sorted(each) for kind, each in found.items()}}


def dies(epl, worker, step):
    """One worker is killed before a step that the others begin."""
    common.init(epl)
    feeds, loss, train = _model(epl)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number in range(STEPS):
            if (common.workers(epl)[0], number) == (worker, step):
                os.kill(os.getpid(), signal.SIGKILL)
            session.run([loss, train], feeds.of(number))
