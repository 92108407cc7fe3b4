"""A small program for every pair of features of epl.config.composes: what asks for each, and what both compile to."""

import tensorflow.compat.v1 as tf

import epl
from epl.config import Config, composes
from tests.helpers import planning

# What asks for a feature: keys of the configuration.
KEYS = {
    composes.LOCAL_SGD: {"local_sgd.k_steps": 2},
    composes.OVERLAP: {"local_sgd.k_steps": 2, "local_sgd.overlap": True, "local_sgd.average_slots": False},
    composes.ADAPTIVE: {"local_sgd.k_steps": 2, "local_sgd.adaptive": True},
    composes.AVERAGE_SLOTS: {"local_sgd.k_steps": 2, "local_sgd.average_slots": True},
    composes.DGC: {"dgc.sparsity": [0.9], "dgc.min_elements": 1},
    composes.WIRE: {"communication.wire_dtype": "int8"},
    composes.FP16: {"communication.fp16": True},
    composes.SPARSE_AS_DENSE: {"communication.sparse_as_dense": True},
    composes.CLIP_AFTER: {"communication.clip_after_allreduce": True},
    composes.REDUCE_SUM: {"communication.gradients_reduce_method": "sum"},
    composes.CHECK_REPLICAS: {"communication.check_replicas_every": 2},
    composes.SYNC_BN: {"communication.sync_batch_norm": True},
    composes.AMP: {"amp.level": "O1", "amp.dtype": "bfloat16"},
    composes.FLOAT16: {"amp.level": "O1", "amp.dtype": "float16"},
    composes.O2: {"amp.level": "O2", "amp.dtype": "bfloat16"},
    composes.ZERO: {"zero.level": "v0"},
    composes.ZERO_GRADIENTS: {"zero.level": "v1"},
    composes.ZERO_GROUPS: {"zero.level": "v0", "zero.degree": 2},
    composes.OFFLOAD: {"offload.level": "v0"},
    composes.OFFLOAD_KEPT: {"gradient_checkpoint.offload": True},
    composes.RECOMPUTE: {"gradient_checkpoint.type": "auto"},
    composes.CHECK_GRADIENTS: {"gradient_checkpoint.check_gradients": True, "gradient_checkpoint.type": "auto"},
    composes.UPDATE_GROUPS: {"optimizer.num_apply_group": 2},
    composes.LAMB: {"optimizer.lamb": True},
    composes.LARS: {"optimizer.lars": True},
    composes.MICRO_BATCHES: {"pipeline.num_micro_batch": 2},
    composes.STEPS: {"execution.steps_per_run": 2},
    composes.XLA: {"execution.xla": True},
    composes.DATA_POSITION: {"checkpoint.data_position": "per_worker"},
    composes.EQUAL_STEPS: {"io.equal_steps": "repeat"},
    composes.UNBALANCED: {"io.slicing": True, "io.unbalanced_io_slicing": True},
    composes.DROP_LAST: {"io.slicing": True, "io.drop_last_files": True},
    composes.CHUNKS: {"pipeline.num_chunks": 2, "pipeline.strategy": "Interleaved"},
    composes.COLOCATE: {"cluster.colocate_split_and_replicate": True},
    composes.WEIGHTS: {"cluster.device_weights": [1, 3]},
    composes.AUTO: {"auto.auto_parallel": True, "pipeline.num_stages": 2},
}
# How a model lies on devices: its scopes, workers, devices of each. The first one of a pair that says it counts.
LAYOUTS = {
    composes.UNEVEN: (["replicate(1)", "replicate(2)"], 2, 3),
    composes.SPREAD: (["replicate(1)", "replicate(2)"], 6, 1),
    composes.CHUNKS: (["replicate(1)"] * 4, 2, 2),
    composes.OVER_WORKERS: (["replicate(1)", "replicate(1)"], 4, 1),
    composes.STAGES: (["replicate(1)", "replicate(1)"], 2, 2),
    composes.COLOCATE: (["replicate(1)", "replicate(1)"], 2, 2),
    composes.SPLIT: (["split(2)"], 2, 2),
    composes.ROWS: (["replicate(2)"], 2, 2),
    composes.WEIGHTS: (["replicate(2)"], 2, 2),
    composes.SEVERAL_DEVICES: (["replicate(2)"], 2, 2),
    composes.AUTO: ([], 2, 2),
    composes.ZERO_GROUPS: (["replicate(1)"], 4, 1),
}
_PLAIN = (["replicate(1)"], 2, 1)


