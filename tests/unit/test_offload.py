"""Parameters in host memory: what lies where, when the device gets what, and the same numbers."""

import collections
import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.capture.record import make_program
from epl.errors import UnsupportedError
from epl.graph import tags
from epl.plan.cost.device_memory import ACTIVATIONS, COMMUNICATION, KINDS, SLOTS, VARIABLES
from epl.session.estimated_program import estimate_program
from tests.helpers.checks import assert_same, pairs
from tests.helpers.planning import capture, compiled, control_flow

pytestmark = pytest.mark.either_line

LAYERS, WIDTH, ROWS = 8, 32, 4
HOST, DEVICE = "/device:CPU:0", "/device:CPU:1"


def mlp(resource=False, decay=0.0):
    """The loss of some equal layers; with weight decay, and with a table of which rows are looked up."""
    x = tf.placeholder(tf.float32, [ROWS, WIDTH], name="x")
    with tf.variable_scope("net", use_resource=resource):
        table = tf.get_variable("table", [50, WIDTH], initializer=tf.random_normal_initializer(seed=9))
        hidden = x + tf.nn.embedding_lookup(table, tf.cast(tf.abs(x[:, 0]) * 10, tf.int64) % 50)
        for i in range(LAYERS):
            start = tf.random_normal_initializer(stddev=0.2, seed=i)
            hidden = tf.layers.dense(hidden, WIDTH, tf.tanh, kernel_initializer=start, name="layer_%d" % i)
        loss = tf.reduce_mean(tf.square(hidden - x))
        if decay:
            loss += decay * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])
    return loss


OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: tf.train.AdamOptimizer(0.01),
}


class Trained(object):
    """A graph that trains, and what it computed."""

    def __init__(self, build, optimizer="adam", level="", **config):
        with capture(seed=3) as graph:
            loss = build()
            train = OPTIMIZERS[optimizer]().minimize(loss)
            init = tf.global_variables_initializer()
            config = dict(config, offload__level=level) if level else config
            self.program = compiled(make_program(graph), 1, 1, **config)
        self.graph = self.program.graph
        rng, self.losses = np.random.RandomState(7), []
        with tf.Graph().as_default():
            tf.import_graph_def(self.graph.to_graph_def(tf.GraphDef), name="")
            threads = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
            threads.device_count["CPU"] = 2
            with tf.Session(config=threads) as session:
                session.run(init.name)
                for _ in range(4):
                    data = rng.normal(size=[ROWS, WIDTH]).astype(np.float32)
                    self.losses.append(session.run([loss.name, train.name], {"x:0": data})[0])
                names = [name for name, node in self.graph.nodes.items() if node.op in ("VariableV2", "VarHandleOp")]
                names = [name for name in names if not name.startswith("epl_")]
                reads = [self._read(name) for name in names]
                self.variables = dict(zip(names, session.run(reads)))

    def _read(self, name):
        if self.graph.nodes[name].op == "VariableV2":
            return name + ":0"
        takers = [self.graph.nodes[c] for c, _ in self.graph.consumers[name]]
        return next(node.name + ":0" for node in takers if node.op == "ReadVariableOp" and len(node.input) == 1)

    def device(self, name):
        return self.graph.nodes[name].device[len("/job:localhost/replica:0/task:0") :]

    @property
    def copies(self):
        return [name for name in self.graph.nodes if name.startswith("epl_offload/")]


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("level, optimizer", [("v0", "adam"), ("v1", "momentum"), ("v1", "sgd")])
def test_the_same_numbers(level, optimizer, resource):
    def build():
        return mlp(resource, decay=1e-3)

    want, got = Trained(build, optimizer), Trained(build, optimizer, level)
    assert len(got.copies) > LAYERS
    for one, other in pairs(got.losses, want.losses):
        assert_same(one, other)
    assert set(got.variables) == set(want.variables)
    for name, value in want.variables.items():
        assert_same(got.variables[name], value, what=name)


def decayed(resource):
    """A layer of which weight decay is part of the update, which is made of plain operations."""
    x = tf.placeholder(tf.float32, [ROWS, WIDTH], name="x")
    with tf.variable_scope("net", use_resource=resource):
        kernel = tf.get_variable("kernel", [WIDTH, WIDTH], initializer=tf.random_normal_initializer(stddev=0.2, seed=1))
    return tf.reduce_mean(tf.square(tf.tanh(tf.matmul(x, kernel)) - x))


OPTIMIZERS["lamb"] = lambda: epl.optimizers.LambOptimizer(0.01)


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("build, optimizer", [(mlp, "adam"), (mlp, "momentum"), (decayed, "lamb")])
def test_state_alone_on_the_host(build, optimizer, resource):
    want, got = Trained(lambda: build(resource), optimizer), Trained(lambda: build(resource), optimizer, "state")
    for one, other in pairs(got.losses, want.losses):
        assert_same(one, other)
    for name, value in want.variables.items():
        assert_same(got.variables[name], value, what=name)
    slots = [name for name in want.variables if name.rpartition("/")[0] in want.variables]
    trained = {name.rpartition("/")[0] for name in slots}
    assert len(slots) == len(trained) * (1 if optimizer == "momentum" else 2)
    assert {got.device(name) for name in slots} == {HOST} and {got.device(name) for name in trained} == {DEVICE}
    nodes = got.graph.nodes
    updates = [name for name, node in nodes.items() if "Apply" in node.op]
    assert {got.device(name) for name in updates} == ({HOST} if updates else set())
    assert {got.device(name) for name, node in nodes.items() if node.op == "MatMul"} == {DEVICE}


