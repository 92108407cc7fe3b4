"""What is made of a worker's program by what is fetched: by the compiler, checked as passes are."""

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl import compiler
from epl.errors import PassError
from epl.plan.facts.names import clone_name, whole_name
from tests.helpers import planning

pytestmark = pytest.mark.either_line


@pytest.fixture(scope="module")
def split():
    with planning.capture(seed=1) as graph:
        x = tf.placeholder(tf.float32, [None, 4])
        with epl.split(2):
            hidden = tf.tanh(tf.matmul(x, tf.get_variable("kernel", [4, 4])), name="hidden")
            loss = tf.reduce_mean(tf.square(hidden))
        planning.sgd(loss)
    return planning.compiled(graph, 1, 2)


def test_the_whole_of_what_is_divided_is_added_once(split):
    assert "hidden" in split.partitioned.placements
    variant = compiler.with_whole_tensors(split, ["hidden:0"])
    assert whole_name("hidden") in variant.graph.nodes and whole_name("hidden") not in split.graph.nodes
    assert compiler.with_whole_tensors(variant, ["hidden:0"]) is variant


def test_who_does_not_compute_it_makes_the_whole_of_what_is_sent():
    with planning.capture() as graph:
        x = tf.placeholder(tf.float32, [8, 4])
        with epl.split(2):
            first = tf.tanh(tf.matmul(x, tf.get_variable("first_kernel", [4, 4])), name="first")
        with epl.split(2):
            planning.sgd(tf.reduce_mean(tf.square(tf.matmul(first, tf.get_variable("kernel", [4, 4])))))
    parts = [clone_name("first", instance) for instance in (0, 1)]
    taken = []
    for worker in (0, 1):  # each has a stage
        program = planning.compiled(graph, 2, 2, worker, cluster__device_place_prefer_intra_node=False)
        assert ("first" in program.graph.nodes) == (worker == 0)
        variant = compiler.with_whole_tensors(program, ["first:0"])
        received = {message.receive: message.tensor for message in variant.part.messages}
        (whole,) = [producer for producer, _ in variant.graph.inputs[whole_name("first")]]
        taken.append([received.get(name, name) for name, _ in variant.graph.inputs[whole][:2]])
    assert taken == [parts, parts]


def test_a_variant_that_does_more_is_refused(split, monkeypatch):
    def cut_off(program, plan, tensors):
        edit = program.graph.editor()
        edit.node("hidden").op = "Sigmoid"
        return program.with_graph(edit.finish())

    monkeypatch.setattr(compiler, "with_wholes", cut_off)
    with pytest.raises(PassError, match="after the pass 'with_wholes'"):
        compiler.with_whole_tensors(split, ["hidden:0"])
