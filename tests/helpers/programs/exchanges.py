"""What a plan estimates of the exchanges of a step, beside what runs in it; functions for the processes of tests."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common, split


def exchanged(epl, device_count, rows, **config):
    """(Exchanges that the plan estimates, [name, type, bytes of the outputs] of what runs in a step), of a model with
    rows of a table and classes in parts, with or without copies of it."""
    config = {key.replace("__", "."): value for key, value in config.items()}
    common.init(epl, dict(config, **{"cluster.colocate_split_and_replicate": True}))
    epl.set_default_strategy(epl.replicate(device_count))
    tokens, labels = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [None])
    _, step = split.lookup(epl, device_count, "adam", tokens, labels, 0.5, False, False)
    cluster = epl.Env.get().cluster
    program = epl.compiler.compile(epl.capture.record.make_program(step.graph), epl.Env.get().config, cluster)
    of_micro_batch = rows // config.get("pipeline.num_micro_batch", 1) // cluster.gpu_num_per_worker
    estimated = epl.session.estimated_program.estimate_exchanges(
        program, of_micro_batch * min(device_count, cluster.gpu_num_per_worker)
    )
    record, rng = tf.RunMetadata(), np.random.RandomState(0)
    as_it_is = tf.ConfigProto()
    as_it_is.graph_options.rewrite_options.disable_meta_optimizer = True  # which leaves nodes out
    as_it_is.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    with tf.Session(config=as_it_is) as session:
        session.run(tf.global_variables_initializer())
        feeds = {tokens: rng.randint(0, 11, rows), labels: rng.randint(0, split.CLASSES, rows)}
        session.run(step, feeds, tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), record)
        nodes = epl.session.hooks.driver_of(session).graph.nodes
    ran = {}
    for device in record.step_stats.dev_stats:
        for node in device.node_stats:
            if node.node_name in nodes:
                outputs = [output.tensor_description for output in node.output]
                ran[node.node_name] = nodes[node.node_name].op, sum(map(_bytes_of, outputs))
    return [vars(each) for each in estimated], sorted((name,) + found for name, found in ran.items())


def _bytes_of(described):
    return tf.as_dtype(described.dtype).size * int(np.prod([dim.size for dim in described.shape.dim]))