@pytest.mark.parametrize("resource", [False, True])
def test_what_lies_where(resource):
    done = Trained(lambda: mlp(resource, decay=1e-3), "adam", "v0")
    kernels = [name for name in done.variables if "kernel" in name]
    assert len(kernels) == 3 * LAYERS  # with two slots each
    assert {done.device(name) for name in kernels + ["net/table"]} == {HOST}
    nodes = done.graph.nodes
    products = [name for name, node in nodes.items() if node.op == "MatMul"]
    assert len(products) == 3 * LAYERS and {done.device(name) for name in products} == {DEVICE}
    assert {done.device(n) for n, node in nodes.items() if node.op in ("GatherV2", "ResourceGather")} == {HOST}
    # What weight decay makes of parameters alone is made where they are.
    assert {done.device(name) for name, node in nodes.items() if node.op == "L2Loss"} == {HOST}
    taken = collections.Counter(p for name in products for p, _ in done.graph.inputs[name] if p in done.copies)
    assert len(taken) == 2 * LAYERS and set(taken.values()) == {1}  # forward and backward pass have copies of their own


def test_a_copy_waits_for_the_layer_before():
    done = Trained(mlp, "adam", "v0")
    graph, waits = done.graph, {}
    for name in done.copies:
        users = [user for user, _ in graph.consumers[name]]
        if any(graph.nodes[user].op == "MatMul" for user in users):
            waits[users[0]] = [text[1:] for text in graph.nodes[name].input if text[0] == "^"]
    forward = sorted(
        (u for u in waits if tags.phase(graph.nodes[u]) == tags.FORWARD), key=lambda u: graph.creation_index[u]
    )
    assert len(forward) == LAYERS and waits[forward[0]] == []
    for before, user in zip(forward, forward[1:]):
        (awaited,) = waits[user]
        assert awaited in graph.ancestors([before]) and before not in graph.ancestors([awaited])
    backward = [u for u in waits if tags.phase(graph.nodes[u]) == tags.BACKWARD]
    assert len(backward) == LAYERS and all(waits[user] for user in backward)
    assert len({waits[user][0] for user in backward}) == LAYERS


def test_what_is_made_of_a_parameter_comes_to_the_device_as_it_would():
    """As large, it does not come before the layer is about to need it either."""
    with capture() as graph:
        hidden = tf.placeholder(tf.float32, [ROWS, WIDTH])
        for i in range(6):
            kernel = tf.get_variable("kernel_%d" % i, [WIDTH, WIDTH])
            hidden = tf.tanh(tf.matmul(hidden, 2.0 * kernel if i % 2 else kernel))
        tf.train.AdamOptimizer().minimize(tf.reduce_mean(tf.square(hidden)))
        program = compiled(make_program(graph), 1, 1, offload__level="v0")
    copies = program.plan.decisions["plan_offload"].copies
    forward = [
        [tags.phase(program.graph.nodes[user]) == tags.FORWARD for user, _ in copy.users] + [copy.after is None]
        for copy in copies
    ]
    assert sum(each[0] for each in forward) == 6 and [each[-1] for each in forward if each[0]].count(True) == 1
    assert not any(each[-1] for each in forward if not each[0])


@pytest.mark.parametrize(
    "level, said", [("v0", "; a step copies"), ("v1", "; a step copies"), ("state", " of optimizers")]
)
def test_what_lies_on_the_host_is_told(caplog, level, said):
    with capture() as graph, caplog.at_level(logging.INFO, "epl"):
        tf.train.AdamOptimizer().minimize(mlp())
        compiled(make_program(graph), 1, 1, offload__level=level)
    (told,) = [record.getMessage() for record in caplog.records if "host memory" in record.getMessage()]
    assert said in told


def test_what_changes_give_is_computed_with_on_the_device():
    """It is no parameter, though it comes from where that is changed."""
    with capture() as graph:
        tf.train.AdamOptimizer().minimize(mlp())
        kernel = tf.trainable_variables()[1]
        changed = tf.assign(kernel, kernel * 0.5)
        tf.multiply(changed, 2.0, name="after")
        program = compiled(make_program(graph), 1, 1, offload__level="v0")
    assert tags.HOST in program.graph.nodes[kernel.op.name].attr
    assert tags.HOST not in program.graph.nodes["after"].attr


