"""What each worker of a pipeline gets of a graph, and that their parts run to the end together."""

import collections
import types

import hypothesis
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import strategies as st

import epl
from epl import compiler
from epl.capture.record import make_program
from epl.communicators import library
from epl.config import Config
from epl.errors import PassError, UnsupportedError
from epl.graph.control_flow import frames_of
from epl.graph.index import node_of
from epl.rules.effects import ENTERS
from epl.session.parts import communicators, fetched_messages, needed_messages, own_targets, own_tensor
from tests.helpers import planning
from tests.helpers.control_flow import control_flow
from tests.helpers.programs import random_models

pytestmark = pytest.mark.either_line


def parts_of(graph, workers, devices=1, **keys):
    """What each worker of the first copy of the model has: its Part with its graph, and the Plans."""
    found = [planning.compiled(graph, workers, devices, index, **keys) for index in range(workers)]
    found = [program for program in found if program.plan.mesh.copies.index == 0]
    parts = [types.SimpleNamespace(graph=p.graph, is_here=p.has, of=p.part, **vars(p.part)) for p in found]
    return parts, [program.plan for program in found]


def stages(count, body=None):
    """The training of a model with a dense layer in each of `count` scopes; the first one's input is used by all."""
    start = x = tf.placeholder(tf.float32, [None, 4], "x")
    for stage in range(count):
        with epl.replicate(device_count=1, name="stage_%d" % stage):
            x = tf.tanh(tf.matmul(x, planning.variable("w%d" % stage)) + start)
            x = x if body is None else body(stage, x)
            loss = tf.reduce_mean(tf.square(x), name="loss_%d" % stage)
    step = tf.train.get_or_create_global_step()
    return tf.train.AdamOptimizer(0.1).minimize(loss, global_step=step)


def run_to_the_end(parts):
    """Runs all nodes of all parts in some order that their inputs and the channels allow; returns those left over."""
    queues = collections.defaultdict(collections.deque)
    for message in parts[0].messages:
        queues[message.channel].append(message)
    waiting = [{name: len(node.input) for name, node in part.graph.nodes.items()} for part in parts]
    received = {message.receive for message in parts[0].messages}
    ready = [(part, name) for part, left in enumerate(waiting) for name, count in left.items() if count == 0]
    ready, sent = [(part, name) for part, name in ready if name not in received], set()
    for left, part in zip(waiting, parts):
        for name, node in part.graph.nodes.items():
            if node.op == "NextIteration":
                for consumer, _ in part.graph.consumers.get(name, ()):
                    left[consumer] -= 1
                    ready.extend([(parts.index(part), consumer)] if left[consumer] == 0 else [])
    while ready:
        index, name = ready.pop()
        del waiting[index][name]
        sent.add(name)
        for queue in queues.values():
            while queue and queue[0].send in sent:
                message = queue.popleft()
                ready.append((message.target, message.receive))
        if parts[index].graph.nodes[name].op == "NextIteration":
            continue
        for consumer, _ in parts[index].graph.consumers.get(name, ()):
            waiting[index][consumer] -= 1
            if waiting[index][consumer] == 0:
                ready.append((index, consumer))
    return [sorted(left) for left in waiting]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_parts_fit_together(micro_batches):
    with planning.capture() as graph:
        stages(2)
    (first, second), _ = parts_of(graph, 2, pipeline__num_micro_batch=micro_batches)
    assert first.messages == second.messages and first.channels == second.channels
    assert first.holders == second.holders
    for name in first.whole.nodes:
        if name.startswith("epl_broadcast/"):  # what the chief sends and others receive
            continue
        own = [part.index for part in (first, second) if name in part.graph.nodes]
        assert own == (list(first.holders[name]) if name in first.holders else [0, 1])
    for part in (first, second):
        sends = {n for n, node in part.graph.nodes.items() if node.op == "EplBroadcastSend" and "message/" in n}
        assert sends == {m.send for m in part.messages if m.source == part.index}
        receives = {n for n, node in part.graph.nodes.items() if node.op == "EplBroadcastReceive" and "message/" in n}
        assert receives == {m.receive for m in part.messages if m.target == part.index}
    assert "w0" in first.graph.nodes and "w0" not in second.graph.nodes
    assert "w0/Adam" in first.graph.nodes and "w1/Adam" in second.graph.nodes and "w1/Adam" not in first.graph.nodes
    assert all("global_step" in part.graph.nodes and "beta1_power" in part.graph.nodes for part in (first, second))


