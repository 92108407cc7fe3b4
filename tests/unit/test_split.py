"""Programs of which epl.split divides parts: what is planned, and what is refused."""

import contextlib

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl import tf_compat
from epl.errors import PlanError, UnsupportedError
from epl.passes.model.mixed_precision import computed_name
from epl.plan.facts.names import clone_name
from epl.plan.report.plan_table import plan_table
from epl.program.collective import PARAMETERS, STATISTICS
from epl.program.placement import sharded
from tests.helpers import planning, shards, split_models
from tests.helpers.marks import needs_bfloat16

pytestmark = pytest.mark.either_line


def classifier(scope=lambda: epl.split(2), hidden=None, classes=7):
    """A loss of which `scope` divides the last layer."""
    x = tf.placeholder(tf.float32, [None, 4], name="x") if hidden is None else hidden
    with scope():
        kernel = tf.get_variable("kernel", [4, classes])
        logits = tf.matmul(x, kernel, name="logits")
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=tf.ones_like(logits), logits=logits))


def train(loss):
    tf.train.AdamOptimizer(0.1).minimize(loss)


def _divided(plan):
    """Names of the variables that are divided."""
    return {name for name in plan.variables if plan.placed(name).is_divided}


def shapes(program):
    nodes = program.graph.nodes.values()
    found = {n.name: n for n in nodes if n.op in ("VariableV2", "VarHandleOp")}
    return {name: [d.size for d in node.attr["shape"].shape.dim] for name, node in found.items()}


@pytest.mark.parametrize("resource", [False, True])
def test_each_device_has_its_part_of_a_variable_and_of_its_slots(resource):
    with planning.capture() as graph:
        with tf.variable_scope("", use_resource=resource):
            first = tf.get_variable("first", [4, 4])
            train(classifier(hidden=tf.matmul(tf.placeholder(tf.float32, [None, 4]), first)))
    found = shapes(planning.compiled(graph))
    assert found["beta1_power"] == [] and found["first"] == found["epl_instance_1/first/Adam"] == [4, 4]
    for name in ("kernel", "kernel/Adam", "kernel/Adam_1"):
        assert found[name] == [4, 4]
        assert found["epl_instance_1/" + name] == [4, 3]
    for worker, width in enumerate((4, 3)):
        found = shapes(planning.compiled(graph, workers=2, devices=1, index=worker))
        assert found["kernel"] == [4, width] and len(found) == 8


@pytest.mark.parametrize(
    "key, value",
    [
        ("local_sgd__k_steps", 4),
        ("execution__xla", True),
    ],
)
def test_settings_that_do_not_go_together(key, value):
    with planning.capture() as graph:
        train(classifier())
    name = key.replace("__", ".")
    with pytest.raises(UnsupportedError, match="%s.* does not go together with epl.split" % name):
        planning.compiled(graph, 2, 2, **{key: value})


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=needs_bfloat16)])
def test_mixed_precision(dtype):
    """What is divided is divided in 16 bits too, and gradients are judged in parts."""
    with planning.capture() as graph:
        hidden = tf.matmul(tf.placeholder(tf.float32, [None, 4]), tf.get_variable("first", [4, 4]))
        with epl.split(2):
            logits = tf.matmul(hidden, tf.get_variable("kernel", [4, 7]), name="logits")
        train(tf.losses.sparse_softmax_cross_entropy(tf.placeholder(tf.int64, [None]), logits))
    program = planning.compiled(graph, amp__level="O1", amp__dtype=dtype)
    done = program.partitioned
    assert {"kernel", "kernel/Adam", "kernel/Adam_1"} == _divided(program.plan)
    assert done.placements[computed_name("logits")] == sharded(1)
    sent = shards.exchanged(done, "Adam")
    assert not [c for c in sent if "logits_grad/MatMul_1" in c.tensor]  # the kernel's gradient
    judged = [c for c in sent if "finite" in c.tensor]
    assert [c.kind for c in judged] == (["all_reduce"] if dtype == "float16" else [])


def recomputed():
    x = tf.placeholder(tf.float32, [None, 4])
    with epl.recompute(), epl.split(2):
        hidden = tf.tanh(tf.matmul(x, tf.get_variable("up", [4, 8])))
        hidden = tf.tanh(tf.matmul(hidden, tf.get_variable("down", [8, 4])))
    return tf.reduce_mean(tf.square(hidden))


