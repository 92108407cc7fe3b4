"""The rewrites, one by one and together, on small real models; nothing is run."""

import hashlib
import os

import pytest
import tensorflow.compat.v1 as tf
from google.protobuf import text_format

import epl
from epl import compiler, tf_compat
from epl.capture.record import make_program
from epl.config import Config
from epl.errors import PassError
from epl.graph import tags
from epl.graph.index import node_of
from epl.passes.model.place import place
from epl.plan.facts.names import clone_name, copy_name, merged_name, sync_name
from tests.helpers import planning, processes
from tests.helpers.planning import capture, control_flow, of_op, rewritten, variable

pytestmark = pytest.mark.either_line

CPU = "/job:localhost/replica:0/task:0/device:CPU:%d"


def collectives(graph):
    return [node for node in graph.nodes.values() if tags.get_str(node, tags.ROLE) == "collective"]


def training_collectives(graph):
    return [node for node in collectives(graph) if node.op in ("EplAllReduce", "EplAllGather")]


def on(node, device):
    return node.device == CPU % device


# ---------------------------------------------------------------------------------------------------------------------
# Copies.


@pytest.mark.parametrize("resource", [False, True])
def test_clones(resource):
    with capture() as graph:
        tf.train.MomentumOptimizer(0.1, 0.9).minimize(planning.layers(1, resource))
    _, plan, after = rewritten(graph, 1, 3)
    cloned = plan.analysis.cloned
    assert {"w0", "b0", "w0/Momentum", "IteratorGetNext"} <= cloned and "IteratorV2" not in cloned
    assert sum(tags.INSTANCE in node.attr for node in after.nodes.values()) == 2 * len(cloned)
    for name in cloned:
        assert tags.INSTANCE not in after.nodes[name].attr  # instance 0 keeps the user's names
        for instance in (1, 2):
            clone = after.nodes[clone_name(name, instance)]
            assert tags.get_int(clone, tags.INSTANCE, -1) == instance and clone.op == after.nodes[name].op
            assert on(clone, instance) and on(after.nodes[name], 0)
            # Nothing of a copy comes from another copy of the same thing.
            for text in clone.input:
                assert node_of(text) not in cloned, (clone.name, text)


def test_resources_of_clones_are_their_own():
    with capture() as graph:
        planning.sgd(planning.layers(1, resource=True))
    _, _, after = rewritten(graph, 1, 2)
    handles = of_op(after, "VarHandleOp")
    names = [node.attr["shared_name"].s for node in handles]
    assert len(handles) == 4 and len(set(names)) == 4 and b"" not in names


@pytest.mark.parametrize("resource", [False, True])
def test_loops_of_clones_have_frames_of_their_own(resource):
    with control_flow("v1"), capture() as graph:
        w = variable("w", use_resource=resource)
        _, y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.matmul(y, w)), [0, planning.batch()])
        planning.sgd(tf.reduce_mean(y))
    _, _, after = rewritten(graph, 1, 2)
    frames = [set(), set()]
    for node in of_op(after, "Enter"):
        frames[tags.get_int(node, tags.INSTANCE)].add(node.attr["frame_name"].s)
    assert frames[0] and len(frames[0]) == len(frames[1]) and not frames[0] & frames[1]


def test_colocation_groups_stay_within_a_copy():
    with capture() as graph:
        planning.sgd(planning.layers(1))
    _, plan, after = rewritten(graph, 1, 2)
    groups = 0
    for node in after.nodes.values():
        for group in node.attr["_class"].list.s if "_class" in node.attr else ():
            other = after.nodes[group[5:].decode()]
            groups += 1
            assert other.device == node.device, node.name
            assert tags.get_int(other, tags.INSTANCE) == tags.get_int(node, tags.INSTANCE), node.name
    assert groups >= 4


def test_data_comes_from_one_iterator():
    with capture() as graph:
        planning.sgd(planning.layers())
    _, _, after = rewritten(graph, 1, 2)
    (iterator,) = of_op(after, "IteratorV2")
    nexts = of_op(after, "IteratorGetNext")
    assert len(nexts) == 2 and [node.input[0] for node in nexts] == [iterator.name] * 2
    assert len(of_op(after, "MakeIterator")) == 1


def test_tables_and_queues_are_shared():
    with capture() as graph:
        queue = tf.FIFOQueue(10, [tf.string], [[]])
        queue.enqueue(["a"])
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant(["a"]), tf.constant([1], tf.int64)), 0)  # fmt: skip
        ids = table.lookup(queue.dequeue_many(4))
        planning.sgd(tf.reduce_mean(tf.gather(variable("t", [10, 4]), ids)))
    _, _, after = rewritten(graph, 1, 2)
    assert len(of_op(after, "FIFOQueueV2")) == 1 and len(of_op(after, "HashTableV2")) == 1
    assert len(of_op(after, "QueueEnqueueV2")) == 1 and len(of_op(after, "LookupTableImportV2")) == 1
    assert len(of_op(after, "QueueDequeueManyV2")) == 2 and len(of_op(after, "LookupTableFindV2")) == 2