def test_a_variable_of_one_stage_and_its_gradient_travel():
    with planning.capture() as graph:
        with epl.replicate(device_count=1):
            table = planning.variable("table")
            x = tf.matmul(tf.placeholder(tf.float32, [None, 4]), table)
        with epl.replicate(device_count=1):
            loss = tf.reduce_mean(tf.square(tf.matmul(tf.tanh(x), table, transpose_b=True)))
        planning.sgd(loss)
    (first, second), _ = parts_of(graph, 2)
    assert "table" in first.graph.nodes and "table" not in second.graph.nodes
    sent = {m.tensor for m in first.messages if m.source == 0}
    assert "table/read" in sent and node_of("MatMul") in sent
    assert any("gradients" in m.tensor for m in first.messages if m.source == 1)


def test_assignments_wait_for_what_reads_before_gradients_of_other_workers():
    """tf.tuple over the gradients of both stages: the second's weight is read for the gradient of the first's."""
    with planning.capture() as graph:
        with epl.replicate(device_count=1):
            x = tf.matmul(tf.placeholder(tf.float32, [None, 4]), planning.variable("w0"))
        with epl.replicate(device_count=1):
            loss = tf.reduce_mean(tf.square(tf.matmul(x, planning.variable("w1"))))
        variables = tf.trainable_variables()
        gradients = tf.tuple(tf.gradients(loss, variables))
        updates = [tf.assign_sub(v, g, name="by_hand_" + v.op.name) for v, g in zip(variables, gradients)]
        tf.group(*updates)
    parts, _ = parts_of(graph, 2)
    (sent,) = [m for m in parts[1].messages if m.source == 1 and "gradients" in m.tensor]
    assert node_of(sent.tensor) in parts[1].graph.ancestors(["by_hand_w1"])
    assert len(planning.of_op(parts[1].graph, "NoOp")) <= len(planning.of_op(parts[1].whole, "NoOp")) + 2
    assert run_to_the_end(parts) == [[]] * 2


@pytest.mark.parametrize("resource", [False, True])
def test_a_value_is_sent_as_it_is_before_a_change_that_waits_for_its_use(resource):
    """A learning rate that follows from the loss: the first stage's update takes the one of before."""
    with planning.capture() as graph:
        with epl.replicate(device_count=1):
            x = tf.matmul(tf.placeholder(tf.float32, [None, 4]), planning.variable("w0"))
        with epl.replicate(device_count=1):
            loss = tf.reduce_mean(tf.square(tf.matmul(x, planning.variable("w1"))))
            rate = planning.variable("rate", [], use_resource=resource, trainable=False)
        with tf.control_dependencies([tf.train.GradientDescentOptimizer(rate).minimize(loss)]):
            change = rate.assign(tf.minimum(0.1, loss)).op
    parts, _ = parts_of(graph, 2)
    (sent,) = [m for m in parts[1].messages if m.source == 1 and "GradientDescent" in m.consumers[0]]
    own = parts[1].graph
    (value,) = own.inputs[sent.send]
    copied = own.nodes[value.node].op == "Snapshot"
    assert copied == (not resource)
    assert not copied or value.node in {producer for producer, _ in own.inputs[change.name]}
    assert run_to_the_end(parts) == [[]] * 2


@hypothesis.settings(max_examples=12, deadline=None)
@hypothesis.given(
    count=st.integers(2, 4),
    micro_batches=st.integers(1, 5),
    strategy=st.sampled_from(["PreferForward", "PreferBackward", "ZeroBubble"]),
)
def test_parts_never_wait_for_each_other(count, micro_batches, strategy):
    with planning.capture() as graph:
        stages(count)
    parts, _ = parts_of(graph, count, pipeline__num_micro_batch=micro_batches, pipeline__strategy=strategy)
    assert len(parts) == count
    assert run_to_the_end(parts) == [[]] * count


def test_several_stages_of_a_worker_never_wait_either():
    with planning.capture() as graph:
        stages(4)
    keys = {"pipeline__num_micro_batch": 4, "pipeline__strategy": "Interleaved", "pipeline__num_chunks": 2}
    assert run_to_the_end(parts_of(graph, 2, **keys)[0]) == [[]] * 2
    assert run_to_the_end(parts_of(graph, 2, 2, pipeline__num_micro_batch=3)[0]) == [[]] * 2


