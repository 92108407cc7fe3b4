"""Plans: gradient groups, the order of collectives, what is refused."""

import logging

import hypothesis
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import strategies as st

import epl
from epl.errors import CaptureError, PlanError, UnsupportedError
from epl.graph import tags
from epl.graph.index import node_of
from epl.plan.exchange.order import collective_keys
from tests.helpers import planning
from tests.helpers.planning import capture, control_flow, plan_of, variable, wide, wide_graph

pytestmark = pytest.mark.either_line

# ---------------------------------------------------------------------------------------------------------------------
# Gradient groups.


def in_groups(plan):
    return [tensor for group in plan.aggregation.groups for tensor in group.tensors]


def computed(model):
    return [node_of(gradient.values) for gradient, _ in model.computed]


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(max_splits=st.integers(1, 20), num_communicators=st.integers(1, 4), after=st.booleans())
def test_groups(max_splits, num_communicators, after):
    model, plan = plan_of(
        wide_graph(),
        communication__max_splits=max_splits,
        communication__num_communicators=num_communicators,
        communication__clip_after_allreduce=after,
    )
    groups = plan.aggregation.groups
    assert len(groups) == min(max_splits, 12)  # 12 matrices of just the smallest group's size
    assert sorted(in_groups(plan)) == sorted(computed(model)) and len(in_groups(plan)) == 12
    positions = [model.graph.creation_index[node_of(tensor)] for tensor in in_groups(plan)]
    assert positions == sorted(positions)  # as they become ready in the backward pass
    made = [plan.collective(group.name) for group in groups]
    assert all(0 <= each.communicator < num_communicators for each in made)
    assert len({each.communicator for each in made}) == min(num_communicators, len(groups))
    assert len({each.tag for each in made}) == len(groups) and all(0 <= each.tag < 2**63 for each in made)
    assert (
        sum(group.num_bytes for group in groups)
        == 12 * 256 * 256 * 4
        == plan_of(wide_graph(), workers=2, communication__max_splits=max_splits)[1].bytes_per_step()
    )


def test_small_gradients_travel_together():
    with capture() as graph:
        planning.sgd(planning.layers(6))
    _, plan = plan_of(graph, communication__max_splits=5)
    assert len(plan.aggregation.groups) == 1 and len(in_groups(plan)) == 12


def test_types_do_not_mix():
    with capture() as graph:
        x = planning.batch()
        single = tf.matmul(x, variable("single"))
        double = tf.matmul(tf.cast(x, tf.float64), variable("double", dtype=tf.float64))
        half = tf.matmul(tf.cast(x, tf.float16), variable("half", dtype=tf.float16))
        planning.sgd(sum(tf.reduce_sum(tf.cast(y, tf.float32)) for y in (single, double, half)))
    _, plan = plan_of(graph, workers=2, communication__fp16=True)
    assert sorted((group.dtype, group.num_bytes) for group in plan.aggregation.groups) == [(1, 64), (2, 128), (19, 32)]
    assert plan.bytes_per_step() == 64 // 2 + 128 + 32  # float32 only is sent as float16


def test_one_device_has_nothing_to_aggregate():
    _, plan = plan_of(wide_graph(), 1, 1)
    assert plan.aggregation.groups == () and plan.state == () and plan.bytes_per_step() == 0


@pytest.mark.parametrize("method, device_count, rows, scale", [
    ("mean", 1, 8, 1 / 4), ("sum", 1, 8, 1.0), ("mean", 2, None, 1 / 4), ("sum", 2, None, 1 / 2),
    # Devices that divide the rows of a batch of a fixed size have sums of the whole batch.
    ("mean", 2, 8, 1 / 2), ("sum", 2, 8, 1.0)])  # fmt: skip
def test_scale(method, device_count, rows, scale):
    with capture() as graph, epl.replicate(device_count):
        planning.sgd(planning.layers(x=tf.placeholder(tf.float32, [rows, 4]) if rows is None else None))
    assert plan_of(graph, 1, 4, communication__gradients_reduce_method=method)[1].gradient_scale == scale


