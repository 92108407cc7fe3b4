"""Which nodes run in loops and branches of control flow v1."""

import tensorflow.compat.v1 as tf

from epl.graph.control_flow import frames_of, in_branches, inside_control_flow
from epl.graph.index import Graph
from tests.helpers.control_flow import control_flow


def built(build):
    with control_flow("v1"), tf.Graph().as_default() as graph:
        build()
        return Graph.from_graph_def(graph.as_graph_def())


def one_in_the_other():
    x = tf.placeholder(tf.float32, [], name="x")

    def outer():
        inner = tf.cond(x > 1, lambda: tf.sin(x, name="innermost"), lambda: tf.constant(0.5, name="else"), name="inner")
        return tf.exp(inner, name="behind")

    tf.identity(tf.cond(x > 0, outer, lambda: tf.cos(x, name="other"), name="outer"), name="after")


def test_branches_within_branches():
    graph = built(one_in_the_other)
    found = {name.rpartition("/")[2] for name in in_branches(graph)}
    assert {"innermost", "else", "behind", "other"} <= found and not {"x", "after"} & found
    assert "outer/inner/Merge" in in_branches(graph) and "outer/Merge" not in in_branches(graph)


def loop():
    def step(n, y):
        inner = tf.while_loop(lambda m: m < n, lambda m: m + 2, [0], name="inner")
        y = tf.cond(inner > 2, lambda: tf.sin(y, name="branch"), lambda: y)
        return n + 1, tf.exp(y, name="behind")

    end = tf.while_loop(lambda n, _: n < 3, step, [0, tf.placeholder(tf.float32, [], name="x")], name="outer")
    tf.identity(end[1], name="after")


def test_loops_within_loops():
    graph = built(loop)
    frames = {name.rpartition("/")[2]: frame for name, frame in frames_of(graph).items()}
    outer = "outer/while_context"
    assert frames["behind"] == (outer,) and frames["branch"] == (outer,) and "after" not in frames
    assert frames["LoopCond"][0] == outer and frames["Exit_1"] == (outer,)
    assert frames_of(graph)["outer/inner/Exit"] == (outer, "outer/inner/while_context")
    inside = {name.rpartition("/")[2] for name in in_branches(graph)}
    assert "branch" in inside and not {"behind", "LoopCond", "Exit_1", "after"} & inside
    assert frames_of(built(one_in_the_other)) == {} and in_branches(built(lambda: tf.constant(1))) == frozenset()


def test_what_stands_behind_inner_branches_and_loops_is_inside():
    inside = {name.rpartition("/")[2] for name in inside_control_flow(built(one_in_the_other))}
    assert {"innermost", "else", "behind", "other"} <= inside and not {"x", "after"} & inside
    names = inside_control_flow(built(loop))
    assert {"behind", "branch", "LoopCond", "Less"} <= {name.rpartition("/")[2] for name in names}
    assert "outer/inner/Exit" in names and not {"outer/Exit", "outer/Exit_1", "x", "after"} & names
