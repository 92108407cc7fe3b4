"""What is advised where a device has not enough memory."""

import tensorflow.compat.v1 as tf

from epl import compiler
from epl.capture.record import make_program
from epl.config import Config
from epl.session import out_of_memory
from tests.helpers import planning
from tests.helpers.planning import capture, sgd, variable

ROWS = 64


def advice():
    """For two workers that train a layer with much wider results than it has weights."""
    with capture() as graph:
        x = tf.placeholder(tf.float32, [None, 4])
        sgd(tf.reduce_mean(tf.square(tf.tanh(tf.matmul(x, variable("w", [4, 4096]))))))
    captured, cluster = make_program(graph), planning.cluster(2, 1)
    program = compiler.compile(captured, Config({}), cluster)
    return out_of_memory._advice(captured, program, Config({}), cluster, ROWS, "as were fed")


def test_more_micro_batches_are_advised():
    assert "pipeline.num_micro_batch=2: " in advice()


def test_what_only_looks_small_is_no_advice(monkeypatch):
    """As sizes are not known of the changed plan that are known of the plan as it is."""
    estimate_memory = out_of_memory.estimate_program

    def estimated(program, batch, orders):
        devices, unknown = estimate_memory(program, batch, orders)
        return devices, unknown + ["MatMul"] * (program.plan.micro_batches is not None)

    monkeypatch.setattr(out_of_memory, "estimate_program", estimated)
    assert "pipeline.num_micro_batch" not in advice()


def test_copies_of_what_is_not_counted_anyway_change_nothing():
    assert not out_of_memory._further(["epl_micro_batch_1/next", "next"], ["next"])
    assert out_of_memory._further(["epl_micro_batch_1/wide"], ["next"])
