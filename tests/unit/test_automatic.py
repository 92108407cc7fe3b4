"""Stages chosen for a model without scopes: the tags that come out, and when it is refused."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.capture.record import make_program
from epl.config import Config
from epl.errors import PlanError
from epl.graph import tags
from epl.passes.model.add_stages import add_stages
from epl.plan.layout.layout import mesh_of
from epl.plan.layout.stages import stages_of, used_taskgraphs
from epl.plan.pipeline.auto_stages import automatic_taskgraphs, plan_stages
from epl.program.target import Target
from tests.helpers import planning

AUTO = Config({"auto.auto_parallel": True})


def test_operations_and_their_gradients_get_the_stage():
    with planning.capture() as graph:
        planning.sgd(planning.layers(count=4))
    program = make_program(graph)
    model = add_stages(program, plan_stages(program, Target(AUTO, planning.cluster(1, 2))))
    assert [choice.stage for choice in model.automatic.choices] == [0, 1] and len(model.taskgraphs) == 2
    stage = stages_of(model, used_taskgraphs(model))
    for number, expected in ((0, 0), (3, 1)):
        assert stage["w%d" % number] == stage["GradientDescent/update_w%d/ApplyGradientDescent" % number] == expected
    products = [n for n in planning.of_op(model.graph, "MatMul") if tags.phase(n) == tags.BACKWARD]
    assert {tags.get_int(n, tags.TASKGRAPH, -1) for n in products} == {0, 1}


def test_what_is_fed_with_a_fixed_shape_is_named():
    with planning.capture() as graph:
        planning.sgd(planning.layers(count=4, x=tf.placeholder(tf.float32, [8, 4], "rows")))
    with pytest.raises(PlanError, match="is fed with a shape that is fixed .'rows'.*Leave the first dimension"):
        plan_stages(make_program(graph), Target(AUTO, planning.cluster(1, 2)))


@pytest.mark.parametrize("devices, config", [(1, AUTO), (2, Config())])
def test_nothing_to_choose(devices, config):
    with planning.capture() as graph:
        planning.sgd(planning.layers())
    program = make_program(graph)
    assert plan_stages(program, Target(config, planning.cluster(1, devices))) is None


@pytest.mark.parametrize("workers", [1, 2])
def test_one_device_a_worker_is_said_not_to_be_cut(caplog, workers):
    """It was ignored without a word."""
    with planning.capture() as graph:
        planning.sgd(planning.layers())
    plan_stages(make_program(graph), Target(AUTO, planning.cluster(workers, 1)))
    assert "auto.auto_parallel=True cuts nothing here" in caplog.text and "Set pipeline.num_stages" in caplog.text


def test_one_stage_that_is_asked_for_is_not_talked_about(caplog):
    config = Config({"auto.auto_parallel": True, "pipeline.num_stages": 1})
    assert automatic_taskgraphs(config, planning.cluster(2, 2)) == [] and not caplog.text


@pytest.mark.parametrize(
    "values, replicas", [({}, 2), ({"pipeline.num_stages": 2}, 4), ({"pipeline.num_stages": 1}, 8)]
)
def test_replicas_of_automatic_stages(values, replicas):
    config, cluster = Config(dict(values, **{"auto.auto_parallel": True})), planning.cluster(2, 4)
    assert mesh_of(automatic_taskgraphs(config, cluster), config, cluster).shape["data"] == replicas


def test_scopes_and_automatic_stages_do_not_go_together():
    with planning.capture() as graph:
        with epl.replicate(device_count=1, name="mine"):
            planning.sgd(planning.layers())
    with pytest.raises(PlanError, match="without scopes, but this one has 1 .'mine' at .*test_automatic.py"):
        plan_stages(make_program(graph), Target(AUTO, planning.cluster(1, 2)))
