"""One way from a captured program to what runs: `python -m epl.plan` goes it too."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.capture.record import make_program
from epl.env import Env
from epl.session import settings
from epl.session.front_ends import preview
from epl.session.rewritten import Rewritten
from tests.helpers import planning, processes


def shown(graph, capsys, **settings):
    """(exit status, what `python -m epl.plan` prints, its errors) for a graph and settings with "__" for the dot."""
    Env.get().reset(epl.Config({key.replace("__", "."): value for key, value in settings.items()}))
    status = preview.show(graph, preview.parser().parse_args(["train.py"]))
    return (status,) + tuple(capsys.readouterr())


def test_the_plan_command_refuses_what_a_run_would(capsys):
    with planning.capture() as graph:
        staged = tf.raw_ops.Unstage(dtypes=[tf.float32])[0]
        planning.sgd(tf.reduce_sum(staged * planning.variable("w", [])))
    assert shown(graph, capsys)[0] == 0
    status, _, error = shown(graph, capsys, pipeline__num_micro_batch=2)
    assert status == 2 and "takes a batch from a staging area" in error


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_plan_command_counts_what_runs(capsys, micro_batches):
    with planning.capture() as graph:
        planning.sgd(planning.layers())
    _, text, _ = shown(graph, capsys, pipeline__num_micro_batch=micro_batches)
    env = Env.get()
    run = Rewritten(graph, env.config, env.cluster, 0)
    counts = len(make_program(graph).graph.nodes), len(run.own_graph.nodes)
    assert "%d in the model, %d in this worker's graph" % counts in text


def test_what_workers_compare_does_not_grow_with_the_copies():
    """One copy of the model says it all, whatever number of micro-batches and devices there is."""
    with planning.capture() as graph:
        train = planning.sgd(planning.layers())
    found = []
    for devices, micro_batches in ((1, 2), (3, 5)):
        config = epl.Config({"pipeline.num_micro_batch": micro_batches})
        run = Rewritten(graph, config, planning.cluster(2, devices), 0)
        assert run.program.source.plan.analysis.cloned <= set(make_program(graph).graph.nodes)
        found.append(run.step((), (train.name,), ()).lines())
    compared = [[line for line in lines if not settings.is_line(line)] for lines in found]
    assert compared[0] == compared[1] and any("ApplyGradientDescent" in line for line in compared[0])


MONITORED = """
import tensorflow.compat.v1 as tf
import epl

tf.disable_v2_behavior()
epl.init(epl.Config({"zero.level": "v1"}))
loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.ones([4, 8]), 1)))
train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=tf.train.get_or_create_global_step())
with tf.train.MonitoredTrainingSession() as session:
    session.run(train)
"""


WITHOUT_INIT = MONITORED.replace("epl.init(", "print(") + "    print('has trained')\n"
KERAS = """
import numpy as np
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 2), "f"), np.ones((8, 1), "f"), verbose=0)
print("has trained")
"""


@pytest.mark.each_line
@pytest.mark.parametrize("program", [WITHOUT_INIT, KERAS], ids=["session", "keras"])
def test_a_script_without_epl_is_not_trained_for_its_plan(template, tmp_path, program):
    (tmp_path / "train.py").write_text(program)
    environ, log = processes.clean_environment(TMPDIR=tmp_path), str(tmp_path / "output.txt")
    ended = template.python(("-m", "epl.plan", "train.py"), environ, log, str(tmp_path)).wait(100)
    assert ended.code == 3
    assert "train.py runs a session, or computes gradients, without epl.init() or before it" in ended.output
    assert "has trained" not in ended.output


def test_a_plan_waits_for_no_other_worker(run, tmp_path):
    """The session would take its checkpoint from where worker 0 says, which all must have heard."""
    (tmp_path / "train.py").write_text(MONITORED)
    assert "zero.level=v1" in run(tmp_path, "-m", "epl.plan", "--num_workers", "2", "train.py")


def test_the_plan_command_plans_for_the_devices_that_it_is_told(monkeypatch):
    options = preview.parser().parse_args(["train.py"])
    monkeypatch.delenv("EPL_DEVICE", raising=False)
    assert preview._environment(options)["EPL_DEVICE"] == "gpu"
    monkeypatch.setenv("EPL_DEVICE", "cpu")
    assert preview._environment(options)["EPL_DEVICE"] == "cpu"