def test_sparse_gradients():
    with capture() as graph:
        table = variable("table", [100, 4])
        ids = tf.cast(planning.batch()[:, 0], tf.int32)
        planning.sgd(tf.reduce_mean(tf.gather(table, ids)))
    model, plan = plan_of(graph)
    (sparse,) = plan.aggregation.sparse
    assert plan.aggregation.groups == () and sparse.rows == 100
    assert sparse.values in plan.aggregation.consumers and sparse.indices in plan.aggregation.consumers
    assert len(collective_keys(plan, model.graph)) == 2


def clipped_model():
    """A model whose gradients are clipped by their global norm."""
    loss = planning.layers()
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
    optimizer.apply_gradients(zip(clipped, variables))
    return [g.op.name for g in gradients], [c.op.name for c in clipped]


@pytest.mark.parametrize("after", [False, True])
def test_where_clipped_gradients_are_aggregated(after, caplog):
    with capture() as graph:
        gradients, clipped = clipped_model()
    with caplog.at_level(logging.WARNING, "epl"):
        model, plan = plan_of(graph, communication__clip_after_allreduce=after)
    assert sorted(in_groups(plan)) == sorted(gradients if after else clipped)
    assert [r for r in caplog.records if "clip_after_allreduce=True" in r.getMessage()] != [] or after
    for tensor, consumers in plan.aggregation.consumers.items():
        phases = {tags.phase(model.graph.nodes[name]) for name, _ in consumers}
        assert phases == {tags.FORWARD if after else tags.APPLY}, tensor
    # Whatever made the norm sees aggregates too, or the copies would clip by different norms.
    if after:
        of_norm = [n for n in model.graph.nodes.values() if n.op == "L2Loss"]
        assert len(of_norm) == 4
        seen = {edge for consumers in plan.aggregation.consumers.values() for edge in consumers}
        assert all((node.name, 0) in seen for node in of_norm)


def test_clip_after_needs_no_clipping():
    with capture() as graph:
        planning.sgd(planning.layers())
    assert sorted(in_groups(plan_of(graph)[1])) == sorted(
        in_groups(plan_of(graph, communication__clip_after_allreduce=True)[1])
    )


def test_weight_decay_is_no_clipping(caplog):
    with capture() as graph:
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(planning.layers())
        optimizer.apply_gradients([(g + 0.01 * v, v) for g, v in pairs])
    with caplog.at_level(logging.WARNING, "epl"):
        plan_of(graph)
    assert caplog.records == []


def manual_gradient(x):
    """The gradient of mean((x w)^2) by w, up to a factor, with tf.gradients for the outer part only."""
    w = variable("w")
    y = tf.matmul(x, w)
    (dy,) = tf.gradients(tf.reduce_mean(tf.square(y)), [y])
    return tf.matmul(x, dy, transpose_a=True), w


def by_hand(x):
    w = variable("w")
    return tf.matmul(x, tf.matmul(x, w) - 1.0, transpose_a=True), w


def by_tape(x):
    w = variable("w", use_resource=True)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
    return tape.gradient(loss, w), w


def noisy(x):
    w = variable("w")
    (gradient,) = tf.gradients(tf.reduce_mean(tf.square(tf.matmul(x, w))), [w])
    return gradient + tf.random_normal([4, 4]), w


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("make", [manual_gradient, by_hand, noisy])
def test_gradients_that_tf_gradients_did_not_return_as_they_are(make, clip):
    """Nothing that differs between copies may reach the optimizer as it is."""
    with capture() as graph:
        gradient, w = make(planning.batch())
        gradient = tf.clip_by_norm(gradient, 1.0) if clip else gradient
        tf.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, w)])
    assert in_groups(plan_of(graph)[1]) == [gradient.op.name]
    with pytest.raises(
        PlanError, match="clip_after_allreduce=True cannot hold for the gradient '%s'" % gradient.op.name
    ):
        plan_of(graph, communication__clip_after_allreduce=True)


@pytest.mark.parametrize("after", [False, True])
def test_gradients_of_a_tape_are_known(after):
    with capture() as graph:
        gradient, w = by_tape(planning.batch())
        clipped = tf.clip_by_norm(gradient, 1.0)
        tf.train.GradientDescentOptimizer(0.1).apply_gradients([(clipped, w)])
    plan = plan_of(graph, communication__clip_after_allreduce=after)[1]
    assert in_groups(plan) == [gradient.op.name if after else clipped.op.name]


