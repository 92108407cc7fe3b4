"""What copies of a model cannot have of their own is refused by name before anything runs."""

from dataclasses import replace

import pytest
import tensorflow.compat.v1 as tf

from epl.config import Config
from epl.errors import ConfigError, UnsupportedError
from epl.graph.index import Graph
from epl.graph.node_defs import make_node
from epl.plan.facts.unknown import check_effects
from epl.program.program import Program
from tests.helpers import planning
from tests.helpers.planning import capture, plan_of


def model_of(op, **changes):
    nodes = [make_node("Placeholder", "x"), make_node(op, "a/odd", ["x"])]
    model = Program(Graph.from_graph_def(tf.GraphDef(node=nodes)), stateful=frozenset([op]))
    return replace(model, **changes)


def test_an_unknown_stateful_operation_is_refused_by_name():
    with pytest.raises(UnsupportedError, match=r"'a/odd' .* type Odd, .* keeps state.*graph\.harmless_ops=\"Odd\""):
        check_effects(model_of("Odd"), {"x", "a/odd"})


def test_all_types_of_a_library_are_named_at_once():
    nodes = [make_node("Placeholder", "x")] + [make_node(op, "a/" + op, ["x"]) for op in ("Odd", "Even", "Known")]
    model = Program(Graph.from_graph_def(tf.GraphDef(node=nodes)), stateful=frozenset(["Odd", "Even", "Known"]))
    words = r"'a/Odd' holds .* the model holds 'Even' too, .* graph\.harmless_ops=\"Known,Even,Odd\""
    with pytest.raises(UnsupportedError, match=words):
        check_effects(model, {"a/Odd", "a/Even", "a/Known"}, harmless="Known")
    check_effects(model, {"a/Odd", "a/Even", "a/Known"}, harmless="Known,Even,Odd")


def test_what_is_not_copied_declared_or_stateless_passes():
    check_effects(model_of("Odd"), {"x"})
    check_effects(model_of("Odd"), {"x", "a/odd"}, harmless="Other,Odd")
    check_effects(model_of("Odd", stateful=frozenset()), {"x", "a/odd"})
    check_effects(model_of("RandomUniform"), {"x", "a/odd"})


def test_a_refused_operation_says_why():
    with pytest.raises(UnsupportedError, match="BoostedTreesPredict.*keeps trees"):
        check_effects(model_of("BoostedTreesPredict"), {"a/odd"})


@pytest.mark.parametrize("op", ["TFRA>CuckooHashTableOfTensors", "TFRA>CuckooHashTableFind", "KvVariable"])
def test_a_table_of_a_library_is_called_a_table(op):
    with pytest.raises(UnsupportedError, match=r"'a/odd' .* it is a table of a library, .*tf\.get_variable"):
        check_effects(model_of(op), {"a/odd"})
    check_effects(model_of(op), {"a/odd"}, harmless=op)


def test_operations_in_functions_count():
    model = model_of("Call", stateful=frozenset(["Odd"]))
    function = model.graph.library.function.add()
    function.signature.name = "Call"
    function.node_def.add(name="inside", op="Odd")
    with pytest.raises(UnsupportedError, match="'a/odd' holds an operation of the type Odd"):
        check_effects(model, {"a/odd"})


def test_plans_refuse_where_there_are_copies_only():
    """TensorFlow says that a session handle keeps state, and each copy of the model would need its own."""
    with capture() as graph:
        loss = planning.layers(1)
        handle = tf.raw_ops.GetSessionHandleV2(value=loss)
        with tf.control_dependencies([handle.op]):
            planning.sgd(tf.identity(loss))
    plan_of(graph, workers=1, devices=1)
    for config in ({}, {"pipeline__num_micro_batch": 2}):
        with pytest.raises(UnsupportedError, match="GetSessionHandleV2.*graph.harmless_ops"):
            plan_of(graph, workers=1, devices=2, **config)
    plan_of(graph, workers=1, devices=2, graph__harmless_ops="GetSessionHandleV2")


def test_names_of_types_are_checked():
    assert Config({"graph.harmless_ops": "Addons>MyOp,Other"}).graph.harmless_ops == "Addons>MyOp,Other"
    with pytest.raises(ConfigError, match="operation types separated by commas"):
        Config({"graph.harmless_ops": "MyOp, Other"})
