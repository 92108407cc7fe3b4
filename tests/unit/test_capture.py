"""Capture: what is tagged and written down while a graph is built, and what is refused."""

import re
import sys
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.capture.record import make_program, record_of
from epl.cluster import Cluster
from epl.env import Env
from epl.errors import CaptureError, PlanError, UnsupportedError
from epl.graph import tags
from epl.graph.index import node_of
from tests.helpers import planning, processes
from tests.helpers.planning import capture, variable


def phases(graph):
    """dict of node name to phase."""
    return {node.name: tags.phase(node) for node in make_program(graph).graph.nodes.values()}


def gradients_of(call):
    """dict of variable to the gradient's node."""
    return {name: node_of(gradient.values) for gradient, name in call.gradients}


def simple():
    """(loss, variable) of a model with one weight."""
    w = variable("w")
    return tf.reduce_mean(tf.square(tf.matmul(planning.batch(), w))), w


# ---------------------------------------------------------------------------------------------------------------------
# Phases and scopes.


def test_phases():
    with capture() as graph:
        loss, _ = simple()
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        pairs = optimizer.compute_gradients(loss)
        after = tf.identity(pairs[0][0], name="clipped")
        train = optimizer.apply_gradients([(after, pairs[0][1])])
        saver = tf.train.Saver()
        summary = tf.identity(loss, name="summary")
    found = phases(graph)
    assert found[loss.op.name] == found["clipped"] == found[summary.op.name] == tags.FORWARD
    assert found[pairs[0][0].op.name] == tags.BACKWARD
    assert found[train.name] == found["Momentum/update_w/ApplyMomentum"] == found["w/Momentum"] == tags.APPLY
    assert found[saver.saver_def.restore_op_name] == tags.SAVE
    assert found[saver.saver_def.save_tensor_name.split(":")[0]] == tags.SAVE
    backward = [name for name, phase in found.items() if phase == tags.BACKWARD]
    assert backward and all(name.startswith("gradients/") for name in backward)


def test_scopes_are_taskgraphs_and_backward_follows_forward():
    with capture() as graph:
        x = planning.batch()
        with epl.replicate(1, name="first"):
            hidden = tf.matmul(x, variable("a"), name="first_matmul")
        with epl.replicate(1, name="second"):
            loss = tf.reduce_mean(tf.matmul(hidden, variable("b"), name="second_matmul"))
        planning.sgd(loss)
    model = make_program(graph)
    assert [(t.index, t.kind, t.device_count, t.name) for t in model.taskgraphs] == [
        (0, "replicate", 1, "first"), (1, "replicate", 1, "second")]  # fmt: skip
    assert all(re.match(r"test_capture\.py:\d+$", t.where) for t in model.taskgraphs)
    of = {name: tags.get_int(node, tags.TASKGRAPH, -1) for name, node in model.graph.nodes.items()}
    assert of["first_matmul"] == of["a"] == 0 and of["second_matmul"] == of["b"] == 1
    backward = [name for name in of if tags.phase(model.graph.nodes[name]) == tags.BACKWARD]
    assert {of[name] for name in backward if "first_matmul_grad" in name} == {0}
    assert {of[name] for name in backward if "second_matmul_grad" in name} == {1}
    assert of["GradientDescent/update_a/ApplyGradientDescent"] == -1


def test_one_scope_entered_twice_is_one_taskgraph():
    with capture() as graph:
        scope = epl.replicate(1)
        with scope:
            tf.constant(1.0)
        tf.constant(2.0, name="outside")
        with scope:
            tf.constant(3.0, name="again")
    model = make_program(graph)
    assert len(model.taskgraphs) == 1
    assert tags.TASKGRAPH in model.graph.nodes["again"].attr and tags.TASKGRAPH not in model.graph.nodes["outside"].attr


def test_default_strategy():
    with capture() as graph:
        tf.constant(0.0, name="before")
        epl.set_default_strategy(epl.replicate(1, name="default"))
        tf.constant(0.0, name="inside")
        with epl.replicate(1, name="scope"):
            tf.constant(0.0, name="in_scope")
        tf.constant(0.0, name="after")
    model = make_program(graph)
    of = {name: tags.get_int(node, tags.TASKGRAPH, -1) for name, node in model.graph.nodes.items()}
    assert of == {"before": -1, "inside": 0, "in_scope": 1, "after": 0}
    assert [t.name for t in model.taskgraphs] == ["default", "scope"]