def contradict(one, other):
    """Whether two features are two values of one key, or two ways to lay a model out, so that they are no pair."""
    keys = [KEYS.get(each, {}) for each in (one, other)]
    return (
        any(keys[0][name] != keys[1][name] for name in set(keys[0]) & set(keys[1]))
        or {one, other} <= LAYOUTS.keys()
        # Assignments of the forward pass hold together what they change, so nothing is left that could be cut.
        or {one, other} == {composes.AUTO, composes.BY_HAND}
    )


def compiled(one, other):
    """The Program of a worker, for two features."""
    features = [one, other]
    values = dict(KEYS.get(one, {}), **KEYS.get(other, {}))
    scopes, workers, devices = next((LAYOUTS[each] for each in LAYOUTS if each in features), _PLAIN)
    Config(values)
    if composes.ZERO_GROUPS in features and {composes.OVER_WORKERS, composes.SPLIT, composes.ROWS} & set(features):
        workers *= 2  # so that there are four copies of the model
    if {composes.UNEVEN, composes.SPLIT} <= set(features):
        scopes = ["replicate(1)", "split(2)"]
    with planning.capture(seed=1) as graph:
        epl.Env.get().reset(Config(values))  # it replaces optimizers
        _build(scopes, features)
    return planning.compiled(
        graph, workers, devices, **{key.replace(".", "__"): value for key, value in values.items()}
    )


def _build(scopes, features):
    """Layers, of which each scope has as many, and their training."""
    epl.Env.get()._cluster = planning.cluster(2, 1)  # for the collectives of a program
    x = _data(features)
    if composes.COLLECTIVES in features:
        x = epl.ops.all_reduce(x, name="mine")
    for number, scope in enumerate(scopes or [""]):
        with _scope(scope):
            for layer in range(2 if len(scopes) < 4 else 1):
                x = tf.tanh(tf.matmul(x, tf.get_variable("kernel_%d_%d" % (number, layer), [4, 4])))
            loss = tf.reduce_mean(tf.square(x))
    if composes.GLOBAL_MERGES in features:
        tf.add_to_collection(epl.GraphKeys.GLOBAL_MEAN_OBJECTS, loss)
    variables = tf.trainable_variables()
    if composes.BY_HAND in features:
        for variable, gradient in zip(variables, tf.gradients(loss, variables)):
            tf.assign_sub(variable, 0.1 * gradient)
    elif composes.LAMB in features:
        tf.train.AdamOptimizer(0.1).minimize(loss)
    else:
        tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)


def _data(features):
    rows = 8 if composes.ROWS in features else None
    if {composes.UNBALANCED, composes.DROP_LAST} & set(features):
        data = tf.data.TFRecordDataset(["a", "b", "c"]).map(lambda record: tf.decode_raw(record, tf.float32)[:4])
        data = data.map(lambda row: tf.reshape(row, [4])).batch(8, drop_remainder=rows is not None)
        return tf.data.make_initializable_iterator(data).get_next()
    if composes.EQUAL_STEPS in features:
        data = tf.data.Dataset.from_tensors(tf.ones([4])).batch(8, drop_remainder=rows is not None)
        return tf.data.make_initializable_iterator(data).get_next()
    return tf.placeholder(tf.float32, [rows, 4])


def _scope(text):
    kind, count = text[:-1].split("(") if text else ("name_scope", "")
    return getattr(epl, kind)(int(count)) if text else tf.name_scope("model")
