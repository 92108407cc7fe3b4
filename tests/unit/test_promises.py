"""What passes promise: each pass has a promise, and each promise finds passes that break it."""

import os

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl import compiler
from epl.capture.record import make_program
from epl.errors import PassError
from epl.graph import tags
from epl.graph.index import Graph
from epl.graph.node_defs import Type, make_node
from epl.passes.promises import EXCHANGE, PLAIN, PROMISES, VARIANTS, WRITE
from epl.plan.facts.names import average_name, clone_name, merged_name, read_name, saved_name, sync_name
from tests.helpers import planning
from tests.helpers.planning import capture, variable

pytestmark = pytest.mark.either_line

PASSES = [each.__name__ for each in tuple(feature.apply for feature in compiler.FEATURES) + compiler.PASSES]


def test_each_pass_has_a_promise():
    assert set(PASSES) == set(PROMISES)


# --- what a pass may do at all ---


def small():
    """The Program of x [2, 2] -> y = x * w -> z = y + y, with an Assign to w and a node that nobody takes."""
    with capture() as graph:
        x = tf.placeholder(tf.float32, [2, 2], name="x")
        y = tf.matmul(x, variable("w", [2, 2]), name="y")
        tf.add(y, y, name="z")
        tf.no_op(name="end")
    return make_program(graph)


def writes(edit):
    edit.add(make_node("Assign", "mine", ["w", "x"], T=Type(1)))


def exchanges(edit):
    edit.add(make_node("EplBarrier", "mine", []))


def computes(edit):
    edit.add(make_node("Square", "mine", ["x"], T=Type(1)))


def becomes(edit):
    edit.node("y").op = "Sub"
    for name in ("transpose_a", "transpose_b"):
        del edit.node("y").attr[name]


def rewires(edit):
    edit.set_input("z", 1, "x")


def waits(edit):
    edit.node("z").input.append("^end")


def sets(edit):
    edit.node("y").attr[tags.TASKGRAPH].i = 7


# What a pass does wrongly -> whether its footprint allows that.
TRESPASSES = {
    writes: lambda footprint: WRITE in footprint.adds or footprint.copies,
    exchanges: lambda footprint: EXCHANGE in footprint.adds,
    computes: lambda footprint: PLAIN in footprint.adds,
    becomes: lambda footprint: footprint.becomes is None,
    rewires: lambda footprint: footprint.rewires,
    waits: lambda footprint: footprint.waits or footprint.rewires,
    sets: lambda footprint: footprint.sets,
}
SAID = {
    writes: "adds 'mine', a node of the type Assign",
    exchanges: "adds 'mine', a node of the type EplBarrier",
    computes: "adds 'mine', a node of the type Square",
    becomes: r"makes 'y' \(MatMul\) a Sub",
    rewires: r"changes what 'z' \(Add(V2)?\) takes",
    waits: r"changes what 'z' \(Add(V2)?\) waits for",
    sets: r"changes attributes of 'y' \(MatMul\)",
}


def run(name, change, program):
    """Runs a pass of that name that makes a change of the program's graph."""

    def wrong(before, _):
        edit = before.graph.editor()
        change(edit)
        return before.with_graph(edit.finish())

    wrong.__name__ = name
    return compiler._Runner(program, None).run(wrong, program, None)


@pytest.mark.parametrize("name", PASSES + sorted(VARIANTS))
def test_a_pass_that_does_what_it_may_not(name):
    program, footprint = small(), dict(PROMISES, **VARIANTS)[name].footprint
    forbidden = [change for change, allowed in TRESPASSES.items() if not allowed(footprint)]
    assert forbidden
    for change in forbidden:
        with pytest.raises(
            PassError, match="after the pass '%s' .* graph is not as it must be: %s" % (name, SAID[change])
        ):
            run(name, change, program)


@pytest.mark.parametrize("name", sorted(set(PASSES).union(VARIANTS) - {"cut"}))
def test_a_pass_that_loses_a_node(name):
    program = small()

    def wrong(before, _):
        nodes = {key: node for key, node in before.graph.nodes.items() if key != "end"}
        return before.with_graph(Graph(nodes, before.graph.library, before.graph.versions))

    wrong.__name__ = name
    with pytest.raises(PassError, match="after the pass '%s' .*: node 'end' is gone" % name):
        compiler._Runner(program, None).run(wrong, program, None)


# --- what has to be done ---


def trained(optimizer=planning.sgd):
    with capture() as graph:
        loss = planning.layers(1)
        epl.add_to_collection(loss, epl.GraphKeys.LOCAL_MEAN_OBJECTS)
        moving = variable("moving", [4], trainable=False)
        tf.train.Saver()
        update = tf.assign_sub(moving, (moving - tf.reduce_mean(planning.batch(), 0)) * 0.1)
        with tf.control_dependencies([update]):
            optimizer(loss)
    return graph