def test_a_default_strategy_belongs_to_the_graph_in_which_it_was_set():
    with capture() as graph:
        epl.set_default_strategy(epl.replicate(1, name="first"))
        tf.constant(0.0)
        epl.set_default_strategy(epl.replicate(1, name="last"))
        tf.constant(0.0)
    with tf.Graph().as_default() as other:
        tf.constant(0.0)
        with graph.as_default():
            tf.constant(0.0, name="later")
    model = make_program(graph)
    assert tags.get_int(model.graph.nodes["later"], tags.TASKGRAPH, -1) == 1
    assert [t.name for t in model.taskgraphs] == ["first", "last"] and make_program(other).taskgraphs == []


@pytest.mark.skipif(tf.executing_eagerly(), reason="outside of a graph this process executes eagerly")
def test_the_same_default_strategy_in_the_next_graph_is_no_new_part():
    with capture():
        pass
    parts = []
    for same in (True, True, False):
        tf.reset_default_graph()
        if parts:
            tf.constant(0.0)  # as Keras' clear_session makes a placeholder
        epl.set_default_strategy(epl.replicate(1 if same else 2, name="first"))
        tf.get_variable("a", [2])
        parts.append(len(make_program(tf.get_default_graph()).taskgraphs))
    epl.set_default_strategy(epl.replicate(2, name="last"))
    tf.get_variable("b", [2])
    parts.append(len(make_program(tf.get_default_graph()).taskgraphs))
    tf.reset_default_graph()
    assert parts == [1, 1, 2, 3]
    with tf.Graph().as_default() as graph:
        epl.set_default_strategy(epl.replicate(1, name="encoder"))
        tf.get_variable("a", [2])
    assert [t.name for t in make_program(graph).taskgraphs] == ["encoder"]


@pytest.mark.skipif(tf.executing_eagerly(), reason="outside of a graph this process executes eagerly")
def test_a_default_strategy_at_the_top_of_a_program_holds_for_all_graphs():
    with capture():
        pass
    tf.reset_default_graph()
    epl.set_default_strategy(epl.replicate(1, name="top"))
    for _ in range(2):
        with tf.Graph().as_default() as graph:
            tf.constant(0.0)
        assert [t.name for t in make_program(graph).taskgraphs] == ["top"]
    tf.constant(0.0)
    epl.set_default_strategy(epl.replicate(1, name="second"))  # a part of this graph's model
    tf.constant(0.0)
    assert [t.name for t in make_program(tf.get_default_graph()).taskgraphs] == ["top", "second"]
    with tf.Graph().as_default() as graph:
        tf.constant(0.0)
    assert [t.name for t in make_program(graph).taskgraphs] == ["top"]
    tf.reset_default_graph()


def test_a_scope_ends_with_an_error_too():
    with capture():
        with pytest.raises(KeyError):
            with epl.replicate(1):
                raise KeyError("x")
        with epl.replicate(1):
            tf.constant(1.0)


def test_graphs_do_not_mix():
    with capture() as one:
        planning.sgd(planning.layers())
        with tf.Graph().as_default() as other:
            planning.sgd(planning.layers(1))
    assert len(record_of(one).apply_calls[0][2]) == 4 and len(record_of(other).apply_calls[0][2]) == 2


# ---------------------------------------------------------------------------------------------------------------------
# Gradients and optimizers.


def test_minimize():
    with capture() as graph:
        loss, _ = simple()
        tf.train.AdamOptimizer(0.1).minimize(loss)
    model = make_program(graph)
    (call,) = model.apply_calls
    assert call.optimizer == "AdamOptimizer" and list(gradients_of(call)) == ["w"]
    assert [(gradient, name) for gradient, name in model.computed] == list(call.gradients)


@pytest.mark.parametrize("hand_over", [
    lambda optimizer, pairs: optimizer.apply_gradients(zip(*zip(*pairs))),
    lambda optimizer, pairs: optimizer.apply_gradients(grads_and_vars=iter(pairs)),
    lambda optimizer, pairs: optimizer.apply_gradients(tuple(pairs), None, "name"),
    lambda optimizer, pairs: optimizer.apply_gradients(name="name", grads_and_vars=pairs),
])  # fmt: skip
def test_ways_to_hand_gradients_over(hand_over):
    with capture() as graph:
        loss, _ = simple()
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        hand_over(optimizer, optimizer.compute_gradients(loss))
    (call,) = make_program(graph).apply_calls
    assert gradients_of(call) == {"w": node_of(record_of(graph).computed[0][0].values)}