def test_what_is_computed_again_is_divided_too():
    with planning.capture() as graph:
        train(recomputed())
    again = [tensor for tensor in planning.compiled(graph).plan.partitioned.placements if "epl_recompute/" in tensor]
    assert again
    checked = {"gradient_checkpoint__type": "auto", "gradient_checkpoint__check_gradients": True}
    program = planning.compiled(graph, **checked)
    wholes = [name for each in program.checked for name in each.whole]
    assert len(wholes) == 2 * len(program.checked) > 0
    assert not {name + ":0" for name in wholes} & set(program.partitioned.placements)


def normalised(fused):
    x = tf.placeholder(tf.float32, [None, 4])
    with epl.split(2):
        hidden = tf.reshape(tf.matmul(x, tf.get_variable("up", [4, 8])), [-1, 1, 2, 4])
        hidden = tf.layers.batch_normalization(hidden, training=True, fused=fused)
        return tf.reduce_mean(tf.square(tf.matmul(tf.reshape(hidden, [-1, 8]), tf.get_variable("down", [8, 3])) - 0.5))


@pytest.mark.parametrize("fused, parts", [(True, [0, 1, 0, 1]), (False, [None] * 4)])
def test_statistics_of_copies_are_exchanged_between_devices_with_the_same_channels(fused, parts):
    with planning.capture() as graph:
        train(normalised(fused))
    assert not planning.compiled(graph, 1, 2, communication__sync_batch_norm=True).plan.batch_norms  # one copy
    program = planning.compiled(graph, 2, 2, communication__sync_batch_norm=True)
    found = [each for each in program.plan.collectives if each.purpose == STATISTICS]
    assert [each.shard_rank for each in found] == parts and {each.devices for each in found} == {2}
    assert len({each.name for each in found}) == 4 and not program.graph.find("FusedBatchNormV3".__eq__)


def with_a_collective():
    return classifier(hidden=epl.ops.all_reduce(tf.placeholder(tf.float32, [8, 4]), name="mine"))


def with_a_random_function():
    @tf.function
    def noisy(x):
        return x + tf.random.normal([4])

    return classifier(hidden=noisy(tf.placeholder(tf.float32, [8, 4])))


@pytest.mark.parametrize(
    "loss, message",
    [
        (with_a_collective, "'mine' is a collective that the program made with epl.ops"),
        (with_a_random_function, "draws random numbers or reads data, which does not go together with epl.split"),
    ],
)
def test_what_does_not_go_together(loss, message):
    with planning.capture() as graph:
        train(loss())
    with pytest.raises(UnsupportedError, match=message):
        planning.compiled(graph)


def test_layouts():
    with planning.capture() as graph:
        with epl.replicate(2):
            hidden = tf.tanh(tf.matmul(tf.placeholder(tf.float32, [8, 4]), tf.get_variable("first", [4, 4])))
        train(classifier(hidden=hidden))
    plan = planning.compiled(graph, devices=4).plan
    assert [plan.mesh.shape[axis] for axis in ("data", "stage", "shard")] == [1, 2, 2]
    with pytest.raises(PlanError, match="needs 4 devices .* or set cluster.colocate_split_and_replicate to let all"):
        planning.compiled(graph, workers=2, devices=1)
    for options in ({"devices": 1}, {"devices": 2, "cluster__device_place_prefer_intra_node": False}):
        plan = planning.compiled(graph, workers=4, **options).plan
        assert plan.mesh.pipeline.num_workers == 2 and plan.mesh.shape["data"] == options["devices"]
        assert plan.shards_span_workers == (options["devices"] == 1)
    with pytest.raises(UnsupportedError, match="3 devices each, 3 for each of 2 stages in 2 neighbours: 2 is neither"):
        planning.compiled(graph, workers=4, devices=3, cluster__device_place_prefer_intra_node=False)
    assert planning.compiled(graph, cluster__colocate_split_and_replicate=True).plan.mesh.num_shards == 2
    with planning.capture() as graph:
        train(classifier())
    assert planning.compiled(graph, workers=4, devices=1).plan.mesh.shape["data"] == 2
    with pytest.raises(UnsupportedError, match="2 is neither a divisor nor a multiple of 3"):
        planning.compiled(graph, workers=2, devices=3)
    with planning.capture() as graph:
        with epl.replicate(1):
            hidden = tf.tanh(tf.matmul(tf.placeholder(tf.float32, [None, 4]), tf.get_variable("first", [4, 4])))
        train(classifier(hidden=hidden))
    with pytest.raises(UnsupportedError, match="different device counts .* does not go together with epl.split"):
        planning.compiled(graph, devices=3)