def test_the_memory_plan_counts_what_the_device_holds_for_a_while():
    with capture() as graph:
        loss = mlp()
        tf.train.AdamOptimizer().minimize(loss)
        program = compiled(make_program(graph), 1, 1, offload__level="v1")
    devices, _ = estimate_program(program, ROWS)
    host, device = devices["CPU:0"], devices["CPU:1"]
    assert host.lasting[SLOTS] == 2 * host.lasting[VARIABLES] + 8
    assert device.lasting[VARIABLES] == device.lasting[SLOTS] == 0
    most = max(live[KINDS.index(COMMUNICATION)] for _, live in device.points)
    assert WIDTH * WIDTH * 4 <= most < 0.1 * (host.lasting[VARIABLES] + host.lasting[SLOTS])


@pytest.mark.parametrize("resource", [False, True])
def test_the_memory_plan_of_state_alone(resource):
    with capture() as graph:
        tf.train.AdamOptimizer().minimize(mlp(resource))
        program = compiled(make_program(graph), 1, 1, offload__level="state")
    devices, unknown = estimate_program(program, ROWS)
    host, device = devices["CPU:0"], devices["CPU:1"]
    assert host.lasting[SLOTS] == 2 * device.lasting[VARIABLES] > 0 == host.lasting[VARIABLES]
    assert device.lasting[SLOTS] == 8 and not unknown  # the powers of Adam's decay rates


@pytest.mark.parametrize("resource", [False, True])
def test_updates_with_state_alone_on_the_host_say_what_they_are(resource):
    """What assigns to a parameter has the name of the update, and is told for it by its tags; it is on the device."""
    with capture() as graph:
        tf.train.AdamOptimizer().minimize(mlp(resource))
        captured = make_program(graph)
        program = compiled(captured, 1, 1, offload__level="state")
    moved = [name for name, node in captured.graph.nodes.items() if node.op in ("ApplyAdam", "ResourceApplyAdam")]
    assert len(moved) == 2 * LAYERS
    for name in moved:
        before, node = captured.graph.nodes[name], program.graph.nodes[name]
        assert node.op in ("Assign", "AssignVariableOp") and tags.HOST not in node.attr
        said = [key for key in before.attr if key.startswith(tags.PREFIX)]
        assert {tags.PHASE, tags.APPLY_CALL} <= set(said)
        assert all(node.attr[key] == before.attr[key] for key in said)
    assert all(node.attr[tags.HOST].b for node in program.graph.nodes.values() if tags.HOST in node.attr)
    made = {name: node for name, node in program.graph.nodes.items() if name.startswith("epl_offload/update/")}
    assert len({node.op for node in made.values()}) >= 4
    assert all((tags.HOST in node.attr) != name.endswith("/before") for name, node in made.items())


def branches():
    """A layer in a branch, and one in a loop."""
    x = tf.placeholder(tf.float32, [ROWS, WIDTH], name="x")
    start = tf.random_normal_initializer(stddev=0.2, seed=1)
    first, second = (tf.get_variable(n, [WIDTH, WIDTH], initializer=start, use_resource=True) for n in ("a", "b"))
    taken = tf.cond(x[0, 0] > 0, lambda: tf.matmul(x, first), lambda: tf.matmul(x, first + 1.0))
    turns = tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, tf.tanh(tf.matmul(y, second))), [0, taken])[1]
    return tf.reduce_mean(tf.square(turns - x))


def test_branches_and_loops():
    with control_flow("v1"):
        want, got = Trained(branches, "momentum"), Trained(branches, "momentum", "v1")
    assert {got.device(name) for name in got.variables} == {HOST}
    for one, other in pairs(got.losses, want.losses):
        assert_same(one, other)


def test_what_functions_take_stays():
    with control_flow("v2"), pytest.raises(UnsupportedError, match="none of the 2 trainable variables can lie in host"):
        Trained(branches, "momentum", "v1")


def test_tensors_wait_for_the_backward_pass_on_the_host():
    want, got = Trained(mlp, "momentum"), Trained(mlp, "momentum", gradient_checkpoint__offload=True)
    for one, other in pairs(got.losses, want.losses):
        assert_same(one, other)
    graph, peaks = got.graph, []
    kept = [name for name in graph.nodes if name.startswith("epl_kept/")]
    assert len(kept) >= LAYERS - 1 and {got.device(name) for name in kept} == {HOST}
    for name in kept:
        (took,) = [producer for producer, index in graph.inputs[name] if index >= 0]
        users = [graph.nodes[user] for user, _ in graph.consumers[took] if user != name]
        assert all(tags.phase(node) == tags.FORWARD for node in users)  # nothing else holds it
    for config in ({}, {"gradient_checkpoint__offload": True}):
        with capture() as graph:
            tf.train.GradientDescentOptimizer(0.1).minimize(mlp())
            devices, _ = estimate_program(compiled(make_program(graph), 1, 1, **config), 1000)
        points = devices["CPU:1" if config else "CPU:0"].points
        peaks.append(max(sum(live[KINDS.index(kind)] for kind in (ACTIVATIONS, COMMUNICATION)) for _, live in points))
    assert peaks[1] < 0.6 * peaks[0]