def test_what_a_step_runs_on_each_worker():
    with planning.capture() as graph:
        train = stages(2)
    parts, plans = parts_of(graph, 2)
    whole = parts[0].whole
    reached = whole.ancestors([train.name, "loss_1"])
    for part, plan in zip(parts, plans):
        messages = needed_messages(part.of, reached, frozenset())
        assert messages and {m.source for m in messages} == {0, 1}
        targets = own_targets(part.of, (train.name,), reached, frozenset(), plan)
        run = part.graph.ancestors(targets)
        updates = {n for n in whole.nodes if "Adam/update_w" in n and whole.nodes[n].op == "ApplyAdam"}
        assert {n for n in updates if part.is_here(n)} == updates & run != set()
        assert "global_step" in run
    assert own_tensor(parts[1].of, "loss_1:0") == "loss_1:0"
    (fetched,) = fetched_messages(parts[0].of, ["loss_1:0", "global_step:0"])
    assert (fetched.source, fetched.target) == (1, 0)
    assert own_tensor(parts[0].of, "loss_1:0") == fetched.receive + ":0"
    groups = communicators(plans[0].mesh, parts[0].of, [], [fetched])
    assert [g.members for g in groups] == [(1, 0)] and groups[0].slot >= parts[0].first_slot


def test_evaluating_needs_no_gradients():
    with planning.capture() as graph:
        stages(2)
    parts, _ = parts_of(graph, 2)
    reached = parts[0].whole.ancestors(["loss_1"])
    assert {m.source for m in needed_messages(parts[0].of, reached, frozenset())} == {0}
    fed = frozenset(["Tanh_1"])
    assert needed_messages(parts[0].of, parts[0].whole.ancestors(["loss_1"], stop=fed), fed) == []


@pytest.mark.parametrize("restores", [True, False])
def test_checkpoints(restores):
    """The chief writes all, in parts; each worker reads what it has."""
    with planning.capture() as graph:
        stages(2)
        tf.train.Saver()
    (first, second), _ = parts_of(graph, 2)
    if restores:
        for part in (first, second):
            (restore,) = [n for n in planning.of_op(part.graph, "RestoreV2")]
            own = [v for v in ("w0", "w1") if v in part.graph.nodes]
            names = part.graph.nodes[restore.input[1]].attr["value"].tensor.string_val
            assert [n for n in (b"w0", b"w1") if n in names] == [v.encode() for v in own]
            assert len(names) == len(restore.attr["dtypes"].list.type)
        return
    assert planning.of_op(second.graph, "SaveV2") == planning.of_op(second.graph, "MergeV2Checkpoints") == []
    here, received = planning.of_op(first.graph, "SaveV2")
    (merge,) = planning.of_op(first.graph, "MergeV2Checkpoints")
    assert merge.name == "save/SaveV2" and not merge.attr["delete_old_dirs"].b
    assert not any("epl_message" in text for text in here.input[3:])
    own = [text for text in received.input[3:] if text[0] != "^"]
    assert own and all(text.startswith("epl_message/0/") for text in own)
    # What is received waits until the part before is written.
    assert all("^" + here.name in first.graph.nodes[node_of(text)].input for text in own)


def test_what_cannot_be_sent_is_refused():
    def loop(stage, x):
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, tf.tanh(y)), [0, x])[1]

    with planning.control_flow("v1"):
        with planning.capture() as graph:
            stages(2, loop)  # whole loops in a stage are fine
        assert run_to_the_end(parts_of(graph, 2)[0]) == [[]] * 2
        with planning.capture() as graph:
            x = tf.placeholder(tf.float32, [None, 4])

            def branch():
                with epl.replicate(device_count=1, name="first"):
                    y = tf.matmul(x, planning.variable("w0"))
                with epl.replicate(device_count=1, name="second"):
                    return tf.matmul(tf.tanh(y), planning.variable("w1"))

            planning.sgd(tf.reduce_mean(tf.cond(tf.placeholder(tf.bool, []), branch, lambda: x)))
        with pytest.raises(UnsupportedError, match="stands in a loop or a branch and is used by"):
            parts_of(graph, 2)


