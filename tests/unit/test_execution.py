"""The ConfigProto of the inner session."""

import collections
import os
import threading

import pytest
import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.capture.record import make_program
from epl.config import Config
from epl.errors import UnsupportedError
from epl.session import inner, rewritten
from epl.session.execution import session_proto
from epl.session.step import step_of
from tests.helpers import planning
from tests.helpers.planning import capture, plan_of

Simple = collections.namedtuple("Simple", "is_simple")  # of a Step
ON = tf.OptimizerOptions.ON_1


def proto(own=None, **options):
    return session_proto(own, Config({"execution." + key: value for key, value in options.items()}, {}).execution)


def test_nothing_is_said_where_nothing_is_set():
    assert proto() == tf.ConfigProto()


def test_keys_reach_the_session():
    made = proto(num_threads=3, inter_op_threads=2, xla=True)
    assert (made.intra_op_parallelism_threads, made.inter_op_parallelism_threads) == (3, 2)
    assert made.graph_options.optimizer_options.global_jit_level == ON
    if tf_compat.line() == "tf2":
        assert made.graph_options.optimizer_options.cpu_global_jit


def test_what_the_program_sets_stays():
    own = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=4, log_device_placement=True)
    own.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.OFF
    before = tf.ConfigProto.FromString(own.SerializeToString())
    assert proto(own, num_threads=3, inter_op_threads=2, xla=True) == own == before


@pytest.mark.parametrize("workers", [1, 2])
def test_xla_compiles_nothing_that_waits_for_other_workers(workers):
    with capture() as graph:
        planning.sgd(planning.layers(2))
    made = planning.compiled(graph, workers, 2, execution__xla=True).graph
    left_out = {name for name, node in made.nodes.items() if "_XlaCompile" in node.attr}
    assert not any(made.nodes[name].attr["_XlaCompile"].b for name in left_out)
    after = {name for name in made.nodes if any("comm" in made.nodes[a].attr for a in made.ancestors([name]))}
    assert left_out == (after if workers == 2 else set())
    computing = {"MatMul", "Tanh", "TanhGrad"}
    assert {node.op for name, node in made.nodes.items() if name not in left_out} >= computing
    updates = {name for name, node in made.nodes.items() if node.op == "ApplyGradientDescent"}
    assert len(updates) == 8 and (updates <= left_out) == (workers == 2)


def test_several_steps_are_refused_for_updates_by_hand():
    with capture() as graph:
        loss = planning.layers(1)
        for variable, gradient in zip(tf.trainable_variables(), tf.gradients(loss, tf.trainable_variables())):
            tf.assign_sub(variable, 0.1 * gradient)
    with pytest.raises(
        UnsupportedError, match="execution.steps_per_run=4 repeats calls of optimizers .*, 'w0' for one"
    ):
        plan_of(graph, workers=2, devices=1, execution__steps_per_run=4)


@pytest.mark.parametrize("cores, is_simple, there", [(1, True, True), (1, False, False), (2, True, False)])
def test_short_steps_on_one_core_run_on_the_thread_of_the_call(monkeypatch, cores, is_simple, there):
    monkeypatch.setattr(inner, "_cores", lambda: cores)
    with capture() as graph:
        planning.sgd(planning.layers(1))
    session = inner.InnerSession(plan_of(graph, devices=1)[1].mesh, None, Config({}, {}).execution)
    graph_def, threads = tf.Graph(), []
    with graph_def.as_default():
        tf.py_func(lambda: threads.append(threading.get_ident()), [], [], name="note")
    session.load(make_program(graph_def).graph)
    options = session.options_of_many(Simple(is_simple))
    session.run((), [], (), ("note",), options)
    assert [each == threading.get_ident() for each in threads] == [there]


def test_what_is_short():
    """Few operations without a loop; of those the session would not know how often each runs."""
    with capture() as graph:
        loss = planning.layers(1)
        train = planning.sgd(loss)
        grown = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x + 1.0), [tf.constant(0), loss])[1]
        many = tf.add_n([tf.constant(float(i)) for i in range(1000)])
    made = rewritten.Rewritten(graph, Config({}, {}), planning.cluster(devices=1), 0)
    found = [step_of(made, (each.name,), (train.name,), ()).run.is_simple for each in (loss, grown, many)]
    assert found == [True, False, False]


def test_a_variable_lets_tensorflow_1_compile_on_cpus(monkeypatch):
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_min_cluster_size=2")
    for _ in range(2):
        tf_compat.allow_xla_on_cpus()
    more = " --tf_xla_cpu_global_jit" if tf_compat.line() == "tf1" else ""
    assert os.environ["TF_XLA_FLAGS"] == "--tf_xla_min_cluster_size=2" + more