def colocated(features, rows=None, classes=1000, update=True):
    """`features` of a batch in epl.replicate(2), a classifier of them in epl.split(2)."""
    with planning.capture() as graph:
        x, labels = tf.placeholder(tf.float32, [rows, 2], name="x"), tf.placeholder(tf.int32, [rows], name="labels")
        with epl.replicate(2):
            found = features(x)
        with epl.split(2):
            logits = tf.matmul(found, tf.get_variable("kernel", [int(found.shape[1]), classes]))
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(each)
        if update:
            tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    return graph


def hidden(x):
    return tf.nn.relu(tf.matmul(x, tf.get_variable("first", [2, 6])) + 1.0, name="hidden")


@pytest.mark.parametrize("rows", [None, 7, 8])
def test_each_device_computes_its_rows_of_what_is_replicated(rows):
    graph = colocated(hidden, rows)
    done = planning.compiled(graph, cluster__colocate_split_and_replicate=True).plan.partitioned
    assert done.placements["hidden"] == sharded(0)
    sent, activations = [(c.kind, c.phase, c.num_bytes) for c in done.collectives], (rows or 32) * 6 * 4
    along = [(kind, phase) for kind, phase, num_bytes in sent if num_bytes == activations]
    assert along == [("all_gather", "forward"), ("reduce_scatter", "backward")]
    # Besides these a few numbers for each row of the loss, and the gradient of what is on both devices.
    others = sorted((kind, num_bytes) for kind, _, num_bytes in sent if num_bytes != activations)
    row = (rows or 32) * 4
    assert others == sorted([("all_reduce", row), ("all_reduce", 2 * row), ("all_reduce", 2 * 6 * 4)])


def test_tokens_travel_to_experts_and_back():
    """Two all-to-alls forward and two backward."""
    with planning.capture() as graph:
        epl.set_default_strategy(epl.replicate(2))
        tokens = tf.placeholder(tf.float32, [4, 6, 64]) * tf.get_variable("gain", [64])
        y = tokens + split_models.experts(tokens, 4, 128, lambda: epl.split(2), capacity=2)
        tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(tf.tanh(y) - 1.0)), name="train")
    program = planning.compiled(graph, workers=2, devices=1, cluster__colocate_split_and_replicate=True)
    done = program.plan.partitioned
    assert done.placements["experts/up"] == done.placements["experts/down"] == sharded(0)
    routed = 4 * 4 * 2 * 64 * 4  # groups, experts, room, width, bytes
    sent = shards.exchanged(done, "train")
    large = [(c.kind, c.phase) for c in sent if c.num_bytes == routed]
    assert large == [("all_to_all", "forward")] * 2 + [("all_to_all", "backward")] * 2
    # The rest is gradients of what is on both devices.
    assert not [c for c in sent if c.num_bytes != routed and c.kind in ("all_to_all", "all_gather")]
    assert len([n for n in program.graph.nodes.values() if n.op == "EplAllToAll"]) >= 4


@pytest.mark.parametrize("classes", [7, 1000])
def test_logits_of_a_dense_loss_are_never_gathered(classes):
    """Nor are their gradients, though the loss reshapes both, and the graph does not know how many rows there are."""
    with planning.capture() as graph:
        train(classifier(classes=classes))
    program = planning.compiled(graph)
    assert program.plan.partitioned.placements["kernel"] == sharded(1)
    sent = [(c.kind, c.phase, c.num_bytes) for c in program.plan.partitioned.collectives]
    row = 32 * 4
    assert sent[:3] == [("all_reduce", "forward", row)] * 3
    assert sent[3:] == [("all_reduce", "backward", row)] * 2  # of the labels' gradient, which this loss has too