def test_none_gradients_are_left_out():
    with capture() as graph:
        loss, w = simple()
        unused = variable("unused")
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss, [w, unused])
        assert pairs[1][0] is None
        optimizer.apply_gradients(pairs)
    model = make_program(graph)
    assert list(gradients_of(model.apply_calls[0])) == ["w"] and [name for _, name in model.computed] == ["w"]


@pytest.mark.parametrize("resource", [False, True])
def test_variables_by_their_operation(resource):
    with capture() as graph:
        w = variable("scope/w", use_resource=resource)
        table = variable("table", [10, 4], use_resource=resource)
        rows = tf.gather(table, tf.cast(planning.batch()[:, 0], tf.int32))
        planning.sgd(tf.reduce_mean(tf.matmul(rows, w)))
    model = make_program(graph)
    assert set(gradients_of(model.apply_calls[0])) == {"scope/w", "table"} == set(model.variables)
    assert {name: v.shape for name, v in model.variables.items()} == {"scope/w": (4, 4), "table": (10, 4)}
    sparse = {name: gradient.indices is not None for gradient, name in model.apply_calls[0].gradients}
    assert sparse == {"scope/w": False, "table": True}
    for known in model.variables.values():
        assert known.initializers and all(name in model.graph.nodes for name in known.initializers)


class Outer(tf.train.Optimizer):
    """An optimizer around another one."""

    def __init__(self, inner):
        super(Outer, self).__init__(False, "Outer")
        self._inner = inner

    def compute_gradients(self, *args, **kwargs):
        return self._inner.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        return self._inner.apply_gradients([(g * 0.5, v) for g, v in grads_and_vars], global_step, name)


def test_an_optimizer_around_another_is_one_call():
    with capture() as graph:
        loss, _ = simple()
        Outer(Outer(tf.train.MomentumOptimizer(0.1, 0.9))).minimize(loss)
    (call,) = make_program(graph).apply_calls
    assert call.optimizer == "Outer"
    assert gradients_of(call)["w"] == node_of(record_of(graph).computed[0][0].values)
    (update,) = [node for node in make_program(graph).graph.nodes.values() if node.op == "ApplyMomentum"]
    assert tags.phase(update) == tags.APPLY and tags.get_int(update, tags.APPLY_CALL, -1) == 0
    model, plan = planning.plan_of(graph)
    (consumers,) = plan.aggregation.consumers.values()
    assert [model.graph.nodes[name].op for name, _ in consumers] == ["Mul"]  # the outermost optimizer's first use


class ByHand(tf.train.Optimizer):
    """Overrides apply_gradients and never calls the original, as BERT's AdamWeightDecayOptimizer does."""

    def __init__(self):
        super(ByHand, self).__init__(False, "ByHand")

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        updates = []
        for gradient, w in grads_and_vars:
            moment = tf.get_variable(w.op.name + "/m", w.shape, trainable=False, initializer=tf.zeros_initializer())
            new = 0.9 * moment + gradient
            updates += [w.assign(w - 0.1 * tf.sqrt(tf.square(new) + 1.0)), moment.assign(new)]
        return tf.group(*updates, name=name)


def test_an_overridden_apply_gradients():
    with capture() as graph:
        loss, _ = simple()
        ByHand().minimize(loss)
    (call,) = make_program(graph).apply_calls
    assert call.optimizer == "ByHand" and list(gradients_of(call)) == ["w"]
    model, plan = planning.plan_of(graph)
    assert plan.state == ()  # the moments are made of aggregated gradients
    assert {tags.phase(model.graph.nodes[name]) for name in plan.analysis.writes} == {tags.APPLY}
    assert len(plan.analysis.writes) == 2


def test_sparse_gradients_of_lists():
    """TensorFlow takes lists and arrays in the place of an IndexedSlices' tensors."""
    with capture() as graph:
        table = variable("table")
        slices = tf.IndexedSlices(tf.gradients(tf.reduce_sum(table), [table])[0][:1], [0], table.shape)
        tf.train.GradientDescentOptimizer(0.1).apply_gradients([(slices, table)])
    ((gradient, name),) = make_program(graph).apply_calls[0].gradients
    assert name == "table" and graph.get_tensor_by_name(gradient.indices).op.type == "Const"


