"""float16 on one copy of a model: what is multiplied by the loss scale and what is not, what is refused."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl
from epl import tf_compat
from epl.capture.record import make_program
from epl.config import Config
from epl.errors import ConfigError, PlanError, UnsupportedError
from epl.graph import tags
from epl.passes.model.mixed_precision import computed_name
from epl.plan.precision.found_inf import stages_found_infs
from epl.plan.precision.loss_scale import plan_loss_scale
from tests.helpers.checks import pairs
from tests.helpers.loss_scales import BAD, OPTIONS, by_the_book, check
from tests.helpers.planning import capture, compiled, control_flow
from tests.helpers.programs import loss_scale as programs

pytestmark = pytest.mark.either_line

FLOAT16 = {"amp__level": "O1", "amp__dtype": "float16"}
PREFIX = "epl_loss_scale"
ADDED = ("scale", "good_steps", "bad_steps")


def one(graph, **config):
    return compiled(graph, devices=1, **dict(FLOAT16, **config))


def underscored(options):
    return {key.replace(".", "__"): value for key, value in options.items()}


def train(kind="adam", resource=True, steps=(0, 24), bad=(), fetched=(), **config):
    """A training of `programs.train` on one device by plain TensorFlow over what EPL makes of its graph."""
    with capture() as graph:
        loss, placeholders, train_op = programs.model(kind, resource)
        init = tf.global_variables_initializer()
        variables = [v.op.name for v in tf.global_variables()]
        fetched = [t.name for t in fetched and fetched()]
    program = compiled(graph, devices=1, **dict(FLOAT16, **config))
    added = [n + "/first_value" for n in program.variables if program.variables[n].added]
    found = {"losses": [], "states": [], "scales": [], "fetched": []}
    with tf.Graph().as_default() as computed:
        tf.import_graph_def(program.graph.to_graph_def(tf_compat.GraphDef), name="")
        reads = [_read(computed, name) for name in variables]
        scales = [computed.get_tensor_by_name(n + "/read:0") for n in program.variables if program.variables[n].added]
        with tf.Session() as sess:
            sess.run([init.name] + added)
            found["states"].append(dict(zip(variables, sess.run(reads))))
            for number in range(*steps):
                values = programs.rows(number, number in bad, place=5 * number)
                feeds = {p.name: v for p, v in zip(placeholders, values)}
                loss_value, more, _ = sess.run([loss.name, fetched, train_op.name], feeds)
                found["losses"].append(loss_value)
                found["fetched"].append(more)
                found["states"].append(dict(zip(variables, sess.run(reads))))
                found["scales"].append(tuple(v.item() for v in sess.run(scales)))
    found["steps"] = [int(state["global_step"]) for state in found["states"]]
    return found


def _read(graph, name):
    holder = graph.get_operation_by_name(name)
    if holder.type == "VarHandleOp":
        return tf.raw_ops.ReadVariableOp(resource=holder.outputs[0], dtype=holder.get_attr("dtype"))
    return holder.outputs[0]


@pytest.mark.parametrize("kind, resource", [("adam", False), ("clipped", True), ("two", False), ("keras", True)])
def test_the_skip_logic_is_that_of_the_book(kind, resource):
    found = train(kind, resource, bad=BAD, **underscored(OPTIONS))
    check(found, range(24), BAD)
    assert found["scales"] == by_the_book(range(24), BAD)


@pytest.mark.parametrize("kind, resource", [("adam", True), ("clipped", False), ("two", False)])
def test_updates_in_groups_are_left_out_too(kind, resource):
    options = dict(underscored(OPTIONS), amp__incr_every_n_steps=2)
    want = train(kind, resource, steps=(0, 6), bad=BAD, **options)
    found = train(kind, resource, steps=(0, 6), bad=BAD, optimizer__num_apply_group=3, **options)
    check(found, range(6), BAD)
    assert found["scales"] == want["scales"]
    for state, wanted in pairs(found["states"], want["states"]):
        assert all(np.array_equal(state[name], value) for name, value in wanted.items())


def test_a_scale_that_overflows_comes_down_until_gradients_are_finite():
    found = train(steps=(0, 30), amp__init_loss_scale=2.0**40)
    scales = [scale for scale, _, _ in found["scales"]]
    left_out = 30 - found["steps"][-1]
    assert 5 < left_out < 29 and scales[-1] == 2.0 ** (40 - left_out)
    assert found["steps"][left_out:] == list(range(30 - left_out + 1))


def test_moving_averages_move_in_steps_that_are_left_out():
    """They come from the forward pass, which is not scaled."""
    plain = train("norm", steps=(0, 3), amp__level="", amp__dtype="auto")
    found = train("norm", steps=(0, 3), amp__loss_scale=2.0**60)
    assert found["steps"] == [0, 0, 0, 0]
    for before, after in zip(found["states"], found["states"][1:]):
        moved = sorted(name for name in before if not np.array_equal(before[name], after[name]))
        assert moved == ["net/norm/moving_mean", "net/norm/moving_variance"]
        assert all(np.isfinite(after[name]).all() for name in moved)
    for name in moved:
        np.testing.assert_allclose(found["states"][1][name], plain["states"][1][name], rtol=0.02, atol=1e-3)


def test_losses_stay_near_those_in_float32():
    plain = train(steps=(0, 50), amp__level="", amp__dtype="auto")
    for options in ({}, {"amp__loss_scale": 128}, {"amp__loss_scale": 1}):
        found = train(steps=(0, 50), **options)
        assert found["losses"] != plain["losses"]
        np.testing.assert_allclose(found["losses"], plain["losses"], rtol=0.02)
    assert plain["losses"][-1] < 0.7 * plain["losses"][0]


def test_what_the_program_sees_of_gradients_is_not_scaled():
    def gradients():
        graph = tf.get_default_graph()
        return [op.outputs[0] for op in graph.get_operations() if op.name.startswith("gradient_of/")]

    plain = train("gradients", steps=(0, 2), fetched=gradients, amp__level="", amp__dtype="auto")
    for scale in (1, 1024):
        found = train("gradients", steps=(0, 2), fetched=gradients, amp__loss_scale=scale)
        for own, want in pairs(found["fetched"], plain["fetched"]):
            assert len(own) == len(want) > 4
            for value, wanted in pairs(own, want):
                np.testing.assert_allclose(value, wanted, rtol=0.02, atol=0.02 * np.abs(wanted).max())


def test_a_fixed_scale_leaves_steps_out_too():
    found = train(bad=BAD, amp__loss_scale=128)
    check(found, range(24), BAD)
    assert set(found["scales"]) == {()}


def test_programs_that_scale_by_themselves_are_left_alone():
    with capture() as graph:
        programs.model("adam", True)
    assert not [n for n in one(graph, amp__loss_scale=1).graph.nodes if n.startswith(PREFIX)]


def test_only_calls_that_train_are_scaled():
    """The gradient by which a loss is penalised starts with 1."""
    with capture() as graph:
        x = tf.placeholder(tf.float32, [None, 4], "x")
        y = tf.matmul(x, tf.get_variable("w", [4, 1]))
        (slope,) = tf.gradients(y, x)
        loss = tf.reduce_mean(y) + tf.reduce_mean(tf.square(slope))
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    seeds = [n for n in one(graph).graph.nodes.values() if n.name.startswith(PREFIX + "/seed/")]
    assert len(seeds) == 1
    (scaled,) = plan_loss_scale(make_program(graph))
    assert graph.get_operation_by_name(scaled.seeds[0]).get_attr(tags.SEED) == loss.name.encode()


def _two_networks(order):
    x = tf.placeholder(tf.float32, [None, 4], "x")
    ours, others = tf.get_variable("ours", [4, 4]), tf.get_variable("others", [4, 4])
    first = tf.reduce_mean(tf.square(tf.matmul(x, ours)))
    second = tf.reduce_mean(tf.square(tf.matmul(tf.matmul(x, ours), others)))
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    update = optimizer.minimize(first, var_list=[ours])
    if order == "after":
        with tf.control_dependencies([update]):
            second = tf.identity(second)
            optimizer.minimize(second, var_list=[others])
        return
    other = optimizer.minimize(
        first if order == "one loss" else second, var_list=[others if order != "one loss" else ours]
    )
    if order == "grouped":
        tf.group(update, other)


@pytest.mark.parametrize("order, groups", [("apart", 2), ("grouped", 1), ("after", 2), ("one loss", 1)])
def test_which_calls_are_judged_together(order, groups):
    with capture() as graph:
        _two_networks(order)
    program = one(graph)
    assert len(plan_loss_scale(make_program(graph))) == groups
    assert len([v for v in program.variables.values() if v.added]) == 3 * groups


def test_gradients_of_a_loss_are_scaled_in_the_order_of_their_calls():
    """However many other calls of tf.gradients there are, so that all workers make the same graph."""
    with capture() as graph:
        w = tf.get_variable("w", [4, 4])
        loss = tf.reduce_mean(tf.square(tf.matmul(tf.placeholder(tf.float32, [None, 4]), w)))
        for _ in range(7):
            tf.gradients(loss, w)
        for _ in range(2):
            tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[w])
    program = make_program(graph)
    (scaled,) = plan_loss_scale(program)
    assert len(scaled.seeds) == 2
    assert list(scaled.seeds) == program.graph.in_order(scaled.seeds)


def test_checkpoints_hold_the_scale():
    with capture() as graph:
        _two_networks("apart")
        tf.train.Saver()
    program, saved = one(graph), {}
    for name, nodes in (("before", make_program(graph).graph.nodes), ("after", program.graph.nodes)):
        (save,) = [node for node in nodes.values() if node.op == "SaveV2"]
        saved[name] = list(save.attr["dtypes"].list.type)
        assert len([text for text in save.input if text[0] != "^"]) == 3 + len(saved[name])
    added = [variable for variable in program.variables.values() if variable.added and variable.added.is_saved]
    assert added and len(saved["after"]) == len(saved["before"]) + len(added)


def _by_hand():
    w = tf.get_variable("w", [4, 4])
    (gradient,) = tf.gradients(tf.reduce_mean(tf.matmul(tf.placeholder(tf.float32, [None, 4]), w)), w)
    tf.assign_sub(w, 0.1 * gradient)


def _tape():
    w = tf.get_variable("w", [4, 4], use_resource=True)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(tf.placeholder(tf.float32, [None, 4]), w))
    tf.train.GradientDescentOptimizer(0.1).apply_gradients([(tape.gradient(loss, w), w)])


def _in_a_branch():
    w = tf.get_variable("w", [4, 4], use_resource=True)
    loss = tf.reduce_mean(tf.matmul(tf.placeholder(tf.float32, [None, 4]), w))
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss)

    class Careful(tf.train.GradientDescentOptimizer):
        """Applies gradients in a branch."""

        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            return tf.cond(
                tf.is_finite(loss),
                lambda: tf.group(optimizer.apply_gradients(grads_and_vars)),
                lambda: tf.group(tf.no_op()),
            )

    Careful(0.1).apply_gradients(pairs)


def _layer():
    w = tf.get_variable("w", [4, 4])
    return w, tf.reduce_mean(tf.square(tf.matmul(tf.placeholder(tf.float32, [None, 4]), w)))


def _inside_of_the_backward_pass():
    w, loss = _layer()
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    ((gradient, _),) = optimizer.compute_gradients(loss)
    before = next(op for op in tf.get_default_graph().get_operations() if op.name.endswith("Square_grad/Mul_1"))
    optimizer.apply_gradients([(tf.matmul(before.outputs[0], gradient), w)])


def _after_an_update():
    w, loss = _layer()
    others = [tf.get_variable(name, [4]) for name in ("v", "u")]
    gradients = tf.gradients(loss + tf.reduce_sum(others[0]), [w, others[0]])
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    with tf.control_dependencies([optimizer.apply_gradients([(gradients[0], w)])]):
        decay = tf.ones([4]) * 2.0
    optimizer.apply_gradients([(gradients[1], others[0]), (decay, others[1])])


def _with_a_counter():
    class Counting(tf.train.GradientDescentOptimizer):
        """Counts to 100."""

        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            counter = tf.get_variable("counter", [], tf.int32, trainable=False, use_resource=False)
            update = super(Counting, self).apply_gradients(grads_and_vars, *args, **kwargs)
            return tf.group(update, tf.count_up_to(counter, 100))

    Counting(0.1).minimize(_layer()[1])


def test_a_gradient_on_one_side_of_a_branch():
    """It is divided by the scale before the side is chosen; of the other side nothing is there."""
    with capture() as graph, control_flow("v1"):
        x = tf.placeholder(tf.float32, [2, 4], "x")
        w = tf.get_variable("w", [4, 4], initializer=tf.ones_initializer())
        inner = []

        def taken():
            inner.append(tf.identity(tf.matmul(x, w)))
            inner.append(tf.reduce_sum(inner[0]))  # the gradient of it is one of two sides of a Switch
            return inner[1]

        loss = tf.cond(tf.reduce_sum(x) > 0, taken, lambda: tf.reduce_sum(w))
        of_w, of_inner, of_sum = tf.gradients(loss, [w] + inner)
        update = tf.train.GradientDescentOptimizer(0.25).apply_gradients([(of_w, w)])
        init = tf.global_variables_initializer()
    program = one(graph, amp__loss_scale=64)
    with tf.Graph().as_default():
        tf.import_graph_def(program.graph.to_graph_def(tf_compat.GraphDef), name="")
        with tf.Session() as sess:
            sess.run(init.name)
            fetched = [of_w.name, of_inner.name, of_sum.name, update.name]
            gradient, inner_gradient, outer_gradient, _ = sess.run(fetched, {"x:0": np.ones([2, 4])})
    np.testing.assert_array_equal(gradient, 2 * np.ones([4, 4]))
    np.testing.assert_array_equal(inner_gradient, np.ones([2, 4]))
    np.testing.assert_array_equal(outer_gradient, 1)


@pytest.mark.parametrize(
    "build, message",
    [
        (_inside_of_the_backward_pass, "which tf.gradients did not return"),
        (_after_an_update, "come from one tf.gradients, but some are applied before others"),
        (_with_a_counter, "gives a value besides"),
        (_by_hand, "the program assigns what it makes of gradients to variables itself, 'w' for one"),
        (_tape, "come from a tf.GradientTape"),
        (_in_a_branch, "is made in a branch, a loop or a function"),
    ],
)
def test_what_cannot_be_left_out_is_refused(build, message):
    with capture() as graph:
        build()
    with pytest.raises(UnsupportedError, match=message):
        one(graph)
    assert one(graph, amp__loss_scale=1).graph.nodes


@pytest.mark.parametrize("resource", [True, False])
def test_each_worker_of_a_pipeline_has_the_scale_and_what_leaves_steps_out(resource):
    with capture() as graph:
        programs.model("adam", resource, lambda stage: epl.replicate(1, name="stage_%d" % stage))
    for index in range(4):
        config = dict(FLOAT16, pipeline__num_micro_batch=2)
        program = compiled(graph, workers=4, devices=1, index=index, **config)
        nodes, plan = program.graph.nodes, program.plan
        (found_inf,) = stages_found_infs(plan)
        assert {owner for _, owner, _ in found_inf.flags} == {0, 1} and len(found_inf.flags) == 5
        reduce = nodes[found_inf.name]
        # It is handed what this worker knows of its own gradients.
        assert list(reduce.input) == ["%s/from_%d" % (found_inf.name, index % 2)] and reduce.attr["workers"].i == 2
        here = [nodes[group.name] for group in plan.aggregation.groups if group.name in nodes]
        assert here and reduce.attr["comm"].i not in {node.attr["comm"].i for node in here}
        for name in ["scale", "good_steps", "bad_steps", "taken", "left_out", "adapted"]:
            assert "%s/%s" % (PREFIX, name) in nodes
        for name in ["global_step", "beta1_power"]:
            assert name in nodes and plan.placed(name) == plan.placed(PREFIX + "/scale")
        (strategy,) = [each for each in plan.strategies if each.key.startswith("amp.loss_scale")]
        assert strategy.sent_bytes == 4


def test_owners_in_all_copies_of_a_pipeline_judge_together():
    """One number of each of four workers travels to all: what it knows of the gradients that it owns."""
    with capture() as graph:
        programs.model("adam", True, lambda stage: epl.replicate(1, name="stage_%d" % stage))
    judged = []
    for index in range(4):
        program = compiled(graph, workers=4, devices=1, index=index, zero__level="v1", **FLOAT16)
        nodes = program.graph.nodes
        (found_inf,) = stages_found_infs(program.plan)
        reduce, own = nodes[found_inf.name], "%s/from_%d" % (found_inf.name, index)
        assert [text for text in reduce.input if text[0] != "^"] == [own] and reduce.attr["workers"].i == 4
        assert nodes["epl_loss_scale/finite/packed"].input[:] == [found_inf.name + "/all"]
        judged.append(found_inf.flags_of(index % 2, index // 2))
        assert set(judged[-1]) <= set(nodes)
        # Nothing waits for what stands in a branch here, instead of for what another worker leaves out.
        waits = [text for node in program.graph.nodes.values() if "epl_after/" in node.name for text in node.input]
        assert not {"^epl_loss_scale/left_out", "^epl_loss_scale/taken"}.intersection(waits)
    assert sorted(sum(judged, [])) == ["epl_loss_scale/finite/%d" % number for number in range(5)]


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"amp.loss_scale": 128, "amp.level": "O1", "amp.dtype": "bfloat16"},
            "amp.loss_scale=128 has no effect while amp.dtype='bfloat16'",
        ),
        ({"amp.loss_scale": 128}, "amp.loss_scale=128 has no effect while amp.level=''"),
        (dict(programs.FLOAT16, **{"amp.decr_ratio": 2.0}), "would not make the loss scale smaller"),
        (
            dict(programs.FLOAT16, **{"amp.loss_scale": 8, "amp.incr_ratio": 3.0}),
            "has no effect while amp.loss_scale=8",
        ),
        ({"amp.level": "O3"}, "must be one of"),
    ],
)
def test_keys_that_do_not_go_together(options, message):
    with pytest.raises((ConfigError, PlanError), match=message):
        Config(options, {})


def test_products_are_computed_in_float16():
    with capture() as graph:
        programs.model("adam", True)
    nodes = one(graph).graph.nodes
    products = [n for n in nodes.values() if n.op == "MatMul"]
    assert len(products) > 4 and all(n.attr["T"].type == 19 for n in products)
    assert computed_name("net/hidden/MatMul") in nodes or any(n.startswith("epl_16_bits/net") for n in nodes)
