"""Where the variables of models are, along each axis of the mesh, and what follows from it."""

import json

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.passes.worker.broadcast import sync_orders
from epl.plan.facts.names import sync_name
from epl.program.collective import tag_of
from epl.program.placement import AS_FIRST, EVERYWHERE, MEAN, OWN, TURNED, Placed, own, owned, partial, sharded
from tests.helpers import planning


def placed(graph, workers=1, devices=2, **config):
    """(Plan, dict of the variables that are not the same everywhere to where they are)."""
    plan = planning.compiled(graph, workers, devices, **config).plan
    return plan, plan.placements


def adam():
    with planning.capture() as graph:
        tf.train.AdamOptimizer(0.1).minimize(planning.layers(1))
    return graph


def test_copies_of_a_model_hold_the_same():
    plan, found = placed(adam(), communication__check_replicas_every=1)
    assert found == {} and plan.placed("w0") == EVERYWHERE and str(EVERYWHERE) == "whole"
    assert plan.compared == plan.variables.keys() and plan.averaged == frozenset()
    assert placed(adam())[0].compared == frozenset()


@pytest.mark.parametrize("workers, devices", [(2, 1), (1, 2), (2, 2)])
def test_state_has_one_owner(workers, devices):
    copies = workers * devices
    plan, found = placed(adam(), workers, devices, zero__level="v0")
    assert found.keys() == {"w0/Adam", "w0/Adam_1", "b0/Adam", "b0/Adam_1"}
    assert {each.data for each in found.values()} <= {owned(rank, copies) for rank in range(copies)}
    assert {each.data.rank for each in found.values()} == {0, 1}
    assert found["w0/Adam"] == found["w0/Adam_1"] != found["b0/Adam"]
    assert all(plan.only_holder(name) == each.data.rank // devices for name, each in found.items())
    assert json.loads(plan.to_json())["variables"] == {name: str(each) for name, each in found.items()}
    assert sync_orders(plan, "w0/Adam") == {} and str(found["w0/Adam"]) == "owned(0 of %d) over data" % copies


def test_state_of_which_each_worker_has_all():
    plan, found = placed(adam(), 2, 2, zero__level="v0", zero__degree=2)
    assert {each.data for each in found.values()} == {owned(0, 2), owned(1, 2)}
    assert all(plan.only_holder(name) is None for name in found)
    assert sync_orders(plan, "w0/Adam") == {0: [tag_of(sync_name("w0/Adam"))]}


def test_parameters_have_the_owner_of_their_state():
    _, found = placed(adam(), 2, 1, zero__level="v3")
    assert found["w0"] == found["w0/Adam"] and found["b0"] == found["b0/Adam_1"] and len(found) == 6


def test_a_variable_that_is_divided_is_divided_with_its_slots():
    with planning.capture() as graph:
        with epl.split(2):
            kernel = tf.get_variable("kernel", [4, 7])
            loss = tf.reduce_sum(tf.square(tf.matmul(tf.placeholder(tf.float32, [None, 4]), kernel)))
        tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    plan, found = placed(graph, 2, 1)
    assert found == {"kernel": Placed(shard=sharded(1)), "kernel/Momentum": Placed(shard=sharded(1))}
    assert plan.spans_workers("kernel") and plan.only_holder("kernel") is None
    assert not placed(graph, 1, 2)[0].spans_workers("kernel")


def test_what_is_whole_on_the_workers_of_its_owner_is_the_same_there():
    """Those that have parts of one copy of the model get it from the first of them."""
    with planning.capture() as graph:
        hidden = tf.matmul(tf.placeholder(tf.float32, [None, 4]), tf.get_variable("first", [4, 4]))
        with epl.split(2):
            loss = tf.reduce_sum(tf.square(tf.matmul(hidden, tf.get_variable("kernel", [4, 7]))))
        tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    plans = [planning.compiled(graph, 4, 1, worker, zero__level="v2").plan for worker in range(4)]
    found = plans[0].placements
    assert found["first"] == Placed(data=owned(1, 2)) and found["kernel"] == Placed(owned(0, 2), shard=sharded(1))
    assert [plan.only_holder("first") for plan in plans] == [2] * 4
    shards = plans[0].mesh.tensor_group.communicator(0)
    for plan in plans:
        assert sync_orders(plan, "first") == {shards: [tag_of(sync_name("first"))]}
        assert sync_orders(plan, "kernel") == {}


def test_stages_in_several_workers_have_their_own_variables():
    with planning.capture() as graph:
        x = tf.placeholder(tf.float32, [None, 4])
        for stage in range(2):
            with epl.replicate(1):
                x = tf.matmul(x, planning.variable("w%d" % stage))
        planning.sgd(tf.reduce_mean(x), global_step=tf.train.get_or_create_global_step())
    plan, found = placed(graph, 2, 1)
    assert found == {"w%d" % stage: Placed(stage=owned(stage, 2)) for stage in range(2)}
    assert plan.only_holder("w1") == 1 and plan.only_holder("global_step") is None


@pytest.mark.parametrize("resource", [False, True])
def test_slots_of_a_scalar_are_with_its_stage(resource):
    """They are no counters, though they are scalars too; the powers of beta are."""
    with planning.capture() as graph:
        x = planning.batch()
        for stage in range(2):
            with epl.replicate(1):
                x = tf.matmul(x, planning.variable("w%d" % stage)) * tf.get_variable(
                    "gain%d" % stage, [], use_resource=resource
                )
        tf.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.square(x)))
    plan, _ = placed(graph, 2, 1)
    assert [plan.only_holder("gain1" + slot) for slot in ("", "/Adam", "/Adam_1")] == [1, 1, 1]
    assert plan.only_holder("beta1_power") is None
    plan, found = placed(graph, 4, 1, zero__level="v1")
    assert found["gain1/Adam"].stage == owned(1, 2) and plan.only_holder("gain1/Adam") in (1, 3)