def test_resources_cannot_be_sent(monkeypatch):
    with planning.control_flow("v1"), planning.capture() as graph:
        x = tf.placeholder(tf.float32, [None, 4])
        with epl.replicate(device_count=1):
            x = tf.matmul(x, planning.variable("w0"))
            rows = tf.TensorArray(tf.float32, 1).write(0, x)
        with epl.replicate(device_count=1):
            loss = tf.reduce_mean(tf.square(tf.matmul(rows.stack()[0], planning.variable("w1"))))
        planning.sgd(loss)
    library.load()
    model = make_program(graph)
    handles = [n for n, node in model.graph.nodes.items() if node.op == "TensorArrayV3"]
    assert handles
    usual = compiler.make_plan

    def moved(*args):
        plan = usual(*args)
        for name in handles:  # as if the array itself depended on the data
            plan.owners[name] = 0
        return plan

    monkeypatch.setattr(compiler, "make_plan", moved)
    with pytest.raises(
        UnsupportedError, match="is in another stage and so in another worker, but a resource cannot be"
    ):
        compiler.compile(model, Config(), planning.cluster(2, 1))


def test_a_part_that_is_not_well_formed_is_refused(monkeypatch):
    def broken(program, plan):
        edit, part = program.graph.editor(), program.part
        edit.set_input(next(m.send for m in part.messages if m.source == part.index), 0, "gone")
        return program.with_graph(edit.finish())

    monkeypatch.setattr(compiler, "PASSES", compiler.PASSES + (broken,))
    with planning.capture() as graph:
        stages(2)
    with pytest.raises(
        PassError, match="after the pass 'broken' .*cut.*/send' has the input 'gone', which does not exist"
    ):
        parts_of(graph, 2)


def test_collectives_of_the_program_are_refused(monkeypatch):
    with planning.capture() as graph:
        monkeypatch.setattr(epl.Env.get(), "_cluster", planning.cluster(2, 1))
        with epl.replicate(device_count=1):
            x = tf.matmul(tf.placeholder(tf.float32, [None, 4]), planning.variable("w0"))
        with epl.replicate(device_count=1):
            x = epl.ops.all_reduce(tf.matmul(x, planning.variable("w1")), name="mine")
            planning.sgd(tf.reduce_mean(tf.square(x)))
    with pytest.raises(UnsupportedError, match="'mine' .EplAllReduce. is a collective .* lie in several workers"):
        planning.plan_of(graph, workers=2, devices=1)


def waiting_inside(graph):
    """(node of a loop, what it waits for) where cutting has let it wait for what stands for several others."""
    return [
        (name, producer)
        for name in frames_of(graph)
        if graph.nodes[name].op not in ENTERS
        for producer, _ in graph.inputs[name]
        if producer.startswith("epl_after/")
    ]


def test_loops_that_all_workers_count_wait_for_nothing_outside():
    """How often a loop goes round follows from constants, so both workers count it; what it pushes only one does."""
    with control_flow("v1"), planning.capture() as graph:
        loss, _ = random_models.named("random_model_5007")(lambda stage: epl.replicate(1), 2)
        planning.sgd(loss)
    options = dict(gradient_checkpoint__type="auto", pipeline__num_micro_batch=2)
    for worker in range(2):
        program = planning.compiled(graph, 2, 1, worker, **options)
        loops = [name for name, node in program.graph.nodes.items() if node.op == "LoopCond"]
        assert "epl_recompute/block_3/while/LoopCond" in loops
        assert not waiting_inside(program.graph)


@pytest.mark.parametrize("seed", [5006, 5027])
def test_averages_of_a_micro_batch_wait_for_no_backward_pass(seed):
    """What normalises a batch does not use the averages that it is given, so it may be computed again behind them."""
    with control_flow("v1"), planning.capture() as graph:
        loss, _ = random_models.named("random_model_%d" % seed)(lambda stage: epl.replicate(1), 2)
        planning.sgd(loss)
    program = planning.compiled(graph, 1, 2, gradient_checkpoint__type="auto", pipeline__num_micro_batch=2)
    again = [name for name in program.graph.nodes if name.startswith("epl_recompute/")]
    assert any(program.graph.nodes[name].op == "FusedBatchNormV3" for name in again)
