"""What the memory plan estimates, of graphs made by hand and of models that are run."""

import itertools
import json
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl import tf_compat
from epl.capture.record import make_program
from epl.env import Env
from epl.graph import tags
from epl.graph.index import Graph
from epl.graph.node_defs import make_node
from epl.plan.cost.device_memory import ACTIVATIONS, AGAIN, COMMUNICATION, KINDS, SLOTS, UPDATE, VARIABLES, table
from epl.plan.cost.layer_wise import kernel_nodes
from epl.plan.cost.memory import estimate_memory
from epl.plan.input.batch_rows import data_set_rows
from epl.plan.report.memory_page import chosen, drawn, memory_page, scale
from epl.session import estimated_program, out_of_memory
from epl.session.estimated_program import estimate_program
from epl.session.front_ends import preview
from tests.helpers.planning import ROWS, capture, cluster, compiled

pytestmark = pytest.mark.either_line


def of_nodes(nodes, roots, sizes, variables=None):
    """The DeviceMemory of a graph of (operation type, name, inputs), and bytes by name; 0 for those that it lacks."""
    graph = Graph.from_graph_def(tf.GraphDef(node=[make_node(*node) for node in nodes]))
    found = estimate_memory(graph, roots, lambda n: [sizes.get(n, 0)], variables or {}, lambda n: "CPU:0")
    return found["CPU:0"]


def test_a_tensor_lives_until_its_last_use():
    nodes = [("MatMul", "a", []), ("MatMul", "b", ["a"]), ("MatMul", "c", ["b"]), ("MatMul", "d", ["c", "a"])]
    memory = of_nodes(nodes, ["d"], {"a": 100, "b": 10, "c": 20, "d": 1})
    assert [(name, sum(live)) for name, live in memory.points] == [("a", 100), ("b", 110), ("c", 130), ("d", 121)]
    assert memory.peak_bytes == 130 and memory.points[memory.peak][0] == "c"
    assert memory.largest[0] == ("a", ACTIVATIONS, 100)


def test_views_and_operations_in_place_need_nothing():
    nodes = [("MatMul", "a", []), ("Reshape", "b", ["a"]), ("Tanh", "c", ["b"]), ("MatMul", "d", ["c"])]
    assert of_nodes(nodes, ["d"], {"a": 100, "b": 100, "c": 100, "d": 1}).peak_bytes == 101
    nodes[3] = ("MatMul", "d", ["c", "a"])  # now somebody else needs the memory that Tanh would take over
    assert of_nodes(nodes, ["d"], {"a": 100, "b": 100, "c": 100, "d": 1}).peak_bytes == 201


def test_what_nobody_computes_with_is_not_made():
    """Control inputs alone lead to the gradient of a constant: TensorFlow drops it."""
    nodes = [("MatMul", "a", []), ("MatMul", "b", ["a"]), ("NoOp", "all", ["^b"]), ("MatMul", "c", ["a", "^all"])]
    assert of_nodes(nodes, ["c"], {"a": 100, "b": 10, "c": 1}).peak_bytes == 101
    nodes[1] = ("PyFunc", "b", ["a"])  # this one may have effects
    assert of_nodes(nodes, ["c"], {"a": 100, "b": 10, "c": 1}).peak_bytes == 110


def test_operations_wait_for_a_thread_however_short_they_are():
    """`small` is ready before `b` and `c`, whose turns come first: what was made ready last runs first."""
    nodes = [("MatMul", "a", []), ("MatMul", "small", ["a"]), ("MatMul", "b", ["a"]), ("MatMul", "c", ["b"])]
    memory = of_nodes(nodes, ["c", "small"], {"a": 100, "small": 1, "b": 100, "c": 100})
    assert [name for name, _ in memory.points] == ["a", "b", "c", "small"]


def test_of_what_becomes_ready_who_only_waits_runs_first():
    """Of `b`'s consumers the one that takes its tensor comes first in TensorFlow's order, and the last one goes on."""
    nodes = [("MatMul", "a", []), ("MatMul", "b", ["a"]), ("MatMul", "waits", ["a", "^b"]), ("MatMul", "takes", ["b"])]
    nodes.append(("MatMul", "end", ["waits", "takes"]))
    sizes = {"a": 100, "b": 10, "waits": 1, "takes": 1, "end": 1}
    assert [name for name, _ in of_nodes(nodes, ["end"], sizes).points] == ["a", "b", "waits", "takes", "end"]
    nodes[2] = ("MatMul", "waits", ["a", "b"])  # now both take it, and the one that was created last goes on
    assert [name for name, _ in of_nodes(nodes, ["end"], sizes).points] == ["a", "b", "takes", "waits", "end"]