@pytest.mark.parametrize("inside", [True, False])
def test_rows_of_a_divided_table_come_to_the_devices_that_divide_the_batch(inside):
    with planning.capture() as graph:
        epl.set_default_strategy(epl.replicate(2))
        ids = tf.placeholder(tf.int32, [8, 3], name="ids")
        with epl.split(2):
            table = tf.get_variable("table", [100, 16])
            rows = tf.nn.embedding_lookup(table, ids) if inside else None
        rows = rows if inside else tf.nn.embedding_lookup(table, ids)
        y = tf.tanh(tf.matmul(tf.reshape(rows, [8, 48]), tf.get_variable("kernel", [48, 4])), name="hidden")
        tf.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(tf.square(y - 1.0)), name="train")
    done = planning.compiled(graph, cluster__colocate_split_and_replicate=True).plan.partitioned
    assert done.placements["table"] == done.placements["table/Adagrad"] == done.placements["hidden"] == sharded(0)
    forward = [(c.kind, c.num_bytes) for c in shards.exchanged(done, "train") if c.phase == "forward"]
    assert forward == [("reduce_scatter", 8 * 3 * 16 * 4)]


@pytest.mark.parametrize("op", ["reverse", "cond"])
def test_what_needs_all_rows_is_computed_whole(caplog, op):
    def features(x):
        x = hidden(x)
        if op == "reverse":
            return tf.reverse(x, [0], name="needs_all")
        with planning.control_flow("v1"):
            return tf.ensure_shape(tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: 2.0 * x), [None, 6])

    caplog.set_level("INFO", "epl")
    done = planning.compiled(colocated(features), cluster__colocate_split_and_replicate=True).plan.partitioned
    assert "hidden" not in done.placements and "kernel" in done.placements
    assert "needs rows of the batch that other devices would have" in caplog.text


def test_data_in_a_branch():
    with planning.capture() as graph, planning.control_flow("v1"):
        x = tf.placeholder(tf.float32, [8, 4])
        hidden = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.py_func(lambda a: a, [x], tf.float32), lambda: x)
        train(classifier(hidden=tf.ensure_shape(hidden, [8, 4])))
    planning.compiled(graph)
    with pytest.raises(UnsupportedError, match="gives data in a loop or a branch, where the workers that divide"):
        planning.compiled(graph, workers=2, devices=1)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("shape, told", [(None, "of any rank"), ([None, 7], r"\?, 7")])
def test_variables_of_unknown_shape(shape, told, kept):
    with planning.capture() as graph:
        first = tf.placeholder_with_default(tf.zeros([4, 7]), shape)
        with epl.split(2):
            loss = classifier(scope=contextlib.suppress)
            late = tf.get_variable("late", initializer=first, validate_shape=False, use_resource=shape is not None)
            if kept:
                epl.whole(late)
            loss += tf.reduce_sum(tf.square(tf.ensure_shape(late, [4, 7])))
        train(loss)
    if kept:
        assert "kernel" in _divided(planning.compiled(graph).plan)
        return
    message = r"the shape of the variable 'late', which epl.split at .*test_split.py.* is not known \(%s\)" % told
    with pytest.raises(PlanError, match=message):
        planning.compiled(graph)


def test_a_scope_that_divides_nothing_is_named(caplog):
    with planning.capture() as graph:
        x = tf.placeholder(tf.float32, [8, 4])
        with epl.split(2):
            loss = tf.reduce_mean(tf.square(x))
        train(loss + tf.get_variable("bias", []))
    planning.compiled(graph)
    assert "holds no variable that can be divided" in caplog.text and "test_split.py" in caplog.text


@pytest.mark.skipif(tf_compat.line() == "tf1", reason="TensorFlow 1.15 takes the variable itself there")
def test_reference_variables_of_feature_columns_are_named(caplog):
    with planning.capture() as graph, epl.split(2):
        tf.disable_resource_variables()
        ids = tf.placeholder(tf.int64, [None])
        column = tf.feature_column.categorical_column_with_identity("word", 1000)
        words = tf.feature_column.input_layer({"word": ids}, [tf.feature_column.embedding_column(column, 16)])
        train(tf.reduce_mean(tf.square(words)))
    planning.compiled(graph)
    assert "'input_layer/word_embedding/embedding_weights' is a reference variable" in caplog.text
    assert "build it with use_resource=True, or call tf.enable_resource_variables()" in caplog.text