def momentum(loss):
    tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)


def without(*names):
    """A pass does its work, but for some nodes: they, and what takes them, are not there."""

    def spoil(before, after):
        gone = after.graph.descendants(names)
        assert gone & set(names)
        nodes = {name: node for name, node in after.graph.nodes.items() if name not in gone}
        return after.with_graph(Graph(nodes, after.graph.library, after.graph.versions))

    return spoil


def undone(before, after):
    """A pass changes nothing but adds a node that nobody takes."""
    edit = before.graph.editor()
    edit.add(make_node("NoOp", "nothing", []))
    return after.with_graph(edit.finish())


def not_placed(before, after):
    edit = after.graph.editor()
    edit.node("w0").device = ""
    return after.with_graph(edit.finish())


def mixed_up(before, after):
    """A copy takes what the first copy computes."""
    edit = after.graph.editor()
    matmul = next(node.name for node in planning.of_op(before.graph, "MatMul"))
    edit.set_input(clone_name(matmul, 1), 1, before.graph.nodes[matmul].input[1])
    return after.with_graph(edit.finish())


def saves_values(before, after):
    """A checkpoint takes a variable and not its average."""
    edit = after.graph.editor()
    (save,) = planning.of_op(after.graph, "SaveV2")
    places = [i for i, text in enumerate(save.input) if text == saved_name("w0")]
    edit.set_input(save.name, places[0], "w0")
    return after.with_graph(edit.finish())


LOCAL_SGD = {"local_sgd__k_steps": 2}
COMPARED = {"communication__check_replicas_every": 1}
OFFLOADED = {"offload__level": "state"}


SPOILED = [
    ("place", not_placed, {}, "node 'w0' has no device"),
    ("clone_instances", undone, {}, "instance 1 has no copy of"),
    ("clone_instances", mixed_up, {}, "' takes '.*' of instance 0"),
    ("aggregate_gradients", undone, {}, "before it is merged"),
    ("merge_state", undone, {}, "before it is merged"),
    ("merge_outputs", undone, {}, "there is no node '%s'" % merged_name("loss", epl.GraphKeys.LOCAL_MEAN_OBJECTS)),
    ("broadcast_variables", without(sync_name("w0")), {}, "there is no node '%s'" % sync_name("w0")),
    ("read_copies", undone, COMPARED, "there is no node '%s'" % read_name("b0", 0)),
    ("average_variables", undone, LOCAL_SGD, "there is no node '%s'" % average_name()),
    ("update_on_host", undone, OFFLOADED, "/ApplyMomentum' on .*CPU:0 changes '.*' on .*CPU:1"),
    ("save_averages", undone, LOCAL_SGD, "there is no node '%s'" % saved_name("w0")),
    ("save_averages", saves_values, LOCAL_SGD, "takes 'w0' and not '%s'" % saved_name("w0")),
]


def test_what_each_pass_has_to_do_is_left_undone_once():
    elsewhere = {"share_queues": "test_shared_state.py", "keep_positions": "test_positions.py"}
    assert {name for name, each in PROMISES.items() if each.kept} == {name for name, *_ in SPOILED}.union(elsewhere)
    for name, file in elsewhere.items():
        with open(os.path.join(os.path.dirname(__file__), file)) as tests:
            assert 'PROMISES["%s"]' % name in tests.read()


@pytest.mark.parametrize("name, spoil, config, said", SPOILED)
def test_a_pass_that_does_not_do_its_work(monkeypatch, name, spoil, config, said):
    graph = trained(momentum) if config is OFFLOADED else trained()
    planning.compiled(graph, 2, 2, **config)
    spoiled = []

    def wrong(program, plan):
        after = right(program, plan)
        assert after.graph is not program.graph
        spoiled.append(name)
        return spoil(program, after)

    passes = [feature.apply for feature in compiler.FEATURES] + list(compiler.PASSES)
    (right,) = [pass_ for pass_ in passes if pass_.__name__ == name]
    wrong.__name__ = name
    features = tuple(each._replace(apply=wrong) if each.apply is right else each for each in compiler.FEATURES)
    monkeypatch.setattr(compiler, "FEATURES", features)
    monkeypatch.setattr(compiler, "PASSES", tuple(wrong if each is right else each for each in compiler.PASSES))
    with pytest.raises(PassError, match="after the pass '%s' .*%s" % (name, said)):
        planning.compiled(graph, 2, 2, **config)
    assert spoiled == [name]
