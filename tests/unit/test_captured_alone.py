"""A captured model is planned and compiled from its tagged GraphDef and plain records alone."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import textwrap
from dataclasses import fields

import pytest
import tensorflow.compat.v1 as tf
from google.protobuf import text_format

import epl
from epl import compiler, tf_compat
from epl.capture.record import make_program, record_of
from epl.capture.specs import Specs
from epl.config import Config
from epl.graph import tags
from epl.graph.index import Graph
from epl.program.program import Program
from tests.helpers.planning import capture, variable

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_NOT_RECORDS = ("graph", "spec_of")


def dense_layers(count):
    x = tf.placeholder(tf.float32, [None, 8], "x")
    for layer in range(count):
        with tf.name_scope("layer_%d" % layer):
            x = tf.nn.dropout(tf.nn.relu(tf.matmul(x, variable("w%d" % layer, [8, 8]))), rate=0.1, seed=layer)
    tf.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.square(x)), tf.train.get_or_create_global_step())


def of_two_stages():
    x = tf.placeholder(tf.float32, [None, 4], "x")
    with epl.replicate(device_count=2, name="wide"):
        x = tf.tanh(tf.matmul(x, variable("a", [4, 4])))
    with epl.replicate(device_count=1, name="narrow"):
        loss = tf.reduce_mean(tf.square(tf.matmul(x, variable("b", [4, 4]))))
    tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)


def divided():
    with epl.split(device_count=2):
        dense_layers(2)


# The model, the configuration, and the devices of each of two workers.
MODELS = {
    "automatic stages": (lambda: dense_layers(4), {"auto.auto_parallel": True, "pipeline.num_micro_batch": 2}, 2),
    "recomputation": (lambda: dense_layers(2), {"gradient_checkpoint.type": "auto"}, 1),
    "stages of different counts": (of_two_stages, {"pipeline.num_micro_batch": 2}, 3),
    "split": (divided, {}, 2),
}


def stored(build):
    """(the captured Program, itself as bytes)."""
    with capture() as graph:
        build()
    program = make_program(graph)
    records = {f.name: getattr(program, f.name) for f in fields(program) if f.name not in _NOT_RECORDS}
    graph_def = program.graph.to_graph_def(tf.GraphDef).SerializeToString()
    return program, pickle.dumps((graph_def, record_of(graph).shapes, records))


def loaded(data):
    graph_def, shapes, records = pickle.loads(data)
    graph = Graph.from_graph_def(tf_compat.GraphDef.FromString(graph_def))
    return Program(graph=graph, spec_of=Specs(graph, shapes), **records)


def compiled(program, keys, devices):
    """The plan, and a digest of all that the second worker gets."""
    cluster = epl.Cluster(worker_num=2, worker_index=1, gpu_num_per_worker=devices)
    made = compiler.compile(program, Config(dict(keys), {}), cluster)
    nodes = [node.SerializeToString(deterministic=True) for node in made.graph.to_graph_def(tf.GraphDef).node]
    return [made.plan.to_json(), len(nodes), hashlib.sha256(b"".join(nodes)).hexdigest()]


_CHILD = """
    import json, pickle, sys
    import tensorflow.compat.v1 as tf
    from tests.unit.test_captured_alone import MODELS, compiled, loaded

    def refused(*args, **kwargs):
        raise AssertionError("a tf.Graph or a session was made")

    tf.Graph.__init__ = tf.Session.__init__ = refused
    models = pickle.load(sys.stdin.buffer)
    print(json.dumps({name: compiled(loaded(data), *MODELS[name][1:]) for name, data in models.items()}))
