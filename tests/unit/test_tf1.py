"""epl.tf1: what programs for TensorFlow 1 import, what is said of the rest, and what is told of a program's names."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from epl.errors import LaunchError
from epl.launch.options import parse
from epl.launch.version_1 import inherit
from tests.helpers import processes

NEW_PYTHON = sys.version_info >= (3, 9)
only_2_15 = pytest.mark.skipif(not NEW_PYTHON, reason="TensorFlow 2.15 needs Python 3.9")
LIMIT_S = 120


def run(folder, *arguments):
    """(exit status, output) of a Python of its own."""
    done = subprocess.run(
        [sys.executable] + list(arguments),
        cwd=str(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=LIMIT_S,
        env=processes.clean_environment(TF_CPP_MIN_LOG_LEVEL=3),
    )
    return done.returncode, done.stdout


def program(folder, text):
    (folder / "program.py").write_text(textwrap.dedent(text))
    return "program.py"


@only_2_15
def test_a_program_of_version_1_runs_and_so_do_its_children(tmp_path):
    text = """
        import collections, inspect, subprocess, sys
        import numpy as np
        import tensorflow as tf
        import tensorflow.contrib.slim as slim
        from tensorflow.contrib import rnn
        from tensorflow.contrib.layers.python.layers import utils
        from tensorflow.contrib.slim.nets import resnet_v1
        from tensorflow.examples.tutorials.mnist import input_data
        from tensorflow.keras import layers as keras_layers
        from tensorflow.python.framework.ops import Tensor
        from tensorflow.python.layers import base
        from tensorflow.python.ops import control_flow_ops, rnn_cell_impl

        x = tf.placeholder(tf.float32, [None, 4])
        assert isinstance(x, Tensor) and tf.__version__ == "1.15.5"
        assert isinstance(tf.layers.Dense(3), base.Layer) and isinstance(rnn.GRUCell(3), rnn_cell_impl.RNNCell)
        assert control_flow_ops.cond is not None and tf.nn.rnn_cell.GRUCell is rnn.GRUCell
        assert keras_layers.Dense is tf.keras.layers.Dense
        y = tf.contrib.layers.layer_norm(slim.fully_connected(tf.mul(x, 2.0), 3))
        assert [v.name for v in tf.trainable_variables()] == [
            "fully_connected/weights:0", "fully_connected/biases:0", "LayerNorm/beta:0", "LayerNorm/gamma:0"]
        assert "ref" in tf.global_variables()[0].dtype.name
        assert np.int is int and issubclass(dict, collections.Mapping)
        assert inspect.getargspec(lambda a, b=1: a).args == ["a", "b"]
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            print("made", sess.run(y, {x: np.ones((2, 4))}).shape, sys.argv)
        code = "import tensorflow as tf; print('child', tf.contrib.rnn.GRUCell, tf.__version__)"
        print(subprocess.check_output([sys.executable, "-c", code]).decode())
    """
    status, output = run(tmp_path, "-m", "epl.tf1", program(tmp_path, text), "--lr", "1")
    assert status == 0, output
    assert "made (2, 3) ['program.py', '--lr', '1']" in output
    assert "child <class" in output and "1.15.5" in output


@only_2_15
def test_what_is_not_served_says_what_to_do(tmp_path):
    text = """
        import epl.tf1
        import tensorflow as tf
        for wanted in ("tf.contrib.nccl", "tf.pakc", "tf.contrib.layers.foo"):
            try:
                eval(wanted)
            except AttributeError as error:
                print(wanted, "->", error)
        try:
            from tensorflow.contrib import boosted_trees
        except ImportError as error:
            print("import ->", error)
    """
    status, output = run(tmp_path, program(tmp_path, text))
    assert status == 0, output
    assert "tf.contrib.nccl -> tf.contrib.nccl is not served on TensorFlow 2.15: use epl.ops.all_reduce" in output
    assert "tf.pakc -> module 'tensorflow' has no attribute 'pakc': neither TensorFlow 2.15's compat.v1" in output
    assert "tf.contrib.layers.foo -> module 'tensorflow' has no attribute 'contrib.layers.foo'" in output
    assert "import -> tf.contrib.boosted_trees is not served on TensorFlow 2.15: it needs a kernel" in output


@only_2_15
def test_too_late(tmp_path):
    status, output = run(tmp_path, program(tmp_path, "import tensorflow\nimport epl.tf1"))
    assert status != 0
    assert "epl.tf1 comes too late: TensorFlow has been imported already" in output


@pytest.mark.skipif(NEW_PYTHON, reason="what is said where only TensorFlow 1.15 can be")
def test_another_python(tmp_path):
    status, output = run(tmp_path, "-m", "epl.tf1", program(tmp_path, "print('ran')"))
    assert status != 0 and "ran" not in output
    assert "epl.tf1 is for TensorFlow 2.15, which needs Python 3.9 to 3.11" in output
    with pytest.raises(LaunchError, match="--tf1 is for TensorFlow 2.15"):
        parse(["--tf1", "program.py"])


@only_2_15
def test_check(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "good.py").write_text("import tensorflow as tf\ntf.contrib.layers.batch_norm\ntf.newaxis\nx.tf.foo\n")
    (folder / "bad.py").write_text(
        "import tensorflow as tf\nfrom tensorflow.contrib import nccl as n\n\ntf.multply(1, 2)\nimport scipy.misc\n"
        "scipy.misc.imread('a')\nscipy.misc.imshow('a')\n"
    )
    (folder / "old.py").write_text("def f():\n    print 'a'\n")
    status, output = run(tmp_path, "-m", "epl.tf1", "--check", "theirs")
    assert status == 1
    for line in (
        "theirs/old.py:2: Python 3 cannot read it",
        "it looks like Python 2, which is not served",
        "tf.contrib.nccl is not served on TensorFlow 2.15",
        "theirs/bad.py:2",
        "tensorflow.multply is not served; did it mean multiply?",
        "scipy.misc.imshow is not there any more: use matplotlib.pyplot.imshow",
        "3 files read: 4 things are not served.",
    ):
        assert line in output, output
    assert "good.py" not in output
    os.remove(str(folder / "bad.py"))
    os.remove(str(folder / "old.py"))
    assert run(tmp_path, "-m", "epl.tf1", "--check", "theirs")[0] == 0
    status, output = run(tmp_path, "-m", "epl.tf1", "--check", "nowhere")
    assert status == 2 and "'nowhere' has no Python files" in output


@only_2_15
def test_names_and_hyperparameters(tmp_path):
    """In a process of its own: whoever imports a part of epl.tf1 gets version 1."""
    text = """
        import ast
        import epl.tf1
        from epl.tf1.hparam import HParams
        from epl.tf1.name_tables import REFUSED, refusal
        from epl.tf1.names_used import Use, uses_of

        tree = ast.parse(
            "import tensorflow as tf, os\\nfrom tensorflow.contrib.rnn import GRUCell as Cell\\nimport numpy\\n"
            "tf.nn.relu(Cell(3).zero_state)\\nos.path\\nnumpy.int\\n"
        )
        assert uses_of(tree) == [
            Use("tensorflow", 1), Use("tensorflow.contrib.rnn.GRUCell", 2), Use("numpy", 3),
            Use("tensorflow.nn.relu", 4), Use("numpy.int", 6),
        ]
        assert refusal("contrib.nccl.all_sum") == refusal("tensorflow.contrib.nccl.all_sum") != ""
        assert refusal("contrib.ncclx") == ""
        assert all(refusal(name).endswith("See docs/tf1_on_tf2.md.") for name in REFUSED)

        params = HParams(units=1, rate=0.5, name="x", sizes=[1, 2], wide=True)
        params.parse("units=3,rate=2,name=hello,sizes=[4,5,6],wide=false").parse("sizes[1]=9")
        assert params.values() == {"units": 3, "rate": 2.0, "name": "hello", "sizes": [4, 9, 6], "wide": False}
        assert params.parse_json('{"units": 4}').units == 4 and params.get("none", 5) == 5 and "rate" in params
        for text, message in (
            ("units=a", "Could not parse hparam 'units'"), ("other=1", "Unknown hyperparameter type for other"),
            ("units=1,units=2", "Multiple assignments"), ("units", "Malformed"), ("sizes=3", "Must pass a list"),
        ):
            try:
                params.parse(text)
            except ValueError as error:
                assert message in str(error), error
            else:
                raise AssertionError(text)
        print("all as it should be")
    """
    status, output = run(tmp_path, program(tmp_path, text))
    assert status == 0 and "all as it should be" in output, output


@only_2_15
def test_mnist_is_shuffled_by_the_seed_of_the_graph(tmp_path):
    """From NumPy's own numbers, as in 1.15: what the program draws besides comes after them."""
    text = """
        import gzip, struct
        import numpy as np
        import tensorflow as tf
        from tensorflow.examples.tutorials.mnist import input_data

        for part, number in (("train", 30), ("t10k", 10)):
            with gzip.open(part + "-images-idx3-ubyte.gz", "wb") as out:
                out.write(struct.pack(">4I", 2051, number, 2, 2) + bytes(range(4 * number)))
            with gzip.open(part + "-labels-idx1-ubyte.gz", "wb") as out:
                out.write(struct.pack(">2I", 2049, number) + bytes(i % 10 for i in range(number)))
        tf.set_random_seed(7)
        train = input_data.read_data_sets(".", validation_size=10).train
        images, _ = train.next_batch(20)
        want, order = np.random.RandomState(7), np.arange(20)
        want.shuffle(order)
        np.testing.assert_allclose(images[:, 0], (4 * order + 40) / 255.0, rtol=1e-6)
        assert np.random.rand() == want.rand()
        print("shuffled")
    """
    status, output = run(tmp_path, "-m", "epl.tf1", program(tmp_path, text))
    assert status == 0 and "shuffled" in output, output


