"""A small training run with the hooks of epl.profiler."""

import json
import os

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.zoo import model as m

INPUTS, HIDDEN, OUTPUTS = 64, 48, 16


def run(epl, folder, steps=6):
    """What the hooks have measured on this worker, and what they have written."""
    from epl.profiler.flops import FlopsProfilerHook
    from epl.profiler.memory_profiler_hook import MemoryProfilerHook
    from epl.profiler.timeline import TimelineHook

    common.init(epl)
    x = tf.placeholder(tf.float32, [None, INPUTS])
    hidden = m.dense(x, HIDDEN, "hidden", seed=1, activation=tf.nn.tanh)
    loss = tf.reduce_mean(tf.square(m.dense(hidden, OUTPUTS, "outputs", seed=3)))
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
    flops = FlopsProfilerHook(every_n_steps=2)
    memory = MemoryProfilerHook(folder)
    timeline = TimelineHook(folder)
    rows = np.random.RandomState(0).normal(size=(4 * common.BATCH, INPUTS)).astype(np.float32)
    with tf.train.MonitoredTrainingSession(config=common.threads(), hooks=[flops, memory, timeline]) as sess:
        for _ in range(steps):
            sess.run([train_op, loss], {x: common.share(epl, rows)})
    return {
        "flops": flops.flops,
        "by_op": flops.by_op,
        "rate": flops.flops_per_second,
        "peaks": memory.peaks,
        "picture": _text(memory.picture),
        "memory": json.loads(_text(memory.picture.replace(".html", ".json"))) if memory.picture else None,
        "trace": json.loads(_text(timeline.path)) if timeline.path else None,
        "files": sorted(os.listdir(folder)) if os.path.isdir(folder) else [],
    }


def _text(path):
    if path is None:
        return None
    with open(path) as file:
        return file.read()
