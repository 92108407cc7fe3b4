"""A block of a transformer on a batch of a size that the graph knows, divided over devices (epl.split)."""

import contextlib
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers import split_models
from tests.helpers.programs import common
from tests.helpers.programs.split import OPTIMIZERS, dividing_scope, history_of

SHAPE = [4, 64, 128]  # 128 KiB: enough for each device to compute rows of what lies between products


def block(epl, device_count, optimizer, resource=False, recompute=False, onednn=None, **config):
    """(how many reduce-scatters the worker's plan has and transpositions its graph, what every step gives and all
    variables after it). `onednn`: whether TensorFlow is to pass for one that computes by it."""
    with contextlib.ExitStack() as stack:
        if onednn is not None:
            stack.enter_context(mock.patch.object(epl.tf_compat, "uses_onednn", lambda: onednn))
        return _block(epl, device_count, optimizer, resource, recompute, config)


def _block(epl, device_count, optimizer, resource, recompute, config):
    common.init(epl, {key.replace("__", "."): value for key, value in config.items()})
    tf.set_random_seed(7)
    x = tf.placeholder(tf.float32, SHAPE)
    with tf.variable_scope("model", use_resource=resource), dividing_scope(epl, device_count):
        with epl.recompute() if recompute and epl else contextlib.suppress():
            y = tf.nn.dropout(split_models.transformer_block(x, 4, "block"), rate=0.1)
        loss = tf.reduce_mean(tf.squared_difference(y, tf.roll(x, 1, 1)))
        # Without this the keys' bias has no gradient but rounding.
        loss += 0.01 * tf.add_n([tf.reduce_sum(v) for v in tf.trainable_variables() if "bias" in v.op.name])
    step = OPTIMIZERS[optimizer]().minimize(loss, tf.train.get_or_create_global_step())
    counts = None
    if epl:
        program = epl.capture.record.make_program(step.graph)
        done = epl.compiler.compile(program, epl.Env.get().config, epl.Env.get().cluster)
        collectives = [each for each in done.partitioned.collectives if each.kind == "reduce_scatter"]
        counts = len(collectives), len(done.graph.find("EplTranspose".__eq__))
    feeds = [{x: np.random.RandomState(number).normal(size=SHAPE)} for number in range(3)]
    return counts, history_of([loss, y], step, feeds)