@only_2_15
def test_what_numpy_and_scipy_have_dropped(tmp_path):
    text = """
        import sys
        import numpy as np
        from scipy import misc
        from scipy.sparse.linalg.eigen.arpack import eigsh
        import scipy.sparse.linalg
        import tensorflow as tf

        ragged = np.array([(np.ones(3), np.ones(2))] * 4)
        assert ragged.shape == (4, 2) and ragged.dtype == object and np.asarray([[1], [2, 3]]).shape == (2,)
        assert np.array([[1, 2], [3, 4]]).dtype == int
        try:
            np.array([[1], [2, 3]], dtype=np.float32)
        except ValueError as error:
            assert "inhomogeneous" in str(error)
        else:
            raise AssertionError("numbers of different lengths")
        assert eigsh is scipy.sparse.linalg.eigsh
        assert abs(misc.logsumexp([1.0, 2.0]) - 2.3132617) < 1e-6 and misc.comb(4, 2) == 6
        np.testing.assert_array_equal(misc.bytescale(np.array([[-1.0, 0.0], [0.5, 1.0]])), [[0, 128], [191, 255]])
        for wrong in ("imshow", "nothing"):
            assert not hasattr(misc, wrong)
        sys.modules["PIL"] = None
        try:
            misc.imread("a.png")
        except ImportError as error:
            print(error)
    """
    status, output = run(tmp_path, "-m", "epl.tf1", program(tmp_path, text))
    assert status == 0 and "pictures of scipy.misc need the package Pillow: pip install Pillow." in output, output