def test_placeholders():
    """Those of a batch are copied, as each copy is fed its part; others are one for all."""
    with capture() as graph:
        x = tf.placeholder(tf.float32, [None, 4], name="x")
        rate = tf.placeholder(tf.float32, [], name="rate")
        tf.train.GradientDescentOptimizer(rate).minimize(planning.layers(x=x))
    _, _, after = rewritten(graph, 1, 2)
    assert sorted(node.name for node in of_op(after, "Placeholder")) == sorted(["x", "rate", clone_name("x", 1)])


def test_large_constants_are_not_copied():
    with capture() as graph:
        table = tf.constant([[0.25] * 4 + [0.5] * 16380] * 4, name="table")  # 256 KiB
        planning.sgd(tf.reduce_mean(tf.matmul(planning.batch(), tf.matmul(variable("w"), table))))
    model, _, after = rewritten(graph, 2, 4)
    assert after.nodes["table"] is model.graph.nodes["table"]
    assert clone_name("table", 1) not in after.nodes
    assert sum("table" in node.input for node in of_op(after, "MatMul")) >= 4


def test_the_users_graph_stays_as_it_was():
    with capture() as graph:
        planning.sgd(planning.layers())
    before = graph.as_graph_def()
    model, _, after = rewritten(graph, 2, 2)
    assert graph.as_graph_def().SerializeToString(deterministic=True) == before.SerializeToString(deterministic=True)
    assert list(model.graph.nodes.values()) == list(tf_compat.tagged_graph_def(graph).node)
    assert len(after.nodes) > len(model.graph.nodes)


def test_one_device_has_nothing_added():
    with capture() as graph:
        planning.sgd(planning.layers())
    model, _, after = rewritten(graph, 1, 1)
    assert list(after.nodes) == list(model.graph.nodes)
    assert all(list(after.nodes[name].input) == list(node.input) for name, node in model.graph.nodes.items())


# ---------------------------------------------------------------------------------------------------------------------
# Gradients, state, outputs, first values.


def test_collectives_of_a_step():
    with capture() as graph:
        x = planning.batch()
        average = variable("average", [4], trainable=False)
        tf.assign_sub(average, 0.1 * (average - tf.reduce_mean(x, 0)), name="average_update")
        table = variable("table", [100, 4])
        rows = tf.gather(table, tf.cast(x[:, 0], tf.int32))
        loss = planning.layers(3, x=x) + tf.reduce_mean(rows)
        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        epl.add_to_collection(rows, epl.GraphKeys.LOCAL_CONCAT_OBJECTS)
        planning.sgd(loss)
    model, _, after = rewritten(graph, 2, 3)
    kinds = sorted((node.op, node.attr["R"].i, node.attr["workers"].i) for node in training_collectives(after))
    assert kinds == sorted(
        [("EplAllReduce", 3, 2)] * 3  # dense gradients in one group, the average, the loss
        + [("EplAllGather", 3, 2)] * 2  # values and indices of the sparse gradient
        + [("EplAllGather", 3, 1)]  # rows of this worker only
    )
    assert len({node.attr["tag"].i for node in collectives(after)}) == len(collectives(after))
    dense = rewritten(graph, 2, 3, communication__sparse_as_dense=True)[2]
    assert sum(node.op == "EplAllReduce" for node in training_collectives(dense)) == 4
    assert len(model.variables) == len(of_op(after, "EplBroadcastSend")) == 8


def test_every_copy_applies_the_same_aggregate():
    with capture() as graph:
        planning.sgd(planning.layers(2))
    _, plan, after = rewritten(graph, 1, 3)
    (group,) = plan.aggregation.groups
    reduce = after.nodes[group.name]
    assert list(reduce.input) == [clone_name(t, i) for i in range(3) for t in group.tensors]
    assert reduce.attr["scale"].f == pytest.approx(1 / 3) and reduce.attr["N"].i == 4
    applied = {}
    for node in of_op(after, "ApplyGradientDescent"):
        assert node_of(node.input[2]) == group.name
        applied.setdefault(node.input[2], []).append(tags.get_int(node, tags.INSTANCE))
    assert len(applied) == 4 and all(sorted(instances) == [0, 1, 2] for instances in applied.values())


def test_merged_outputs_leave_the_model_alone():
    with capture() as graph:
        loss = planning.layers()
        epl.add_to_collection(loss, epl.GraphKeys.LOCAL_SUM_OBJECTS)
        planning.sgd(loss)
    _, _, after = rewritten(graph, 1, 2)
    merge = after.nodes[merged_name(loss.op.name, epl.GraphKeys.LOCAL_SUM_OBJECTS)]
    assert list(merge.input) == [loss.op.name, clone_name(loss.op.name, 1)] and merge.attr["scale"].f == 1.0
    assert after.consumers.get(merge.name, []) == []