def test_what_the_graph_optimizer_takes_out_changes_no_order():
    """`through` takes the tensor of `b` by a node that is taken out: it is still made ready together with `takes`."""
    nodes = [("MatMul", "a", []), ("MatMul", "b", ["a"]), ("Identity", "i", ["b"]), ("NoOp", "n", ["^b"])]
    nodes += [("MatMul", "through", ["i", "^n"]), ("MatMul", "takes", ["b"]), ("MatMul", "end", ["through", "takes"])]
    memory = of_nodes(nodes, ["end"], {"a": 100, "b": 10, "i": 10, "through": 2, "takes": 1, "end": 1})
    assert [name for name, _ in memory.points if name not in "in"] == ["a", "b", "takes", "through", "end"]


def test_of_orders_by_chance_the_highest_peak_counts():
    """In the first order the large tensor comes and goes before all that stays; in others some of that is there."""
    nodes = [("MatMul", "a", [])] + [("MatMul%d" % i, "small_%d" % i, ["a"]) for i in range(12)]  # no two are alike
    nodes.append(("MatMul", "large", ["a"]))
    nodes += [("MatMul", "end", ["large"])] + [("MatMul", "end_%d" % i, ["small_%d" % i]) for i in range(12)]
    graph = Graph.from_graph_def(tf.GraphDef(node=[make_node(*node) for node in nodes]))
    sizes = {"a": 50, "large": 100, "end": 1}

    def peak(orders):
        roots = ["end"] + ["end_%d" % i for i in range(12)]
        found = estimate_memory(graph, roots, lambda n: [sizes.get(n, 1)], {}, lambda n: "CPU:0", orders=orders)
        return found["CPU:0"].peak_bytes

    assert peak(1) == 151 and 151 < peak(8) <= 162


def test_a_transposition_that_changes_nothing_needs_nothing():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [2, 3, 4])
        same, other = tf.transpose(x, [0, 1, 2], name="same"), tf.transpose(x, [0, 2, 1], name="other")
        tf.transpose(x, tf.placeholder(tf.int32, [3]), name="unknown")
    assert estimated_program._TensorSizes(Graph.from_graph_def(graph.as_graph_def()), 4).same == {same.op.name}, other


def test_a_reduction_of_nothing_needs_nothing():
    """As in gradients of products of matrices in batches, whose inputs had one shape."""
    with tf.Graph().as_default() as graph:
        a = tf.placeholder(tf.float32, [2, 3, 1])
        tf.reduce_sum(a, tf.constant([], tf.int32), name="of_none")
        tf.reduce_max(a, 2, name="of_size_one")
        tf.reduce_sum(a, 1, name="summed")
        tf.reduce_sum(a, tf.placeholder(tf.int32, [1]), name="unknown")
    assert estimated_program._TensorSizes(Graph.from_graph_def(graph.as_graph_def()), 4).same == {
        "of_none",
        "of_size_one",
    }


def test_variables_are_there_all_the_time():
    nodes = [("VariableV2", "v", []), ("MatMul", "a", ["v"])]
    memory = of_nodes(nodes, ["a"], {"v": 7, "a": 1}, {"v": (VARIABLES, 7)})
    assert memory.lasting[VARIABLES] == 7 and memory.peak_bytes == 8
    assert of_nodes(nodes[:1], ["v"], {"v": 7}, {"v": (VARIABLES, 7)}).peak_bytes == 7


def model(layers=8, width=64, optimizer=None):
    x = tf.placeholder(tf.float32, [None, width], name="x")
    for i in range(layers):
        x = tf.layers.dense(x, width, tf.tanh, kernel_initializer=tf.random_normal_initializer(stddev=0.3, seed=i))
    loss = tf.reduce_mean(tf.square(x))
    return (optimizer or tf.train.AdamOptimizer(0.01)).minimize(loss)