def test_two_losses_two_optimizers():
    with capture() as graph:
        x = planning.batch()
        for name in ("generator", "critic"):
            w = variable(name)
            tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.matmul(x, w)), var_list=[w])
    calls = make_program(graph).apply_calls
    assert [call.index for call in calls] == [0, 1]
    assert [list(gradients_of(call)) for call in calls] == [["generator"], ["critic"]]


def test_second_order_gradients():
    """A penalty on gradients: the inner ones are a part of the model, the outer ones are aggregated."""
    with capture() as graph:
        loss, w = simple()
        (inner,) = tf.gradients(loss, [w])
        penalty = tf.reduce_sum(tf.square(inner))
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        ((outer, _),) = optimizer.compute_gradients(loss + penalty)
        optimizer.apply_gradients([(outer, w)])
    model = make_program(graph)
    assert [node_of(g.values) for g, _ in model.computed] == [inner.op.name, outer.op.name]
    for after in (False, True):
        _, plan = planning.plan_of(graph, communication__clip_after_allreduce=after)
        assert [group.tensors for group in plan.aggregation.groups] == [(outer.op.name,)]


def test_gradients_inside_of_a_while_loop_gradient_are_one_call():
    with capture() as graph:
        w = variable("w")
        _, y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.matmul(y, w)), [0, planning.batch()])
        tf.gradients(tf.reduce_mean(y), [w])
    assert [name for _, name in make_program(graph).computed] == ["w"]


# ---------------------------------------------------------------------------------------------------------------------
# Variables.


def test_local_variables_and_those_in_no_collection():
    with capture() as graph:
        variable("normal")
        variable("local", collections=[tf.GraphKeys.LOCAL_VARIABLES])
        variable("loose", collections=[])
    found = make_program(graph).variables
    assert {name: (v.is_local, v.initializers) for name, v in found.items()} == {
        "normal": (False, ("normal/Assign",)),
        "local": (True, ("local/Assign",)),
        "loose": (False, ("loose/Assign",)),
    }


# ---------------------------------------------------------------------------------------------------------------------
# What is refused.


def test_sync_replicas_optimizer():
    with capture():
        loss, _ = simple()
        with pytest.raises(UnsupportedError, match="SyncReplicasOptimizer.*use the optimizer inside"):
            tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(0.1), 2, total_num_replicas=2)
        older = object.__new__(tf.train.SyncReplicasOptimizer)  # made before epl.init()
        with pytest.raises(UnsupportedError, match="SyncReplicasOptimizer.*use the optimizer inside"):
            older.apply_gradients([(loss, loss)])


def test_nested_scopes_name_both_places():
    with capture():
        here = sys._getframe().f_lineno
        with pytest.raises(CaptureError) as caught:
            with epl.replicate(1):
                with epl.split(1):
                    tf.constant(1.0)
    lines = re.findall(r"test_capture\.py:(\d+)", str(caught.value))
    assert sorted(int(line) - here for line in lines) == [2, 3] and "cannot be nested" in str(caught.value)


def test_default_strategy_inside_of_a_scope():
    with capture():
        with epl.replicate(1):
            with pytest.raises(
                CaptureError, match=r"test_capture\.py:\d+ stands inside of epl.replicate at test_capture"
            ):
                epl.set_default_strategy(epl.replicate(1))
        with pytest.raises(CaptureError, match="takes a strategy"):
            epl.set_default_strategy("replicate")


@pytest.mark.parametrize("workers, devices", [(1, 1), (2, 3)])
def test_scopes_without_a_device_count_take_all_devices(workers, devices):
    with capture():
        cluster = Cluster(workers, gpu_num_per_worker=devices)
        with mock.patch.object(Env, "cluster", cluster):
            assert epl.replicate(name="all").device_count == workers * devices
            assert epl.split().device_count == workers * devices


@pytest.mark.parametrize("device_count", [0, -1, 1.5, "2", True])
def test_device_counts_that_are_none(device_count):
    with capture():
        for make in (epl.replicate, epl.split):
            with pytest.raises(
                PlanError, match=r"device_count=%s\).*whole number of at least 1" % re.escape(repr(device_count))
            ):
                make(device_count)