def test_outputs_whose_names_are_alike():
    """The second output of "x" and the operation "x_1" are two things."""
    with capture() as graph:
        first, second = tf.split(planning.batch(), 2, name="x")
        other = tf.identity(first, name="x_1")
        epl.add_to_collection([first, second, other], epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    _, plan, after = rewritten(graph, 1, 2)
    assert sorted(after.nodes[merge.name].input[0] for merge in plan.merges) == ["x", "x:1", "x_1"]


def test_shares_of_a_batch():
    with capture() as graph, epl.replicate(2):
        data = tf.data.Dataset.from_tensor_slices(tf.ones([8, 4])).batch(4)  # the last batch may be a short one
        planning.sgd(planning.layers(x=tf.data.make_initializable_iterator(data).get_next()))
    _, _, after = rewritten(graph, 1, 4)
    shares = of_op(after, "EplBatchShare")
    assert sorted((node.input[0], node.attr["index"].i) for node in shares) == [
        (name, index) for name in ("IteratorGetNext", clone_name("IteratorGetNext", 2)) for index in (0, 1)
    ]
    assert all(list(node.attr["weights"].list.i) == [1, 1] for node in shares)


@pytest.mark.parametrize("resource", [False, True])
def test_first_values(resource):
    with capture() as graph:
        planning.sgd(planning.layers(1, resource))
    chief, other = (rewritten(graph, 2, 2, index)[2] for index in (0, 1))
    assert len(of_op(chief, "EplBroadcastSend")) == 2 == len(of_op(other, "EplBroadcastReceive"))
    assert of_op(chief, "EplBroadcastReceive") == of_op(other, "EplBroadcastSend") == []
    for after, instances in ((chief, [1]), (other, [0, 1])):
        reached = after.ancestors([sync_name("w0"), copy_name("w0")])
        set_ = {
            node_of(after.nodes[n].input[0]) for n in reached if after.nodes[n].op in ("Assign", "AssignVariableOp")
        }
        assert set_ == {clone_name("w0", i) for i in instances}


# ---------------------------------------------------------------------------------------------------------------------
# Seeds.


def seeds(after, name):
    return [(node.attr["seed"].i, node.attr["seed2"].i) for node in after.nodes.values()
            if node.op == "RandomUniform" and (node.name == name or node.name.endswith("/" + name))]  # fmt: skip


def with_dropout(seed):
    with capture(seed) as graph:
        w = tf.get_variable("w", [4, 4], initializer=tf.random_uniform_initializer(seed=5 if seed else None))
        noise = tf.random_uniform([8, 4], name="noise")
        planning.sgd(tf.reduce_mean(tf.matmul(planning.batch() * noise, w)))
        initial = [
            op.name for op in graph.get_operations() if op.type == "RandomUniform" and not op.name.startswith("noise")
        ]
    return graph, initial[0]


def test_seeds_differ_by_instance_and_worker():
    graph, initial = with_dropout(seed=3)
    user = graph.get_operation_by_name("noise/RandomUniform")
    found = [pair for worker in range(2) for pair in seeds(rewritten(graph, 2, 2, worker)[2], "noise/RandomUniform")]
    assert len(found) == 4 and len(set(found)) == 4
    assert found[0] == (user.get_attr("seed"), user.get_attr("seed2"))  # rank 0 keeps the user's
    assert found == [
        pair for worker in range(2) for pair in seeds(rewritten(graph, 2, 2, worker, 99)[2], "noise/RandomUniform")
    ]
    first = [seeds(rewritten(graph, 2, 2, worker)[2], initial) for worker in range(2)]
    user = graph.get_operation_by_name(initial)
    assert first == [[(user.get_attr("seed"), user.get_attr("seed2"))]] * 2


def test_seeds_that_the_user_did_not_set():
    graph, initial = with_dropout(seed=None)
    after = [rewritten(graph, 2, 1, worker, job_seed=11)[2] for worker in range(2)]
    assert [seeds(each, "noise/RandomUniform") for each in after] == [[(0, 0)], [(0, 0)]]  # TensorFlow draws one each
    assert seeds(after[0], initial) == seeds(after[1], initial) != [(0, 0)]
    assert seeds(rewritten(graph, 2, 1, job_seed=12)[2], initial) != seeds(after[0], initial)


# ---------------------------------------------------------------------------------------------------------------------
# The same everywhere; a worker's part only.


def model_with_everything():
    """A model of all sorts, as it is built in each process of a job."""
    with capture(seed=1) as graph:
        x = planning.batch()
        table = variable("table", [50, 4])
        y = x * tf.random_uniform([8, 4]) + tf.gather(table, tf.cast(x[:, 0], tf.int32))
        loss = planning.layers(3, x=y)
        tf.metrics.mean(loss)
        epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
        epl.add_to_collection(y, epl.GraphKeys.LOCAL_CONCAT_OBJECTS)
        optimizer = tf.train.AdamOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss)
        clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 1.0)
        optimizer.apply_gradients([(g, v) for g, (_, v) in zip(clipped, pairs)])
    return graph