def test_assigned_gradients_are_aggregated_once_and_before_what_is_made_of_them():
    with capture() as graph:
        w = variable("w")
        loss = tf.reduce_mean(tf.square(tf.matmul(planning.batch(), w)))
        (gradient,) = tf.gradients(loss, [w])
        penalty = tf.reduce_mean(tf.tanh(gradient))
        (whole,) = tf.gradients(loss + penalty, [w])
        total = variable("total", trainable=False)
        tf.assign_add(total, tf.square(whole))
        average = variable("average", [], trainable=False)
        tf.assign(average, 0.9 * average + 0.1 * penalty)  # of the forward pass: its gradient stays the copy's own
        tf.train.GradientDescentOptimizer(0.1).apply_gradients([(total, w)])
    model, plan = plan_of(graph)
    assert in_groups(plan) == [whole.op.name]
    ((name, position),) = plan.aggregation.consumers[whole.op.name]
    assert model.graph.nodes[name].op == "Square" and position == 0
    assert [model.graph.nodes[group.consumers[0][0]].input[0] for group in plan.state] == ["average"]


def test_variables_that_are_trained_cannot_drift_apart():
    """The accumulator differs, as a branch that depends on the data fills it; then so does what is trained by it."""
    with capture() as graph:
        x, w = planning.batch(), variable("w", use_resource=True)
        total = variable("total", trainable=False, use_resource=True)
        (gradient,) = tf.gradients(tf.reduce_mean(tf.square(tf.matmul(x, w))), [w])
        tf.cond(tf.reduce_sum(x) > 0, lambda: tf.assign(total, gradient), lambda: tf.identity(total))
        tf.assign_sub(w, 0.1 * total)
    with pytest.raises(CaptureError, match="drift apart .'w' is trained."):
        plan_of(graph)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_gradients_that_a_branch_collects_are_aggregated_outside_of_it(version):
    with control_flow(version), capture() as graph:
        w, total = variable("w", use_resource=True), variable("total", trainable=False, use_resource=True)
        step = tf.train.get_or_create_global_step()
        (gradient,) = tf.gradients(tf.reduce_mean(tf.square(tf.matmul(planning.batch(), w))), [w])

        def by(change):
            def branch():
                with tf.control_dependencies([change(total, gradient)]):
                    return tf.constant(0)

            return branch

        with tf.control_dependencies([tf.cond(tf.equal(step % 2, 0), by(tf.assign), by(tf.assign_add))]):
            tf.assign_sub(w, 0.1 * total)
    _, plan = plan_of(graph, workers=2, devices=1)
    assert in_groups(plan) == [gradient.op.name] and plan.state == ()


def test_gradient_for_two_optimizers_travels_once():
    with capture() as graph:
        loss = planning.layers(1)
        pairs = tf.train.GradientDescentOptimizer(0.1).compute_gradients(loss)
        tf.train.GradientDescentOptimizer(0.1).apply_gradients(pairs)
        tf.train.MomentumOptimizer(0.1, 0.9).apply_gradients(pairs)
    model, plan = plan_of(graph)
    assert sorted(in_groups(plan)) == sorted(computed(model)) and len(in_groups(plan)) == 2
    for consumers in plan.aggregation.consumers.values():
        ops = sorted(model.graph.nodes[name].op for name, _ in consumers)
        assert ops == ["ApplyGradientDescent", "ApplyMomentum"]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_optimizers_in_a_branch_are_refused(version):
    """A collective that runs in some steps only would keep the others of its communicator waiting."""
    with control_flow(version), capture() as graph:
        loss = planning.layers(1, resource=True)
        even = tf.equal(tf.train.get_or_create_global_step() % 2, 0)
        tf.cond(even, lambda: tf.group(planning.sgd(loss * 1.0)), lambda: tf.no_op())
    with pytest.raises(UnsupportedError if version == "v1" else CaptureError, match="branch"):
        plan_of(graph, 2, 1)