"""


@pytest.mark.once
def test_another_process_makes_the_same_plan_and_graph_of_what_was_captured():
    programs = {name: stored(build) for name, (build, _, _) in MODELS.items()}
    here = {name: compiled(program, *MODELS[name][1:]) for name, (program, _) in programs.items()}
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_CHILD)],
        input=pickle.dumps({name: data for name, (_, data) in programs.items()}),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        timeout=300,
        check=True,
    )
    assert json.loads(child.stdout.decode().splitlines()[-1]) == here


def all_kinds():
    """Loops, branches, functions, sparse gradients, data, and shapes that the program tells."""
    x = tf.placeholder(tf.float32, [None, 4], "x")
    anything = tf.placeholder(tf.float32, name="anything")
    told = tf.identity(anything, name="told")
    told.set_shape([None, 4])
    tf.placeholder(tf.float32, name="later").set_shape([3, None])
    data = tf.data.make_one_shot_iterator(tf.data.Dataset.range(8).batch(2)).get_next()
    rows = tf.gather(variable("table", [9, 4]), data)
    x = tf.cond(tf.reduce_sum(x) > 0, lambda: x + told, lambda: tf.matmul(x, variable("w", [4, 4])))
    _, x = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.tanh(y)), [0, x])
    grown = tf.while_loop(
        lambda y: tf.size(y) < 40, lambda y: tf.concat([y, y], 0), [rows], [tf.TensorShape([None, 4])]
    )
    x = tf.layers.batch_normalization(x, training=True) + tf.reduce_sum(grown)
    parts = tf.split(tf.py_func(lambda a: a, [x], tf.float32), 2, -1) + list(tf.unique(tf.reshape(x, [-1])))
    loss = tf.reduce_mean(x) + tf.reduce_sum(parts[0]) + tf.reduce_sum(tf.map_fn(tf.square, rows))
    tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())
    tf.train.Saver()


@pytest.mark.parametrize("v2", [False, True])
def test_what_was_captured_says_of_every_tensor_what_the_graph_says(v2):
    (tf.enable_control_flow_v2 if v2 else tf.disable_control_flow_v2)()
    try:
        with capture() as graph:
            all_kinds()
    finally:
        tf.disable_control_flow_v2()
    del record_of(graph).shapes["told"]  # as of an operation that is older than the hooks
    program = make_program(graph)
    count = 0
    for op in graph.get_operations():
        for index, output in enumerate(op.outputs):
            known = output.shape.ndims is not None
            shape = tuple(-1 if size is None else size for size in output.shape.as_list()) if known else None
            said = program.spec_of("%s:%d" % (op.name, index))
            assert said == (shape, output.dtype.as_datatype_enum), output.name
            count += known
        assert program.spec_of("%s:%d" % (op.name, len(op.outputs))) is None
        assert program.forward_op(op.name) == tf_compat.original_op_name(op)
    assert count > 200 and program.spec_of("not_there") is None and program.forward_op("not_there") is None
    assert any(program.forward_op(name) for name in program.graph.nodes)


@pytest.mark.once
def test_a_program_keeps_the_shapes_that_it_was_made_with():
    with capture() as graph:
        x = tf.placeholder(tf.float32, name="x")
    before = make_program(graph)
    x.set_shape([2, None])
    assert before.spec_of("x").shape is None and make_program(graph).spec_of("x").shape == (2, -1)


@pytest.mark.once
def test_a_written_graph_has_what_was_captured_as_tags(tmp_path):
    with capture() as graph:
        tf.identity(tf.placeholder(tf.float32, name="anything"))
        dense_layers(1)
    program = make_program(graph)
    compiler.compile(program, Config({}, {}), epl.Cluster(worker_num=1), dump_dir=str(tmp_path / "new"))
    written = text_format.Parse((tmp_path / "new" / "captured.pbtxt").read_text(), tf_compat.GraphDef())
    shapes = {node.name: tags.get_str(node, tags.SHAPES, None) for node in written.node}
    assert shapes["x"] == "?,8" and shapes["w0"] == "8,8" and shapes["anything"] is None
    assert shapes["Mean"] == "" and tags.shapes_text([(8, -1), None, (), (0, 3)]) == "8,?;*;;0,3"
    forward = {node.name: tags.get_str(node, tags.FORWARD_OP, None) for node in written.node}
    assert forward == {name: program.forward_op(name) for name in forward}
    assert "layer_0/MatMul" in forward.values()
