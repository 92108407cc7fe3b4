"""Captured models and their plans are plain data: written to files and read elsewhere, they come to the same graphs."""

import hashlib
import json
import os
import subprocess
import sys
import textwrap
import zipfile
from fractions import Fraction

import pytest
import tensorflow.compat.v1 as tf
from google.protobuf import text_format

import epl
from epl import compiler, tf_compat
from epl.capture.record import make_program, record_of
from epl.config import Config
from epl.env import Env
from epl.errors import PlanError
from epl.graph import tags
from epl.program import files
from epl.session.front_ends import preview
from tests.helpers.planning import capture, variable

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def dense_layers(count, width=8):
    x = tf.placeholder(tf.float32, [None, width], "x")
    for layer in range(count):
        with tf.name_scope("layer_%d" % layer):
            x = tf.nn.dropout(tf.nn.relu(tf.matmul(x, variable("w%d" % layer, [width, width]))), rate=0.1, seed=layer)
    tf.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.square(x)), tf.train.get_or_create_global_step())


def of_two_stages():
    x = tf.placeholder(tf.float32, [None, 4], "x")
    with epl.replicate(device_count=2, name="wide"):
        x = tf.tanh(tf.matmul(x, variable("a", [4, 4])))
    with epl.replicate(device_count=1, name="narrow"):
        loss = tf.reduce_mean(tf.square(tf.matmul(x, variable("b", [4, 4]))))
    tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)


def divided(width=8):
    with epl.split(device_count=2):
        dense_layers(2, width)


# The model, the configuration, and the devices of each of two workers.
MODELS = {
    "automatic stages": (lambda: dense_layers(4), {"auto.auto_parallel": True, "pipeline.num_micro_batch": 2}, 2),
    "recomputation": (lambda: dense_layers(2), {"gradient_checkpoint.type": "auto"}, 1),
    "stages of different counts": (of_two_stages, {"pipeline.num_micro_batch": 2}, 3),
    "split": (divided, {}, 2),
    "split, shards of different sizes": (lambda: divided(7), {}, 2),
    "ZeRO, 16 bits": (lambda: dense_layers(2), {"zero.level": "v3", "amp.level": "O1", "amp.dtype": "float16"}, 2),
}


def compiled(program, keys, devices):
    """What the second worker gets."""
    cluster = epl.Cluster(worker_num=2, worker_index=1, gpu_num_per_worker=devices)
    return compiler.compile(program, Config(dict(keys), {}), cluster)


def said(program):
    """The plan, and a digest of the graph."""
    nodes = [node.SerializeToString(deterministic=True) for node in program.graph.to_graph_def(tf.GraphDef).node]
    return [program.plan.to_json(), len(nodes), hashlib.sha256(b"".join(nodes)).hexdigest()]


def path_of(folder, name, kind):
    return os.path.join(str(folder), "%d.%s" % (list(MODELS).index(name), kind))


_CHILD = """
    import json, sys
    import tensorflow.compat.v1 as tf
    from epl import compiler, tf_compat
    from epl.program import files
    from tests.unit.test_captured_alone import MODELS, compiled, path_of, said

    def refused(*args, **kwargs):
        raise AssertionError("a tf.Graph or a session was made")

    tf.Graph.__init__ = tf.Session.__init__ = refused

    def read(name, kind):
        return files.read(path_of(sys.argv[1], name, kind), tf_compat.GraphDef)

    captured = {name: said(compiled(read(name, "captured"), *MODELS[name][1:])) for name in MODELS}
    planned = {name: said(compiler.rewritten(read(name, "planned"))) for name in MODELS}
    print(json.dumps([captured, planned]))
"""


@pytest.mark.once
def test_another_process_makes_the_same_graphs_of_captured_programs_and_of_plans_in_files(tmp_path):
    here = {}
    for name, (build, keys, devices) in MODELS.items():
        with capture() as graph:
            build()
        program = make_program(graph)
        made = compiled(program, keys, devices)
        files.write(path_of(tmp_path, name, "captured"), program, tf_compat.GraphDef)
        files.write(path_of(tmp_path, name, "planned"), made.source, tf_compat.GraphDef)
        here[name] = said(made)
        read = files.read(path_of(tmp_path, name, "planned"), tf_compat.GraphDef)
        assert read.plan.variables == made.source.plan.variables and read.plan.mesh == made.source.plan.mesh
        assert read.source is None and read.plan.collectives == made.source.plan.collectives
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_CHILD), str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=dict(os.environ, PYTHONHASHSEED="3"),
        timeout=300,
        check=True,
    )
    assert json.loads(child.stdout.decode().splitlines()[-1]) == [here, here]


def refused(path, records):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("records.json", records)
    with pytest.raises(PlanError) as caught:
        files.read(path, tf_compat.GraphDef)
    return str(caught.value)


@pytest.mark.once
def test_what_is_no_file_of_a_program_is_refused(tmp_path):
    path = str(tmp_path / "saved")
    with open(path, "w") as file:
        file.write("text")
    with pytest.raises(PlanError, match="holds no program that this version of EPL can read"):
        files.read(path, tf_compat.GraphDef)
    assert "its format is 99, and 1 is expected" in refused(path, "[99, 1]")
    assert "'os:system' is no record of EPL" in refused(path, '[1, ["record", "os:system", "true"]]')
    assert "epl.compiler.compile is no record" in refused(path, '[1, ["record", "epl.compiler:compile", 1]]')
    assert "'lambda' is no kind of value" in refused(path, '[1, ["lambda"]]')


@pytest.mark.once
def test_files_keep_each_kind_of_value_and_refuse_others(tmp_path):
    path = str(tmp_path / "saved")
    value = {
        (1, "a"): [b"\x00", None, 1.5, True],
        "s": frozenset(["b", "a"]),
        "i": {2},
        "third": Fraction(1, 3),
        "odd": range(1, 9, 2),
    }
    files.write(path, value, tf_compat.GraphDef)
    assert files.read(path, tf_compat.GraphDef) == value
    with pytest.raises(TypeError, match="function is no record"):
        files.write(path, {"made": lambda: None}, tf_compat.GraphDef)
    assert files.read(path, tf_compat.GraphDef) == value and os.listdir(str(tmp_path)) == ["saved"]


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


@pytest.mark.once
def test_the_command_saves_the_program_with_its_plan(tmp_path, capsys, monkeypatch):
    with capture() as graph:
        dense_layers(1)
    monkeypatch.setenv("EPL_GPU_PER_WORKER", "2")
    monkeypatch.setenv("EPL_DEVICE", "gpu")
    Env.get().reset(Config({}))
    path = str(tmp_path / "saved.epl")
    assert preview.show(graph, preview.parser().parse_args(["--save", path, "train.py"])) == 0
    program = files.read(path, tf_compat.GraphDef)
    assert program.plan.mesh.copies.size == 2 and compiler.rewritten(program).source is program
    missing = str(tmp_path / "missing" / "saved.epl")
    assert preview.show(graph, preview.parser().parse_args(["--save", missing, "train.py"])) == 2
    assert "--save %s cannot be written: No such file or directory" % missing in capsys.readouterr().err
