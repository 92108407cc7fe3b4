"""What the memory plan knows of TensorFlow's graph optimizer: it folds constants, and one operation serves its like."""

import pytest
import tensorflow.compat.v1 as tf

from epl.graph.index import Graph
from epl.graph.node_defs import constant, make_node
from epl.plan.cost.graph_optimizer import optimized

pytestmark = pytest.mark.either_line
FLOAT = 1


def of_nodes(nodes, sizes=None, shapes=None, stay=(), is_reversed=False):
    """The Optimized of nodes, of which those that are no NodeDefs yet are (operation type, name, inputs)."""
    nodes = [make_node(*node) if isinstance(node, tuple) else node for node in nodes]
    graph = Graph.from_graph_def(tf.GraphDef(node=nodes))
    return optimized(
        graph,
        list(graph.nodes),
        graph.inputs,
        frozenset(stay),
        lambda name: "CPU:0",
        lambda name: [(sizes or {}).get(name, 4)],
        (shapes or {}).get,
        is_reversed,
    )


def test_what_computes_the_same_of_the_same_is_computed_once():
    nodes = [("MatMul", "x", []), ("Tanh", "a", ["x"]), ("Tanh", "b", ["x"]), ("Exp", "c", ["a"]), ("Exp", "d", ["b"])]
    made = of_nodes(nodes + [("AddN", "e", ["c", "d"])])
    assert list(made.inputs) == ["x", "a", "c", "e"] and made.serves["d"] == "c"
    assert [each.node for each in made.inputs["e"]] == ["c", "c"]
    assert "d" in of_nodes(nodes, stay=["d"]).inputs
    nodes[2] = ("Tanh", "b", ["x", "^c"])  # as recomputation holds its copies back
    nodes[2], nodes[3] = nodes[3], nodes[2]
    assert list(of_nodes(nodes).inputs) == ["x", "a", "c", "b", "d"]
    nodes[2] = make_node("Tanh", "b", ["x"], alpha=2)
    assert "b" in of_nodes(nodes).inputs


@pytest.mark.parametrize("op", ["RandomUniform", "AssignAdd", "VariableV2", "EplAllReduce", "Merge"])
def test_what_has_effects_or_changes_stays_apart(op):
    assert set(of_nodes([("MatMul", "x", []), (op, "a", ["x"]), (op, "b", ["x"])]).inputs) == {"x", "a", "b"}


def test_what_follows_from_constants_is_folded_whatever_made_it():
    """Two losses of the same: their constants have tags of their own, which are gone once they are folded."""
    nodes = [constant("one", 1.0, FLOAT), constant("two", 1.0, FLOAT)]
    nodes[1].attr["_epl_forward_op"].s = b"loss"
    nodes += [("Neg", "a", ["one"]), ("Identity", "i", ["two"]), ("Neg", "b", ["i"]), ("MatMul", "x", [])]
    made = of_nodes(nodes + [("Mul", "c", ["x", "a"]), ("Mul", "d", ["x", "b"])])
    assert made.folded == {"a", "i"} and made.serves["b"] == "a" and made.serves["d"] == "c"


def test_large_results_of_small_constants_are_not_folded():
    nodes = [constant("one", 1.0, FLOAT), ("Fill", "a", ["one"]), ("Neg", "b", ["a"])]
    assert of_nodes(nodes, {"a": 100 << 10}).folded == {"a", "b"}
    assert of_nodes(nodes, {"a": (100 << 10) + 1}).folded == frozenset()


def test_what_tells_known_shapes_is_a_constant():
    nodes = [("MatMul", "x", []), ("Shape", "s", ["x"]), ("Prod", "p", ["s"])]
    assert of_nodes(nodes, shapes={"s": ((2, 3),)}).folded == {"s", "p"}
    assert of_nodes(nodes).folded == frozenset()


def test_takers_of_what_waits_for_constants_of_its_own_may_come_in_reverse():
    nodes = [("MatMul", "x", []), constant("one", 1.0, FLOAT), constant("two", 2.0, FLOAT)]
    nodes += [("Exp", "a", ["x", "^one"]), ("Exp", "b", ["x", "^two"])]
    nodes += [("MatMul", "takes_a", ["a"]), ("MatMul", "end", ["x", "x"]), ("MatMul", "takes_b", ["b", "b"])]
    assert list(of_nodes(nodes).inputs)[-4:] == ["a", "takes_a", "end", "takes_b"]
    assert list(of_nodes(nodes, is_reversed=True).inputs)[-4:] == ["a", "takes_b", "end", "takes_a"]