def test_local_sgd_averages_what_copies_have():
    with planning.capture() as graph:
        planning.sgd(planning.layers(1), global_step=tf.train.get_or_create_global_step())
    plan, found = placed(graph, 2, 1, local_sgd__k_steps=4)
    assert found == {name: Placed(data=partial(MEAN)) for name in ("w0", "b0")} and plan.averaged == found.keys()


def test_values_that_each_copy_has_for_itself():
    with planning.capture() as graph:
        x = planning.batch()
        text = tf.get_variable("text", initializer=tf.constant("none"), trainable=False)
        seen = tf.get_variable("seen", [], tf.int32, tf.zeros_initializer, trainable=False)
        changes = [tf.assign(text, tf.as_string(x[0, 0])), tf.assign(seen, tf.cast(x[0, 0], tf.int32))]
        with tf.control_dependencies(changes):
            planning.sgd(planning.layers(1, x=x))
    plan, found = placed(graph, communication__check_replicas_every=1)
    assert found == {name: Placed(data=own(AS_FIRST)) for name in ("text", "seen")}
    assert plan.is_sent("seen") and plan.compared == {"w0", "b0"}


def test_generators_begin_with_what_the_first_has_turned_by_rank():
    with planning.capture() as graph:
        with tf.variable_scope("", use_resource=True):
            generator = tf.random.experimental.Generator.from_seed(3)
            planning.sgd(planning.layers(1, x=generator.normal([8, 4])))
    plan, found = placed(graph)
    assert [each for each in found.values()] == [Placed(data=own(TURNED))]
    assert all(plan.is_sent(name) for name in found)


def test_what_a_pass_adds_for_each_rank_is_never_sent():
    with planning.capture() as graph:
        planning.sgd(planning.layers(1, x=planning.batch(8, 4)))
    plan, found = placed(graph, 2, 1, communication__wire_dtype="int8")
    left = {variable.name for variable in plan.added}
    assert left and {name: Placed(data=OWN) for name in left} == found
    assert not any(map(plan.is_sent, left)) and plan.is_sent("w0") and not plan.is_sent("no such variable")
