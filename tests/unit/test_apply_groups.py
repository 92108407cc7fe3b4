"""Updates in groups, one after the other: the same numbers to the last bit, an order that holds, less memory."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given
from hypothesis import strategies as st

import epl
from epl.capture.record import make_program
from epl.graph import tags
from epl.optimizers import fused_updates
from epl.plan.memory.apply_groups import balanced, plan_apply_groups
from epl.rules import effects
from epl.session.estimated_program import estimate_program
from tests.helpers.planning import ROWS, capture, compiled, control_flow, trained

pytestmark = pytest.mark.either_line

OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: tf.train.AdamOptimizer(0.01),
    "lamb": lambda: epl.optimizers.LambOptimizer(0.01),
}


def mlp(layers=6, width=8, resource=False):
    x = tf.placeholder(tf.float32, [ROWS, width], name="x")
    with tf.variable_scope("net", use_resource=resource):
        for i in range(layers):
            initializer = tf.random_normal_initializer(stddev=0.3, seed=i)
            x = tf.layers.dense(x, width, activation=tf.tanh, kernel_initializer=initializer)
    return tf.reduce_mean(tf.square(x))


def embeddings():
    x = tf.placeholder(tf.float32, [ROWS, 8], name="x")
    ids = tf.cast(tf.abs(x) * 5, tf.int32) % 12
    for i in range(4):
        table = tf.get_variable("table%d" % i, [12, 8], initializer=tf.random_normal_initializer(seed=i))
        x = x + tf.tanh(tf.reduce_mean(tf.nn.embedding_lookup(table, ids), axis=1))
    return tf.reduce_mean(tf.square(x))


def clipped(loss, optimizer, norm=0.5):
    optimizer = OPTIMIZERS[optimizer]()
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    gradients, _ = tf.clip_by_global_norm(gradients, norm)
    return optimizer.apply_gradients(zip(gradients, variables), tf.train.get_or_create_global_step())


def grouped(graph, groups, workers=1, devices=1, **config):
    return compiled(make_program(graph), workers, devices, optimizer__num_apply_group=groups, **config)


def check(build, groups=3, **config):
    """Trains with and without; returns the Program with groups."""
    with control_flow("v1"), capture(seed=5) as graph:
        loss, train = build()
        init = tf.global_variables_initializer()
        without, program = grouped(graph, 1, **config), grouped(graph, groups, **config)
    names = init.name, train.name, loss.name
    want, got = trained(without.graph, *names), trained(program.graph, *names)
    assert len(want) == len(got)
    for one, other in zip(want, got):
        np.testing.assert_array_equal(one, other)
    return program


def ends(graph):
    """The nodes at the ends of groups, in lists of those that follow each other."""
    found = [name for name, node in sorted(graph.nodes.items()) if tags.get_str(node, tags.ROLE) == "apply_group"]
    return [list(each) for _, each in itertools.groupby(found, key=lambda name: name.rpartition("/")[0])]


def assert_in_order(graph, groups, calls=1):
    """Each update of a group comes after all updates of the group before."""
    assert len(ends(graph)) == calls
    for chain in ends(graph):
        assert len(chain) == groups
        for before, end in zip(chain, chain[1:]):
            for producer, _ in graph.inputs[end]:
                assert effects.is_write(graph.nodes[producer].op)
                assert before in graph.ancestors([producer])


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_the_same_to_the_last_bit(optimizer, resource):
    def build():
        loss = mlp(resource=resource)
        return loss, clipped(loss, optimizer)

    assert_in_order(check(build).graph, 3)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_sparse_updates(optimizer):
    def build():
        loss = embeddings()
        return loss, OPTIMIZERS[optimizer]().minimize(loss)

    assert_in_order(check(build).graph, 3)


def test_accumulation():
    def build():
        loss = mlp()
        return loss, clipped(loss, "adam")

    with capture(seed=5) as graph:
        build()
        program = grouped(graph, 3, pipeline__num_micro_batch=2, communication__clip_after_allreduce=True)
    assert_in_order(program.graph, 3)


def test_each_optimizer_has_its_own_groups():
    def build():
        loss = mlp()
        variables = tf.trainable_variables()
        first = OPTIMIZERS["adam"]().minimize(loss, var_list=variables[:6])
        with tf.control_dependencies([first]):
            return loss, OPTIMIZERS["sgd"]().minimize(loss, var_list=variables[6:])

    assert_in_order(check(build, 2).graph, 2, calls=2)


def test_updates_that_need_each_other_stay_in_their_order():
    """The second optimizer's update of a variable waits for another one's by itself."""

    class InTurn(tf.train.GradientDescentOptimizer):
        last = None

        def _apply_dense(self, grad, var):
            with tf.control_dependencies([self.last] if self.last is not None else []):
                self.last = super(InTurn, self)._apply_dense(grad, var)
            return self.last

    def build():
        loss = mlp()
        return loss, InTurn(0.1).minimize(loss)

    program = check(build)
    assert not ends(program.graph)  # all of it is one unit


def test_a_variable_that_another_update_needs():
    """What an update reads of another variable is read as before: it must not wait until that has changed."""

    class Coupled(tf.train.GradientDescentOptimizer):
        def _resource_apply_dense(self, grad, var):
            other = tf.trainable_variables()[-2].read_value()
            with tf.control_dependencies([other]):
                pass
            return super(Coupled, self)._resource_apply_dense(grad * tf.reduce_mean(other), var)

    with capture(seed=5) as graph:
        Coupled(0.1).minimize(mlp(resource=True))
        program = grouped(graph, 3)
    reads = [n for n in program.graph.find("ReadVariableOp".__eq__) if tags.phase(program.graph.nodes[n]) == tags.APPLY]
    assert reads and not any(text[0] == "^" for n in reads for text in program.graph.nodes[n].input)


def test_who_fetches_a_clipped_gradient_does_not_train():
    with capture() as graph:
        loss = mlp()
        optimizer = OPTIMIZERS["adam"]()
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        gradients, norm = tf.clip_by_global_norm(gradients, 0.5)
        optimizer.apply_gradients(zip(gradients, variables))
        program = grouped(graph, 4)
    needed = program.graph.ancestors([g.op.name for g in gradients] + [norm.op.name])
    assert not any(effects.is_write(program.graph.nodes[n].op) for n in needed)
    assert_in_order(program.graph, 4)


@pytest.mark.parametrize("workers, devices", [(1, 2), (2, 2)])
def test_every_copy_of_the_model_has_its_own(workers, devices):
    with capture() as graph:
        clipped(mlp(), "adam")
        program = grouped(graph, 3, workers, devices, communication__clip_after_allreduce=True)
    found = ends(program.graph)
    assert [len(chain) for chain in found] == [3] * devices
    for chain in found:
        for before, end in zip(chain, chain[1:]):
            assert all(before in program.graph.ancestors([p]) for p, _ in program.graph.inputs[end])


@pytest.mark.parametrize("workers, devices", [(1, 2), (2, 1)])
def test_stages_do_not_wait_for_each_other(workers, devices):
    with capture() as graph:
        x = tf.placeholder(tf.float32, [ROWS, 8], name="x")
        for stage in range(2):
            with epl.replicate(1):
                for i in range(4):
                    x = tf.layers.dense(x, 8, activation=tf.tanh)
                loss = tf.reduce_mean(tf.square(x))
        clipped(loss, "adam")
        config = dict(pipeline__num_micro_batch=2, communication__clip_after_allreduce=True)
        program = grouped(graph, 2, workers, devices, **config)
    found = ends(program.graph)
    assert [len(chain) for chain in found] == [2] * devices
    for chain in found:
        inside = program.graph.ancestors(chain)
        assert not any(other in inside for others in found if others is not chain for other in others)


def peak_of_update(program):
    """Bytes that a step has at the most besides variables, by estimate: what is measured differs with the load."""
    (memory,) = estimate_program(program, ROWS)[0].values()
    return memory.peak_bytes - sum(memory.lasting.values())


def test_less_memory(monkeypatch):
    """What LAMB computes for each of twelve equal layers before it assigns anything: in six groups a sixth of that.

    Where it has no kernels, which compute in place.
    """
    mark, peaks = fused_updates.mark, []
    for groups, kernels in ((1, False), (6, False), (1, True), (6, True)):
        monkeypatch.setattr(fused_updates, "mark", mark if kernels else lambda *what: None)
        with capture() as graph:
            clipped(mlp(layers=12, width=128), "lamb")
            peaks.append(peak_of_update(grouped(graph, groups)))
    parameters = 12 * 128 * 129 * 4
    assert peaks[0] > 3 * parameters, peaks
    assert peaks[1] < 0.6 * peaks[0]
    assert max(peaks[2:]) < 1.1 * parameters, peaks


@pytest.mark.once
def test_less_memory_with_a_loss_scale(monkeypatch):
    """All gradients are there before the first group is updated, but not what updates need besides."""
    monkeypatch.setattr(fused_updates, "mark", lambda *what: None)
    peaks = []
    for groups in (1, 6):
        with capture() as graph:
            clipped(mlp(layers=12, width=128), "lamb")
            program = grouped(graph, groups, amp__level="O1", amp__dtype="float16", amp__loss_scale=8.0)
            peaks.append(peak_of_update(program))
    (chain,) = ends(program.graph)
    left_out = {write: around[-1] for write, around in program.plan.found_infs[0].gates.items()}
    for before, end in zip(chain, chain[1:]):
        through = {node for node, _ in program.graph.inputs[end]}
        writes = [write for write, last in left_out.items() if last in through]
        assert len(writes) == len(through)
        assert all(before in program.graph.ancestors([write]) for write in writes)
    assert peaks[1] < 0.7 * peaks[0], peaks


def test_nothing_is_grouped_unless_asked_for():
    with capture() as graph:
        clipped(mlp(), "adam")
        assert not ends(grouped(graph, 1).graph)


def test_groups_are_balanced():
    with capture() as graph:
        x = tf.placeholder(tf.float32, [ROWS, 8], name="x")
        for width in (8, 64, 8, 64, 8):
            x = tf.layers.dense(x, width, use_bias=False)
        tf.train.AdamOptimizer().minimize(tf.reduce_mean(x))
        program = grouped(graph, 1)
        (chain,) = plan_apply_groups(program, replace(program.plan, num_apply_group=2))
    assert [group.num_bytes for group in chain] == [4 * 2 * 512, 4 * (2 * 512 + 64)]


@given(st.lists(st.integers(0, 50), max_size=9), st.integers(1, 5))
def test_the_largest_part_is_as_small_as_can_be(sizes, count):
    parts = balanced(sizes, count)
    assert [i for begin, end in parts for i in range(begin, end)] == list(range(len(sizes)))
    assert len(parts) == min(count, len(sizes)) and all(begin < end for begin, end in parts)
    if sizes:
        cuts = itertools.combinations(range(1, len(sizes)), len(parts) - 1)
        best = min(max(sum(sizes[a:b]) for a, b in zip((0,) + cut, cut + (len(sizes),))) for cut in cuts)
        assert max(sum(sizes[begin:end]) for begin, end in parts) == best