def test_collections_of_tensorflow_with_these_names_are_the_same():
    with capture() as graph:
        a, b, c = (tf.constant(1.0, name=name) for name in "abc")
        epl.add_to_collection(a, epl.GraphKeys.GLOBAL_SUM_OBJECTS)
        for tensor in (a, b):
            tf.add_to_collection(epl.GraphKeys.GLOBAL_SUM_OBJECTS, tensor)
        tf.add_to_collection(epl.GraphKeys.LOCAL_MEAN_OBJECTS, c)
        wanted = {epl.GraphKeys.GLOBAL_SUM_OBJECTS: [a, b], epl.GraphKeys.LOCAL_MEAN_OBJECTS: [c]}
        assert epl.get_all_collections() == wanted
        assert make_program(graph).merges == {key: [t.name for t in wanted[key]] for key in wanted}
        tf.add_to_collection(epl.GraphKeys.LOCAL_MEAN_OBJECTS, b)
        with pytest.raises(CaptureError, match="'b:0' is in the collections 'global_sum_objects' and 'local_mean_obj"):
            make_program(graph)
        tf.get_collection_ref(epl.GraphKeys.LOCAL_MEAN_OBJECTS)[:] = ["c"]
        with pytest.raises(CaptureError, match="collection 'local_mean_objects' .* takes tensors, not 'c'"):
            make_program(graph)


def test_collections():
    with capture():
        a, b = tf.constant(1.0, name="a"), tf.constant(2.0, name="b")
        epl.add_to_collection([a, b], epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        epl.add_to_collection(a, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        assert [t.name for t in epl.get_collection(epl.GraphKeys.GLOBAL_MEAN_OBJECTS)] == ["a:0", "b:0"]
        assert epl.get_collection(epl.GraphKeys.LOCAL_SUM_OBJECTS) == []
        assert epl.GraphKeys.GLOBAL_MEAN_OBJECTS in epl.GraphKeys.ALL_COLLECTION_KEYS == epl.GraphKeys.ALL
        assert list(epl.get_all_collections()) == [epl.GraphKeys.GLOBAL_MEAN_OBJECTS]
        with pytest.raises(CaptureError, match="'a:0' is in the collection 'global_mean_objects' already"):
            epl.add_to_collection(a, epl.GraphKeys.LOCAL_SUM_OBJECTS)
        with pytest.raises(KeyError, match="(?s)^'losses' is none of the collections.*local_sum_objects"):
            epl.add_to_collection(a, "losses")
        with pytest.raises(CaptureError, match="takes tensors, not 3"):
            epl.add_to_collection(3, epl.GraphKeys.GLOBAL_SUM_OBJECTS)
        with pytest.raises(CaptureError, match="'x' is none of"):
            epl.get_collection("x")


def test_an_optimizer_that_was_done_before_epl_init(tmp_path):
    program = """
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
import epl
x = tf.random_normal([4, 4])
w = tf.get_variable("w", [4, 4])
train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.matmul(x, w)))
epl.init()
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(train)
print("went through")
"""
    child = processes.python(["-c", program], processes.worker_environments(1, 2)[0], tmp_path / "log")
    ended = child.wait(120)
    assert ended.code == 1 and "went through" not in ended.output, ended
    assert "CaptureError" in ended.output and "before the training graph is built" in ended.output, ended


# ---------------------------------------------------------------------------------------------------------------------
# Tagged graphs are ordinary graphs.


def test_tagged_graphs_can_be_imported_and_run(tmp_path):
    with capture(seed=1):
        x = tf.placeholder(tf.float32, [None, 4], name="x")
        with epl.replicate(1, name="model"):
            loss = planning.layers(x=x)
        train = planning.sgd(loss)
        tf.train.Saver()
        tf.train.export_meta_graph(str(tmp_path / "meta"))
    program = """
import sys, tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
saver = tf.train.import_meta_graph(sys.argv[1])
assert saver is not None and "epl" not in sys.modules
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    before = session.run("loss:0", {"x:0": [[1.0] * 4]})
    for _ in range(3):
        session.run(sys.argv[2], {"x:0": [[1.0] * 4]})
    assert session.run("loss:0", {"x:0": [[1.0] * 4]}) < before
print("trained")
"""
    ended = processes.python(["-c", program, str(tmp_path / "meta"), train.name], {}, tmp_path / "log").wait(120)
    assert ended.code == 0 and "trained" in ended.output, ended