def measured(graph, order, init, train, data):
    """Bytes that a step has at the most besides variables, of a step that runs nodes in the order of these names.

    By itself TensorFlow takes the order from how long operations have taken, which differs with the machine's load.
    """
    edit = graph.editor()
    for before, name in zip(order, order[1:]):
        edit.node(name).input.append("^" + before)
    with tf.Graph().as_default():
        tf.import_graph_def(edit.finish().to_graph_def(tf.GraphDef), name="")
        with tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)) as sess:
            sess.run(init)
            sess.run(train, {"x:0": data})
            metadata = tf.RunMetadata()
            sess.run(train, {"x:0": data}, tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), metadata)
    changes = [
        (record.alloc_micros, record.alloc_bytes)
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        for memory in node.memory
        for record in memory.allocation_records
    ]
    return max(itertools.accumulate(change for _, change in sorted(changes)))


@pytest.mark.parametrize("config", [{}, {"gradient_checkpoint__type": "auto"}], ids=["plain", "recomputed"])
def test_estimated_is_near_to_measured(config):
    with capture() as graph:
        train = model()
        init = tf.global_variables_initializer()
        program = compiled(make_program(graph), 1, 1, **config)
    devices, unknown = estimate_program(program, 256)
    (memory,) = devices.values()
    order = [name for name, _ in memory.points]
    got = measured(program.graph, order, init.name, train.name, np.ones([256, 64], np.float32))
    assert not unknown
    assert memory.peak_bytes - sum(memory.lasting.values()) == pytest.approx(got, rel=0.15)
    parameters = 8 * 65 * 64 * 4
    assert memory.lasting[VARIABLES] == parameters and memory.lasting[SLOTS] == 2 * parameters + 8
    assert any(live[KINDS.index(AGAIN)] for _, live in memory.points) == bool(config)


def layer_wise(name):
    return epl.optimizers.LambOptimizer() if name == "lamb" else epl.optimizers.LarsOptimizer(0.1)


@pytest.mark.parametrize("optimizer", ["lamb", "lars"])
def test_updates_by_kernels_need_no_memory(optimizer):
    with capture() as graph:
        model(2, 256, layer_wise(optimizer))
        program = compiled(make_program(graph), 1, 1)
    (memory,) = estimate_program(program, 8)[0].values()
    assert max(live[KINDS.index(UPDATE)] for _, live in memory.points) < 256 * 256 * 4


@pytest.mark.parametrize("optimizer", ["lamb", "lars"])
@pytest.mark.parametrize(
    "config, kernels", [({}, 4), ({"amp__level": "O1", "amp__dtype": "float16"}, 4), ({"zero__level": "v3"}, 2)]
)
def test_which_updates_are_made_by_kernels(optimizer, config, kernels):
    """As many as in the graphs that TensorFlow has run: of two layers on two devices, by the owner alone with ZeRO."""
    with capture() as graph:
        with tf.variable_scope("", use_resource=True):
            model(1, 8, layer_wise(optimizer))
        program = compiled(make_program(graph), 1, 2, **config)
    found = kernel_nodes(program.graph, lambda name: True)
    writes = [n for n in found if tags.get_str(program.graph.nodes[n], tags.LAYER_WISE).split("|")[1] == "write_var"]
    assert len(writes) == kernels


@pytest.mark.parametrize("optimizer", ["lamb", "lars"])
def test_updates_by_tensorflows_operations_need_memory(optimizer):
    """Where sums over a variable are reduced over devices, kernels are not put in their place."""
    with capture() as graph:
        with epl.split(2):
            model(1, 256, layer_wise(optimizer))
        program = compiled(make_program(graph), 1, 2)
    kernel = next(name for name in kernel_nodes(program.graph, lambda name: True) or [""])
    assert "kernel" not in kernel
    for memory in estimate_program(program, 8)[0].values():
        assert max(live[KINDS.index(UPDATE)] for _, live in memory.points) >= 256 * 256 * 4