def digest(after):
    return hashlib.sha256(after.to_graph_def(tf_compat.GraphDef).SerializeToString(deterministic=True)).hexdigest()


def test_the_same_bytes_in_every_process(tmp_path):
    program = (
        "from tests.unit.test_passes import *; print('digest', digest(rewritten(model_with_everything(), 2, 2, 1)[2]))"
    )
    children = [
        processes.python(["-c", program], dict(os.environ, PYTHONHASHSEED=seed), tmp_path / seed) for seed in ("1", "2")
    ]
    ended = [child.wait(120) for child in children]
    lines = [[line for line in each.output.splitlines() if line.startswith("digest")] for each in ended]
    assert lines[0] == lines[1] != [], ended


def test_size_does_not_grow_with_the_workers():
    graph = model_with_everything()
    of_2, of_512 = (rewritten(graph, workers, 2, 1)[2] for workers in (2, 512))
    assert list(of_2.nodes) == list(of_512.nodes)
    last = rewritten(graph, 512, 2, 511)[2]
    assert list(last.nodes) == list(of_512.nodes)
    assert {tags.get_int(node, tags.INSTANCE) for node in last.nodes.values()} == {0, 1}


# ---------------------------------------------------------------------------------------------------------------------
# The runner.


def compile_with(graph, **options):
    return compiler.compile(make_program(graph), Config(), planning.cluster(), **options)


def test_dump(tmp_path):
    with capture() as graph:
        planning.sgd(planning.layers())
    after = compile_with(graph, dump_dir=str(tmp_path / "new" / "folder"))
    files = sorted(os.listdir(str(tmp_path / "new" / "folder")))
    files.remove("captured.pbtxt")
    assert all(any("%s.pbtxt" % name in file for file in files) for name in ("_place", "_aggregate_gradients"))
    assert len([name for name in files if name.endswith(".pbtxt")]) == len([n for n in files if n.endswith(".txt")])
    last = [name for name in files if name.endswith(".pbtxt")][-1]
    shown = text_format.Parse((tmp_path / "new" / "folder" / last).read_text(), tf_compat.GraphDef())
    assert shown == after.graph.to_graph_def(tf_compat.GraphDef)
    counts = next((tmp_path / "new" / "folder").glob("*_clone_instances.txt")).read_text()
    assert "+1  IteratorGetNext\n" in counts and "Iterator\n" not in counts


def test_dump_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("EPL_DUMP_DIR", str(tmp_path))
    with capture() as graph:
        planning.sgd(planning.layers())
    rewritten(graph)
    assert list(tmp_path.glob("*_place.pbtxt"))


def test_a_pass_that_breaks_the_graph_is_named(monkeypatch):
    with capture() as graph:
        loss = planning.layers()
        planning.sgd(loss)

    def break_it(program, plan):
        edit = program.graph.editor()
        edit.set_input(loss.op.name, 0, "gone")
        edit.set_input(loss.op.name, 1, "gone_too")
        return program.with_graph(edit.finish())

    monkeypatch.setattr(compiler, "PASSES", (place, break_it) + compiler.PASSES)
    with pytest.raises(PassError) as caught:
        compile_with(graph)
    text = str(caught.value)
    before = ", ".join(each.__name__ for each in tuple(f.apply for f in compiler.FEATURES) + (place,))
    assert "after the pass 'break_it' (ran before: %s)" % before in text and before.startswith("add_stages, ")
    assert "'%s' has the input 'gone', which does not exist" % loss.op.name in text and "1 further problem" in text


def test_a_broken_graph_is_refused_before_any_pass():
    with capture() as graph:
        planning.sgd(planning.layers())
    program = make_program(graph)
    del program.graph.nodes["w0"]
    with pytest.raises(PassError, match=r"the user's graph \(ran before: none\)"):
        compiler.compile(program, Config(), planning.cluster())


def test_seeds_outside_of_training_are_the_same_on_all_workers():
    with planning.capture() as graph:
        shuffled = tf.random_shuffle(tf.range(8), seed=3)
        planning.sgd(planning.layers(x=planning.batch()))
    nodes = [
        planning.rewritten(graph, workers=2, devices=1, index=index)[2].nodes[shuffled.op.name] for index in (0, 1)
    ]
    assert nodes[0].attr["seed2"].i == nodes[1].attr["seed2"].i == 3