def test_the_table_says_what_is_divided_and_exchanged():
    with planning.capture() as graph:
        train(classifier())
        tf.train.Saver()
        tf.as_string(tf.get_default_graph().get_tensor_by_name("logits:0"), name="shown")
    text = plan_table(planning.compiled(graph).plan)
    assert "divided variables" in text and "3, over 2 devices" in text
    forward = next(line for line in text.splitlines() if "exchanges, forward" in line)
    assert "1 all_gather, 3 all_reduce; of tensors of 1.2 KiB" in forward  # 32 rows are supposed
    whole = [line for line in text.splitlines() if "takes whole inputs" in line]
    assert len(whole) == 1 and "'shown' (AsString)" in whole[0]


def replicated(x):
    """A graph that trains on a batch in epl.replicate(2)."""
    with epl.replicate(2):
        product = tf.tensordot(x, tf.get_variable("kernel", [4, 3]), [[1], [0]])
        train(tf.reduce_mean(tf.square(tf.tanh(product, name="hidden") - 1.0)))


@pytest.mark.parametrize("rows, kind", [(8, "rows"), (7, "rows"), (None, "replicate")])
def test_devices_divide_batches_of_a_fixed_size_by_rows(rows, kind):
    with planning.capture() as graph:
        data = tf.data.Dataset.from_tensor_slices(tf.ones([56, 4])).batch(rows or 8, drop_remainder=rows is not None)
        replicated(tf.data.make_one_shot_iterator(data).get_next())
    program = planning.compiled(graph, devices=4)
    assert [t.kind for t in program.taskgraphs] == [kind]
    if kind == "replicate":
        assert program.partitioned is None
    else:
        assert program.partitioned.placements["hidden"] == sharded(0) and not _divided(program.plan)
        assert program.plan.mesh.shape["data"] == 2


def test_settings_that_do_not_go_together_with_rows():
    with planning.capture() as graph:
        replicated(tf.placeholder(tf.float32, [8, 4]))
    message = "local_sgd.k_steps does not go together with epl.replicate.2. .* or use epl.replicate.1."
    with pytest.raises(UnsupportedError, match=message):
        planning.compiled(graph, 2, 2, local_sgd__k_steps=4)


@pytest.mark.parametrize("workers, devices", [(1, 2), (2, 1), (2, 2)])
def test_updates_in_groups_and_variables_that_are_compared(workers, devices):
    with planning.capture() as graph:
        hidden = tf.layers.dense(tf.placeholder(tf.float32, [None, 4]), 4, name="hidden")
        train(classifier(hidden=hidden))
    options = {"optimizer__num_apply_group": 2, "communication__check_replicas_every": 1}
    program = planning.compiled(graph, workers, devices, **options)
    assert program.plan.compared == program.variables.keys() and "kernel" in _divided(program.plan)
    for index in range(devices):
        assert program.plan.shard_of("kernel", index) == index and program.plan.shard_of("hidden/kernel", index) == 0
    ends = [name for name in program.graph.nodes if name.endswith("_apply/call_0/part_0/group_1")]
    assert len(ends) == devices