@pytest.mark.parametrize("size, channels", [(16, 3), (8, 64)], ids=["several images at once", "one image at once"])
def test_the_work_space_of_convolutions_is_what_tensorflow_allocates(size, channels, monkeypatch):
    """The patches of more images than there are, or of one where that keeps all threads busy."""
    monkeypatch.setattr(estimated_program, "_threads", lambda: 1)
    with tf.Graph().as_default() as graph:
        x = tf.constant(np.ones([4, size, size, channels], np.float32))
        kernel = tf.constant(np.ones([5, 5, channels, 64], np.float32))
        y = tf.nn.conv2d(x, kernel, strides=[1, 1, 1, 1], padding="SAME")
        gradients = tf.gradients(y, [x, kernel])
        threads = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        # Gradients of constants are not to be computed before the step.
        threads.graph_options.rewrite_options.disable_meta_optimizer = True
        threads.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
        with tf.Session(config=threads) as sess:
            metadata = tf.RunMetadata()
            sess.run(gradients, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
    allocated = {
        node.node_name: [r.alloc_bytes for m in node.memory for r in m.allocation_records if r.alloc_bytes > 0]
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
    }
    sizes = estimated_program._TensorSizes(Graph.from_graph_def(graph.as_graph_def()), 4)
    for name in (gradient.op.name for gradient in gradients):
        work_space = sizes.work_space(name)
        assert (work_space == 0) == tf_compat.uses_onednn()
        assert sorted(allocated[name]) == sorted(sizes.of(name) + [work_space] * (work_space > 0))


def test_each_device_and_what_travels():
    with capture() as graph:
        model()
        program = compiled(make_program(graph), 2, 2)
    devices, _ = estimate_program(program, ROWS)
    assert sorted(devices) == ["CPU:0", "CPU:1"]
    assert devices["CPU:0"].lasting[VARIABLES] == devices["CPU:1"].lasting[VARIABLES] > 0
    assert max(live[KINDS.index(COMMUNICATION)] for _, live in devices["CPU:0"].points) > 0
    text = table(devices)
    assert "CPU:1" in text and "gradients" in text and "the peak is at operation" in text


def test_the_page_holds_what_it_shows():
    nodes = [("MatMul", "a</script>", []), ("MatMul", "b", ["a</script>"])]
    memory = of_nodes(nodes, ["b"], {"a</script>": 1 << 20, "b": 1 << 20}, {})
    page = memory_page({"CPU:0": {"estimated": drawn(memory)}}, "a & b")
    assert "a &amp; b" in page and "peak 2.0" in page and "src=" not in page and "href=" not in page
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', page, re.S)
    data = json.loads(text)
    assert [point["name"] for point in data["points"]] == ["a</script>", "b"]
    assert data["peak"] == 1 and data["points"][1]["total"] == 2 << 20
    assert [KINDS[tensor[1]] for tensor in data["tensors"]] == [ACTIVATIONS] * 2
    assert page.count("<polygon") == 1


def test_numbers_stand_beside_their_lines():
    """Lines lie as high as their numbers say, and each text as much below its line as the others."""
    memory = of_nodes([("MatMul", "a", []), ("MatMul", "b", ["a"])], ["b"], {"a": 3 << 20, "b": 4 << 20}, {})
    page = memory_page({"CPU:0": {"estimated": drawn(memory)}}, "title", capacity=8 << 20)
    lines = [float(y) for y in re.findall(r'<line class="(?:grid|axis)"[^>]* y1="([^"]*)"', page)]
    texts = [(float(y), text) for y, text in re.findall(r'<text text-anchor="end"[^>]* y="([^"]*)">([^<]*)<', page)]
    numbers = {text: y for y, text in texts if not text.startswith("the device")}
    below = {round(y - min(lines, key=lambda line: abs(line - y)), 1) for y in numbers.values()}
    assert len(below) == 1 and len(numbers) >= 4 and "peak 7.0 MiB" in numbers
    amounts = {text: float(re.sub("[^0-9.]", "", text)) for text in numbers}
    one_more = (numbers["0"] - numbers["peak 7.0 MiB"]) / 7
    for text, y in numbers.items():
        assert numbers["0"] - y == pytest.approx(one_more * amounts[text], abs=0.2)


@pytest.mark.parametrize(
    "top, numbers",
    [
        (1.3, [0, 0.2, 0.4, 0.6, 0.8, 1, 1.2]),
        (7.2, range(8)),
        (450, range(0, 450, 100)),
        (2e-2, [0, 5e-3, 1e-2, 1.5e-2, 2e-2]),
    ],
)
def test_the_axis_has_round_numbers(top, numbers):
    assert scale(top) == pytest.approx(list(numbers))


def test_long_steps_keep_their_peaks():
    totals = [i % 7 for i in range(5000)]
    totals[3001] = 100
    places = chosen(totals)
    assert len(places) <= 800 and 3001 in places and places == sorted(places)


@pytest.mark.parametrize(
    "given, memory, script, rest",
    [
        (["--memory", "train.py", "--lr", "1"], "", "train.py", ["--lr", "1"]),
        (["--memory", "a.html", "train.py"], "a.html", "train.py", []),
        (["train.py", "--memory", "5"], None, "train.py", ["--memory", "5"]),
    ],
)
def test_the_command_tells_the_page_from_the_script(given, memory, script, rest):
    options = preview.parser().parse_args(preview._with_memory_file(given))
    assert (options.memory, options.script, options.arguments) == (memory, script, rest)


def test_the_command_prints_and_draws(capsys, tmp_path):
    page = tmp_path / "memory.html"
    with capture() as graph:
        model()
    Env.get().reset(epl.Config())
    assert preview.show(graph, preview.parser().parse_args(["--memory", str(page), "--batch", "64", "train.py"])) == 0
    text = capsys.readouterr().out
    assert "Memory of a training step in " in text and "it counts as 64 (--batch)." in text
    assert "<polygon" in page.read_text()


def test_the_command_takes_the_rows_of_data_sets(capsys):
    with capture() as graph:
        rows = tf.data.Dataset.from_tensors(np.zeros([3], np.float32)).repeat().batch(5)
        loss = tf.reduce_mean(tf.layers.dense(tf.data.make_one_shot_iterator(rows).get_next(), 2))
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    Env.get().reset(epl.Config())
    assert preview.show(graph, preview.parser().parse_args(["--memory", "", "train.py"])) == 0
    assert "it counts as 5 (--batch)." in capsys.readouterr().out


def told_of(graph, place, fed):
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[4096,64]")
    program = compiled(make_program(graph), place.worker_num, place.gpu_num_per_worker, device_type=place.device_type)
    told = out_of_memory.explained(error, graph, program, epl.Config(), place, fed)
    assert isinstance(told, tf.errors.ResourceExhaustedError) and told.message.startswith("OOM when allocating")
    return told.message


def test_what_would_help_against_an_error_for_memory(monkeypatch):
    monkeypatch.setattr(out_of_memory, "_SECONDS", 600.0)
    with capture() as graph:
        model()
        text = told_of(graph, cluster(1, 1), {"x:0": np.zeros([4096, 64], np.float32), "rate:0": 0.5})
        assert "with 4096 rows in a micro-batch, as were fed" in text and "Not gone through" not in text
        saved = dict(re.findall(r"  ([\w.]+)=.*?: ([\d.]+) \w+ instead of", text))
        assert {"gradient_checkpoint.type", "pipeline.num_micro_batch"} <= set(saved)
        assert "amp.level='O1', amp.dtype='float16': " in text
        text = told_of(graph, cluster(1, 2, device_type="GPU"), {"x:0": np.zeros([4096, 64])})
        lines = re.findall(r"  (\S+=.*): [\d.]+ \w+ instead of", text)
        assert {"zero.level='v1'", "gradient_checkpoint.offload=True"} <= set(lines)


def test_what_there_is_no_time_for_is_named(monkeypatch):
    monkeypatch.setattr(out_of_memory, "_SECONDS", -1.0)
    with capture() as graph:
        model(1)
        text = told_of(graph, cluster(1, 1), {})
    assert "with 32 rows in a micro-batch, which is assumed where the program does not say" in text
    assert "Memory of a training step in " in text and "instead of" not in text
    assert "Not gone through" in text and "gradient_checkpoint.type='auto'; pipeline.num_micro_batch=2" in text


def test_other_errors_stay_as_they_are():
    with capture() as graph:
        model(1)
        program = compiled(make_program(graph), 1, 1)
    other = tf.errors.ResourceExhaustedError(None, None, "a file cannot be written")
    assert out_of_memory.explained(other, graph, program, epl.Config(), cluster(1, 1), {}) is other


@pytest.mark.each_line
@pytest.mark.parametrize("one_shot", [False, True])
def test_the_rows_of_a_data_set_are_those_of_its_last_batch(one_shot):
    with tf.Graph().as_default() as graph:
        data = tf.data.Dataset.from_tensor_slices(np.zeros([64, 3])).batch(7).unbatch().batch(5).map(tf.square).repeat()
        make = tf.data.make_one_shot_iterator if one_shot else tf.data.make_initializable_iterator
        make(data.prefetch(1)).get_next()
    assert data_set_rows(Graph.from_graph_def(graph.as_graph_def())) == 5
    with tf.Graph().as_default() as graph:
        data = tf.data.Dataset.from_tensor_slices(np.zeros([64, 3])).batch(tf.placeholder(tf.int64, []))
        tf.data.make_initializable_iterator(data).get_next()
    assert data_set_rows(Graph.from_graph_def(graph.as_graph_def())) is None
