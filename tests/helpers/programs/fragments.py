"""Blocks of Python on pages that are no whole programs: they are run inside of what they leave out."""

import ast
import os
import re
import tempfile

import tensorflow.compat.v1 as tf

from tests.helpers.programs import pages

FRAGMENT = re.compile(r"```python\n(?!# \w+\.py\n)(.*?)```", re.DOTALL)
ROWS = 16


def on(page):
    """The fragments of a page, a list of texts."""
    return FRAGMENT.findall(pages.text_of("docs/" + page))


def layer(tensor=None):
    """A part of a model, which a fragment writes as `...`; takes what the part before it gave, if nothing else."""
    outputs = tf.get_collection_ref("outputs of layers")
    if tensor is None:
        tensor = outputs[-1] if outputs else _rows()
    outputs.append(tf.layers.dense(tensor, 64, tf.nn.relu))
    return outputs[-1]


def _rows():
    """Batches of which the graph does not say how many rows they have, as those of most programs."""
    data = tf.data.Dataset.from_tensor_slices(tf.ones([8 * ROWS, 8])).repeat().batch(ROWS)
    iterator = tf.data.make_initializable_iterator(data)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def _model():
    for _ in range(6):
        layer()
    return layer()


def _columns():
    ids = tf.feature_column.categorical_column_with_identity("item", 64)
    return [tf.feature_column.embedding_column(ids, 8)]


# What fragments take for granted: name -> what makes it.
GIVEN = {
    "tf": lambda: tf,
    "columns": _columns,
    "experts": lambda: 4,
    "features": lambda: tf.random.uniform([ROWS, 512], seed=1),
    "files": lambda: ["a.tfrecord", "b.tfrecord"],
    "given": lambda: {"item": tf.ones([ROWS, 1], tf.int64)},
    "hidden": lambda: 16,
    "images": lambda: tf.random.uniform([ROWS, 4, 4, 3], seed=1),
    "labels": lambda: tf.zeros([ROWS], tf.int64),
    "layer": lambda: layer,
    "loss": lambda: tf.reduce_mean(tf.square(_model())),
    "network": lambda: lambda images: tf.layers.dense(tf.layers.flatten(images), 16, tf.nn.relu),
    "routes": lambda: tf.ones([2, 6, 4, 3]) / 12,
    "tensor": lambda: tf.ones([3]),
    "tokens": lambda: tf.ones([2, 6, 8]),
    "weights": lambda: tf.ones([2, 6, 4, 3]) / 12,
    "width": lambda: 8,
    "x": lambda: tf.random.uniform([ROWS, 8], seed=1),
}


def _with_checkpoints(text):
    """Makes the checkpoints that a fragment compares, in a folder of their own; the fragment with their paths."""
    for path in re.findall(r'"(\w+)/model\.ckpt-100"|, "(two_workers)"', text):
        folder = os.path.join(tempfile.mkdtemp(), max(path))
        with tf.Graph().as_default(), tf.Session() as session:
            session.run(tf.get_variable("weight", [3], initializer=tf.ones_initializer()).initializer)
            tf.train.Saver().save(session, os.path.join(folder, "model.ckpt"), 100)
        text = text.replace('"%s' % max(path), '"%s' % folder)
    return text


def run(epl, page, number):
    """Runs a fragment, then a training step of the model that it builds, or of a small one, in a session of its own.

    Returns:
      The loss of the step, and the names of the variables that were trained.
    """
    text = _with_checkpoints(on(page)[number])
    text = re.sub(r"^( *)\.\.\.(?: .*)?$", r"\1layer()", text, flags=re.MULTILINE)
    statements = [node for node in ast.parse(text).body if "MonitoredTrainingSession" not in ast.dump(node)]
    sources = [ast.dump(node) for node in statements]
    starts = [i for i, source in enumerate(sources) if "attr='init'" in source]
    begin = starts[-1] + 1 if starts else 0
    names = {"epl": epl}
    _execute(statements[:begin], names)
    if not starts:
        epl.init()
    said = "".join(sources)
    if "attr='split'" in said and "replicate" not in said:
        epl.set_default_strategy(epl.replicate(2))
    elif "replicate" not in said and "auto.auto_parallel" not in said:
        epl.set_default_strategy(epl.replicate(1))
    _execute(statements[begin:], names)
    made = [value for value in names.values() if isinstance(value, tf.Tensor)] + tf.get_collection("outputs of layers")
    if "loss" not in names:
        model = made[-1] if made and tf.trainable_variables() else _model()
        names["loss"] = tf.reduce_mean(tf.square(model))
    if "train_op" not in names:
        names["train_op"] = tf.train.MomentumOptimizer(0.01, 0.9).minimize(names["loss"])
    with tf.train.MonitoredTrainingSession(hooks=names.get("hooks")) as session:
        value = session.run([names["loss"], names["train_op"], made])[0]
    return float(value), [variable.op.name for variable in tf.trainable_variables()]


def _execute(statements, names):
    code = compile(ast.Module(statements, []) if hasattr(ast, "unparse") else ast.Module(statements), "page", "exec")
    for name in code.co_names:
        if name in GIVEN and name not in names:
            names[name] = GIVEN[name]()
    exec(code, names)