@only_2_15
def test_messages_of_an_old_protoc(tmp_path):
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="theirs.proto", package="theirs", syntax="proto3")
    field = file.message_type.add(name="Point").field.add(name="x", number=1, label=1, type=5)
    assert field.type == descriptor_pb2.FieldDescriptorProto.TYPE_INT32
    (tmp_path / "theirs_pb2.py").write_text(
        "from google.protobuf import descriptor as _descriptor\n"
        "DESCRIPTOR = _descriptor.FileDescriptor(name='theirs.proto', package='theirs', syntax='proto3',\n"
        "  serialized_pb=%r)\n"
        "_FIELD = _descriptor.FieldDescriptor(name='x', full_name='theirs.Point.x', index=0, number=1, type=5,\n"
        "  cpp_type=1, label=1, has_default_value=False, default_value=0, message_type=None, enum_type=None,\n"
        "  containing_type=None, is_extension=False, extension_scope=None)\n" % file.SerializeToString()
    )
    text = """
        import tensorflow as tf
        import theirs_pb2
        point = theirs_pb2.Point(x=3)
        assert theirs_pb2.Point.FromString(point.SerializeToString()).x == 3
        print("read", theirs_pb2.Point.DESCRIPTOR.full_name)
    """
    status, output = run(tmp_path, "-m", "epl.tf1", program(tmp_path, text))
    assert status == 0 and "read theirs.Point" in output, output
    status, output = run(tmp_path, "-c", "import theirs_pb2")
    assert status != 0 and "Descriptors cannot be created directly" in output, output


