"""Weights of devices by speeds that are measured: what is measured, what follows from it, what is said and refused."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.capture.record import make_program
from epl.config import Config
from epl.errors import ConfigError, PlanError, UnsupportedError
from epl.plan.input.batch_rows import common_rows
from epl.plan.layout.layout import make_mesh
from epl.plan.layout.speeds import paces, told, weights_by_speed
from epl.plan.report.plan_table import plan_table
from epl.program.program import TaskGraph
from epl.session import device_speed
from epl.session.device_speed import device_speeds, median_rate
from epl.session.inner import worker_proto
from epl.session.measured_weights import weigh_devices
from tests.helpers import planning

AUTO = {"cluster.device_weights": "auto"}


def mesh_of(workers, devices, count, stages=1):
    marked = [TaskGraph(index, "replicate", count) for index in range(stages)]
    return make_mesh(marked, planning.cluster(workers, devices))


def words(workers, devices, count, speeds, rows=None):
    found = paces(mesh_of(workers, devices, count), speeds)
    weights = weights_by_speed([place.speed for place in found], rows)
    return weights, told(found, weights, rows, devices)


def test_rows_follow_speed():
    weights, text = words(2, 1, 2, [[100.0], [49.7]], 64)
    assert weights == (43, 21)
    assert text.endswith("  worker 1's device has 0.5 of the speed of worker 0's: it takes 21 of 64 rows")
    weights, text = words(1, 2, 2, [[1.0, 4.0]])
    assert weights == (3, 13)
    assert "device 0 of worker 0 has 0.25 of the speed of device 1 of worker 0: it takes 3 of 16 parts of a" in text


def test_speeds_that_are_nearly_the_same_are_the_same():
    weights, text = words(3, 1, 3, [[0.97], [1.0], [0.91]])
    assert weights == (1, 1, 1) and "as fast as each other, within 10 %" in text
    assert words(3, 1, 3, [[1.0], [0.5], [0.46]], 20)[0] == (10, 5, 5)  # those that are slow together, too
    assert words(2, 1, 2, [[1.0], [0.512]], 64)[0] == words(2, 1, 2, [[1.0], [0.488]], 64)[0] == (43, 21)


def test_too_few_rows_are_divided_equally():
    weights, text = words(2, 1, 2, [[1.0], [0.5]], 1)
    assert weights == (1, 1) and "of different speed, but there are too few rows to divide by it" in text
    assert weights_by_speed([1.0, 0.01], 4) == (3, 1)  # nobody is without a row


@pytest.mark.parametrize("rows", [7, 64, 1000])
def test_no_other_division_is_faster(rows):
    speeds = [1.0, 0.625, 0.25]
    found = weights_by_speed(speeds, rows)
    assert sum(found) == rows
    least = max(w / s for w, s in zip(found, speeds))
    for one in range(3):
        for other in range(3):
            moved = [w + (i == other) - (i == one) for i, w in enumerate(found)]
            assert max(w / s for w, s in zip(moved, speeds)) >= least


def test_the_slowest_of_all_replicas_counts_for_a_place():
    found = paces(mesh_of(4, 1, 2), [[1.0], [1.0], [0.5], [0.8]])
    assert [(p.worker, p.speed) for p in found] == [(2, 0.625), (3, 1.0)]
    found = paces(mesh_of(1, 4, 2, stages=2), [[1.0, 0.9, 0.2, 1.0]])  # devices 0 and 1 have a part of each stage
    assert [(p.device, p.speed) for p in found] == [(1, 1.0), (2, 0.225)]


def test_rows_of_several_data_sets():
    with planning.capture() as graph:
        for size in (64, 48):
            tf.data.make_one_shot_iterator(tf.data.Dataset.range(99).batch(size)).get_next()
    assert common_rows(make_program(graph).graph) == 16


class _FirstOfTwo(object):
    """That of worker 0 of two, of which the other one says this."""

    def __init__(self, others=()):
        self.others, self.met = list(others), 0

    def meet(self, message, limit_s):
        self.met += 1
        return [message] + [other if message else b"" for other in self.others]

    def decided(self, what, decide):
        return decide()

    def telling_others(self):
        return planning.contextlib.suppress()


def model(rows=None, count=2, scope=None):
    with planning.capture() as graph, scope or epl.replicate(count):
        planning.sgd(planning.layers(1, x=tf.placeholder(tf.float32, [rows, 4])))
    return graph


def test_numbers_are_set_at_the_first_run(caplog):
    caplog.set_level("INFO", "epl")
    graph, job, config = model(), _FirstOfTwo([b"[25.0]"]), Config(dict(AUTO, **{"auto.batch": 20}), {})
    weigh_devices(graph, config, planning.cluster(2, 1), job, lambda mesh: [100.0])
    assert config.cluster.device_weights == (16, 4) and "it takes 4 of 20 rows" in caplog.text
    weigh_devices(graph, config, planning.cluster(2, 1), None, None)  # nothing is measured again
    done = planning.compiled(graph, 2, 1, cluster__device_weights=[16, 4])
    assert done.plan.mesh.weights == (4, 1)
    assert "devices have 4, 1 of 5 parts of a batch" in plan_table(done.plan)


def test_without_devices_parts_are_equal():
    done = planning.compiled(model(), 2, 1, cluster__device_weights="auto")
    assert not done.plan.mesh.weights and "until the first run measures" in plan_table(done.plan)


@pytest.mark.parametrize(
    "graph, error, text",
    [
        (
            lambda: model(rows=8),
            UnsupportedError,
            r"=\(auto\) does not go together with a model that devices divide",
        ),
        (lambda: model(count=1), PlanError, "here each replica has one device and a batch of its own"),
    ],
)
def test_what_is_refused_is_refused_before_anything_is_measured(graph, error, text):
    job = _FirstOfTwo()
    with pytest.raises(error, match=text):
        weigh_devices(graph(), Config(AUTO, {}), planning.cluster(2, 1), job, None)
    assert not job.met


def test_what_trains_nothing_is_not_weighed():
    with planning.capture() as graph:
        tf.placeholder(tf.float32, [None])
    config = Config(AUTO, {})
    weigh_devices(graph, config, planning.cluster(2, 1), None, None)
    assert config.cluster.device_weights == "auto"


def test_the_key_takes_a_word_too():
    assert Config({}, {"EPL_CLUSTER_DEVICE_WEIGHTS": "AUTO"}).cluster.device_weights == "auto"
    assert Config({}, {"EPL_CLUSTER_DEVICE_WEIGHTS": "3,1"}).cluster.device_weights == (3, 1)
    with pytest.raises(ConfigError, match='it must be a list of integers >= 1 or "auto"'):
        Config({"cluster.device_weights": "fast"}, {})
    with pytest.raises(ConfigError, match="EPL_CLUSTER_DEVICE_WEIGHTS"):
        Config({}, {"EPL_CLUSTER_DEVICE_WEIGHTS": "fast"})


def test_a_rate_is_the_median_of_spans():
    """A device that others slow down now and then is as fast as it is most of the time."""
    now, calls = [0.0], []

    def run():
        calls.append(now[0])
        now[0] += 0.5 if 2.0 <= now[0] < 3.0 else 0.25

    assert median_rate(run, 5.0, 1.0, clock=lambda: now[0]) == 4.0
    assert calls[-1] < 6.0


def test_each_device_is_measured(monkeypatch):
    """Those of a worker without GPUs are the same cores."""
    monkeypatch.setattr(device_speed, "_SIZES", {"CPU": (8, 16)})
    monkeypatch.setattr(device_speed, "_ALL_S", 0.01)
    mesh = mesh_of(1, 3, 3)
    found = device_speeds(mesh, worker_proto(mesh, None, Config({}, {}).execution))
    assert len(found) == 3 and len(set(found)) == 1 and found[0] > 0