def test_merged_outputs_in_a_branch_are_refused():
    with control_flow("v1"), capture() as graph:
        inside = []
        x = planning.batch()
        tf.cond(tf.reduce_sum(x) > 0, lambda: inside.append(x * 2.0) or inside[0], lambda: x)
        epl.add_to_collection(inside[0], epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    plan_of(graph, 1, 2)  # within one worker nobody waits
    with pytest.raises(UnsupportedError, match="'cond/mul'"):
        plan_of(graph, 2, 1)


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_gradients_of_models_with_control_flow(version, resource):
    """The model may have loops and branches; the gradients of its variables come out of them."""
    with control_flow(version), capture() as graph:
        x = planning.batch()
        w, v = variable("w", use_resource=resource), variable("v", use_resource=resource)
        _, y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.matmul(y, w)), [0, x])
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(y, v), lambda: y)
        planning.sgd(tf.reduce_mean(y))
    _, plan = plan_of(graph, 2, 1)
    assert len(in_groups(plan)) == 2


def test_learning_rate_from_a_placeholder_of_unknown_shape():
    with capture() as graph:
        tf.train.GradientDescentOptimizer(tf.placeholder(tf.float32)).minimize(planning.layers())
    assert len(in_groups(plan_of(graph)[1])) == 4


# ---------------------------------------------------------------------------------------------------------------------
# Order of collectives, digest of plans.


def test_order_is_the_same_on_every_worker():
    with capture() as graph:
        with tf.variable_scope("extra"):
            average = variable("average", [4], trainable=False)
            update = tf.assign_sub(average, 0.1 * (average - tf.reduce_mean(planning.batch(), 0)))
        with tf.control_dependencies([update]):
            planning.sgd(wide())
    config = {"communication__max_splits": 4, "communication__num_communicators": 2}
    keys = []
    for index in range(3):
        model, plan = plan_of(graph, 3, 2, index, **config)
        keys.append(sorted(collective_keys(plan, model.graph).values()))
    assert keys[0] == keys[1] == keys[2] and len(keys[0]) == 5


# ---------------------------------------------------------------------------------------------------------------------
# Optimizers that were not seen.


def test_gradients_of_an_imported_graph_are_refused():
    with capture() as graph:
        planning.sgd(planning.layers())
    with capture() as imported:
        tf.import_graph_def(graph.as_graph_def(), name="")
    for at in ((1, 2), (2, 1)):
        with pytest.raises(CaptureError, match="(?s)update_w0.*epl.init.*before"):
            plan_of(imported, *at)


def test_gradients_of_an_imported_graph_are_refused_beside_others():
    with capture() as graph:
        planning.sgd(planning.layers())
    with capture() as imported:
        tf.import_graph_def(graph.as_graph_def(), name="old")
        planning.sgd(planning.layers())
    with pytest.raises(CaptureError, match="old/.*update_w0"):
        plan_of(imported)


def test_training_inside_of_a_function_is_refused():
    function = getattr(tf, "function", None)
    with capture() as graph:
        w = variable("w", use_resource=True)

        @function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
            tf.raw_ops.ResourceApplyGradientDescent(var=w.handle, alpha=0.1, delta=tape.gradient(loss, w))
            return loss

        step(planning.batch())
    with pytest.raises(CaptureError, match="epl.init.*before"):
        plan_of(graph)


@pytest.mark.parametrize("chunks", [1, 2])
def test_what_does_not_train_is_laid_out_on_what_there_is(chunks):
    with capture() as graph:
        for number in range(3):
            with epl.replicate(1):
                tf.tanh(tf.ones([2, 4]) * number)
    _, plan = plan_of(graph, 1, 2, pipeline__num_chunks=chunks)
    assert len(plan.mesh.instances) == 2 and len(plan.mesh.stages) == 1 and plan.stage_of == {}
    with graph.as_default():
        planning.sgd(planning.layers(1))
    with pytest.raises(PlanError):
        plan_of(graph, 1, 2, pipeline__num_chunks=chunks)


def test_what_does_not_train_is_no_pipeline_over_workers():
    with capture() as graph:
        for number in range(2):
            with epl.replicate(1):
                tf.tanh(tf.ones([2, 4]) * number)
    _, plan = plan_of(graph, 2, 1, index=1)
    assert list(plan.mesh.pipeline.workers) == [1] and plan.owners == {} and plan.mesh.instances[0].devices == (0, 0)