@only_2_15
def test_the_page_of_names_is_true():
    folder = os.path.join(processes.REPOSITORY, "docs")
    status, output = run(folder, os.path.join(processes.REPOSITORY, "scripts", "tf1_names.py"), "page")
    with open(os.path.join(folder, "tf1_names.md")) as source:
        known = source.read()
    assert status == 0 and output[output.index("# Names of") :] == known


def test_children_inherit():
    environment = {"PYTHONPATH": os.pathsep.join(["a", "b"])}
    inherit(environment)
    inherit(environment)
    folders = environment["PYTHONPATH"].split(os.pathsep)
    assert environment["EPL_TF1"] == "1" and folders[1:] == ["a", "b"]
    assert os.path.isfile(os.path.join(folders[0], "sitecustomize.py"))


def test_records_of_programs_by_others(tmp_path):
    """scripts/tf1_programs.py: the steps of a program that knows nothing of it, and where two records differ."""
    text = """
        import numpy as np
        import tensorflow as tf

        x = tf.placeholder(tf.float32, [None, 2])
        loss = tf.reduce_mean(tf.square(tf.matmul(x, tf.Variable(tf.random_normal([2, 1]), name="w"))))
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            while True:
                sess.run(loss, {x: np.ones((4, 2))})
                sess.run(train, {x: np.ones((4, 2))})
    """
    script = os.path.join(processes.REPOSITORY, "scripts", "tf1_programs.py")
    served = ["-m", "epl.tf1"] if NEW_PYTHON else []
    status, output = run(tmp_path, *(served + [script, "run", "--steps", "3", "a.json", program(tmp_path, text)]))
    assert status == 0 and "3 steps, 1 variables" in output, output
    record = json.loads((tmp_path / "a.json").read_text())
    losses = [loss for step in record["losses"] for loss in step]
    # A step of 0.1 against the gradient 2 (w0 + w1) of each weight takes what they make of ones to 0.6 of it.
    assert losses[1:] == pytest.approx([0.36 * loss for loss in losses[:2]], rel=1e-5)
    assert record["variables"] == {"w:0": [2, 1]}
    status, output = run(tmp_path, script, "compare", "a.json", "a.json")
    assert status == 0 and "largest relative difference of 3 losses: 0.0e+00" in output, output
    record["losses"][1][0] *= 1.001
    record["variables"] = {"v:0": [2, 1]}
    (tmp_path / "b.json").write_text(json.dumps(record))
    status, output = run(tmp_path, script, "compare", "a.json", "b.json")
    assert status == 1 and "1.0e-03" in output and "v:0: none and [2, 1]" in output, output