@pytest.mark.parametrize("level, clips", [("", False), ("v0", False), ("v1", True), ("v2", True), ("v3", False)])
def test_a_device_changes_a_variable_after_its_own_gradients_have_read_it(level, clips):
    """Reference variables: what one device of a copy gives for all must not let another update begin too early. Where
    one copy of the model alone has it, the gradients of the others have read it too."""
    with planning.capture() as graph:
        hidden = tf.layers.dense(tf.placeholder(tf.float32, [None, 4]), 4, name="first")
        with tf.variable_scope("", use_resource=False):
            loss = classifier(hidden=tf.layers.dense(hidden, 4, name="second"))
        adam = tf.train.AdamOptimizer(0.1)
        gradients, variables = zip(*adam.compute_gradients(loss))
        adam.apply_gradients(zip(tf.clip_by_global_norm(gradients, 1.0)[0] if clips else gradients, variables))
    program = planning.compiled(graph, 1, 4, zero__level=level, communication__clip_after_allreduce=clips)
    nodes = program.graph.nodes
    changes = [n for n in nodes if "/update_second/kernel/" in n or n.startswith("epl_zero/")]
    changes = [n for n in changes if nodes[n].op in ("ApplyAdam", "Assign")]
    changes = [n for n in changes if nodes[n].input[0].endswith("second/kernel")]
    owned = level in ("v2", "v3")
    assert len(changes) == (2 if owned else 4)
    for change in changes:
        own = nodes[change].input[0].rpartition("second/kernel")[0]
        places = ("", "epl_instance_2/") if not own else ("epl_instance_1/", "epl_instance_3/")
        for instance in places if owned else (own,):
            reader = instance + "gradients/second/MatMul_grad/MatMul"
            assert nodes[reader].op == "MatMul" and reader in program.graph.ancestors([change])


@pytest.mark.parametrize("level", ["v2", "v3"])
@pytest.mark.parametrize("workers, devices", [(1, 4), (2, 2), (4, 1)])
def test_copies_divide_parameters(level, workers, devices):
    """Of a part of a variable one copy of the model has all, and so of what is whole on its devices."""
    with planning.capture() as graph:
        with tf.variable_scope("", use_resource=level == "v2"):
            first = tf.get_variable("first", [4, 4])
            train(classifier(hidden=tf.matmul(tf.placeholder(tf.float32, [None, 4]), first)))
        tf.train.Saver()
    programs = [planning.compiled(graph, workers, devices, worker, zero__level=level) for worker in range(workers)]
    zero, found = programs[0].plan.zero, {}
    assert zero.parameters == {"first", "kernel"} and {each.owner for each in zero.updates} == {0, 1}
    assert all(each.plan.zero == zero for each in programs)
    for worker, program in enumerate(programs):
        for name, shape in shapes(program).items():
            device = worker * devices + int(program.graph.nodes[name].device.rpartition(":")[2])
            found.setdefault(name.rpartition("epl_instance_")[2].lstrip("0123456789/"), []).append((device, shape))
    for update in zero.updates:
        own = [2 * update.owner, 2 * update.owner + 1]
        sizes = ([4, 4], [4, 3]) if update.variable == "kernel" else ([4, 4], [4, 4])
        for name in (update.variable,) + update.slots:
            assert sorted(found[name]) == list(zip(own, sizes))
    parts = [segment.variables for segment in zero.segments]
    assert parts == [("first",), ("kernel",)] + ([("kernel",), ("first",)] if level == "v3" else [])


def test_segments_are_collectives_of_the_devices_that_have_the_same_part():
    with planning.capture() as graph:
        first = tf.get_variable("first", [4, 4])
        train(classifier(hidden=tf.matmul(tf.placeholder(tf.float32, [None, 4]), first)))
    for worker in range(2):
        program = planning.compiled(graph, 2, 2, worker, zero__level="v2")
        plan, nodes = program.plan, program.graph.nodes
        names = ["epl_zero/segment_0/gather"] + [
            "epl_zero/segment_1/gather/part_%d" % shard_rank for shard_rank in range(2)
        ]
        assert sorted(name for name in nodes if nodes[name].op == "EplAllGather" and "segment" in name) == names
        for shard_rank, width in enumerate((4, 3)):
            taken = nodes[clone_name("epl_zero/segment_1/0", shard_rank)].input[0]
            assert names[1 + shard_rank] in program.graph.ancestors([taken])
            assert names[2 - shard_rank] not in program.graph.ancestors([taken])
        own = {update.variable for update in plan.zero.updates if update.owner == worker}
        assert plan.sent_bytes(PARAMETERS) == 4 * sum({"first": 16, "kernel": 28}[name] for name in own)


@pytest.mark.parametrize("level", ["v1", "v2", "v3"])
def test_one_copy_of_a_divided_model_has_all_parameters(level):
    with planning.capture() as graph:
        train(classifier())
    want, got = planning.compiled(graph), planning.compiled(graph, zero__level=level)
    assert got.plan.zero is None
    assert want.graph.to_graph_def(tf.GraphDef) == got.graph.to_graph_def(tf.GraphDef)
