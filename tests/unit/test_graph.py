"""The index over a GraphDef, its editor, and the checks of a graph."""

import hypothesis
import pytest
from hypothesis import strategies as st
from tensorflow.core.framework import graph_pb2

from epl import tf_compat
from epl.graph.index import Graph, NodeInput, canonical_tensor, format_input, node_of, parse_input
from epl.graph.lazy import Lazy
from epl.graph.lint import lint
from epl.graph.node_defs import Type, make_node, set_attr

FLOAT, INT = Type(1), Type(3)

names = st.from_regex(r"[A-Za-z0-9.][A-Za-z0-9_.\-/]{0,20}", fullmatch=True)


def graph_of(*nodes):
    return Graph.from_graph_def(graph_pb2.GraphDef(node=nodes))


def const(name, dtype=FLOAT):
    return make_node("Placeholder", name, dtype=dtype)


def identity(name, source, dtype=FLOAT, *controls):
    return make_node("Identity", name, [source] + list(controls), T=dtype)


def add(name, left, right, dtype=FLOAT):
    return make_node("AddV2", name, [left, right], T=dtype)


def problems(graph, since=None):
    return lint(graph, tf_compat.op_def, changed_since=since)


# ---------------------------------------------------------------------------------------------------------------------
# Names of inputs.


@hypothesis.given(names, st.integers(-1, 300))
def test_input_round_trip(node, index):
    text = format_input(node, index)
    assert parse_input(text) == (node, index)
    assert node_of(text) == node
    assert format_input(*parse_input(text)) == text


@hypothesis.given(names)
def test_output_zero_has_one_spelling(node):
    assert canonical_tensor(node + ":0") == node == canonical_tensor(node)
    assert canonical_tensor(node + ":1") == node + ":1"


# ---------------------------------------------------------------------------------------------------------------------
# Reachability.


@pytest.fixture
def diamond():
    """a -> b -> d, a -> c -> d, and d waits for w."""
    return graph_of(
        const("a"),
        const("w"),
        identity("b", "a"),
        identity("c", "a"),
        make_node("AddV2", "d", ["b", "c", "^w"], T=FLOAT),
    )


def test_ancestors(diamond):
    assert diamond.ancestors(["d"]) == {"a", "b", "c", "d", "w"}
    assert diamond.ancestors(["d"], data_only=True) == {"a", "b", "c", "d"}
    assert diamond.ancestors(["d"], stop={"b", "c"}) == {"b", "c", "d", "w"}
    assert diamond.ancestors(["d"], stop={"d"}) == {"d"}
    assert diamond.ancestors(["gone"]) == set()


def test_descendants(diamond):
    assert diamond.descendants(["a"]) == {"a", "b", "c", "d"}
    assert diamond.descendants(["w"]) == {"w", "d"}
    assert diamond.descendants(["w"], data_only=True) == {"w"}
    assert diamond.descendants(["a"], stop={"b", "c"}) == {"a", "b", "c"}


def test_one_node_may_be_data_and_control_input():
    graph = graph_of(const("a"), make_node("AddV2", "b", ["a", "a", "^a"], T=FLOAT))
    assert graph.consumers["a"] == [("b", 0), ("b", 1), ("b", 2)]
    assert graph.descendants(["a"], data_only=True) == {"a", "b"}


def test_creation_order(diamond):
    assert diamond.in_order({"d", "w", "a"}) == ["a", "w", "d"]


# ---------------------------------------------------------------------------------------------------------------------
# The editor.


def test_editor_leaves_the_graph_and_shares_what_it_does_not_touch(diamond):
    before = diamond.to_graph_def(graph_pb2.GraphDef).SerializeToString()
    edit = diamond.editor()
    edit.set_input("b", 0, "w")
    edit.node("c").device = "/cpu:0"
    edit.add(const("new"))
    after = edit.finish()
    assert diamond.to_graph_def(graph_pb2.GraphDef).SerializeToString() == before
    assert list(diamond.nodes) == ["a", "w", "b", "c", "d"] and list(after.nodes) == ["a", "w", "b", "c", "d", "new"]
    assert [name for name in diamond.nodes if after.nodes[name] is diamond.nodes[name]] == ["a", "w", "d"]
    assert after.nodes["b"].input == ["w"] and after.nodes["c"].device == "/cpu:0"
    assert after.consumers["w"] == [("b", 0), ("d", 2)] and diamond.consumers["w"] == [("d", 2)]


def test_inputs_that_come_with_a_node_are_read_again_once_it_has_changed(diamond):
    edit = diamond.editor()
    edit.add_all({n: identity(n, "a") for n in "ef"}, {n: (NodeInput("a", 0),) for n in "ef"})
    edit.set_input("f", 0, "b")
    edges = edit.finish().edges
    assert edges.inputs["e"] == (("a", 0),) and edges.inputs["f"] == (("b", 0),)
    assert ("e", 0) in edges.consumers["a"] and "f" in edges.data_consumers["b"]


def test_editor_refuses_a_name_twice(diamond):
    with pytest.raises(ValueError, match="'a' exists"):
        diamond.editor().add(const("a"))
    with pytest.raises(ValueError, match="'a' exists"):
        diamond.editor().add_all({"z": const("z"), "a": const("a")}, {"z": (), "a": ()})


def test_a_late_node_is_made_when_it_is_looked_at(diamond):
    made = []

    def make():
        made.append(identity("e", "a"))
        return made[-1]

    edit = diamond.editor()
    edit.add_all({"e": Lazy("e", "Identity", make)}, {"e": (NodeInput("a", 0),)})
    graph = edit.finish()
    assert graph.find("Identity".__eq__)[-1] == "e" and ("e", 0) in graph.consumers["a"] and graph.edges.inputs["e"]
    assert not made
    assert problems(graph) == [] and len(made) == 1
    assert graph.nodes["e"].input == ["a"] and graph.to_graph_def(graph_pb2.GraphDef, ["e"]).node[0] == made[0]
    assert len(made) == 1


def test_an_editor_makes_a_late_node_its_own(diamond):
    def added():
        edit = diamond.editor()
        edit.add_all({"e": Lazy("e", "Identity", lambda: identity("e", "a"))}, {"e": (NodeInput("a", 0),)})
        return edit

    def changed(edit):
        edit.set_input("e", 0, "b")
        return edit.finish()

    first = added().finish()
    assert list(changed(added()).nodes["e"].input) == list(changed(first.editor()).nodes["e"].input) == ["b"]
    for edit in (added(), first.editor()):
        edit.move("e", "/cpu:0", lambda groups: groups)
        moved = edit.finish()
        assert moved.nodes["e"].device == "/cpu:0" and list(moved.nodes["e"].input) == ["a"]
    assert first.nodes["e"].device == "" and list(first.nodes["e"].input) == ["a"]


def test_part_of_a_graph_keeps_its_library(diamond):
    diamond.library.function.add().signature.name = "f"
    part = diamond.to_graph_def(graph_pb2.GraphDef, ["c", "a"])
    assert [n.name for n in part.node] == ["c", "a"] and part.library.function[0].signature.name == "f"


# ---------------------------------------------------------------------------------------------------------------------
# The checks.


def test_well_formed(diamond):
    assert problems(diamond) == []


def test_missing_input():
    assert problems(graph_of(const("a"), identity("b", "gone:1"))) == [
        "node 'b' has the input 'gone:1', which does not exist"
    ]
    assert "'^gone'" in problems(graph_of(const("a"), identity("b", "a", FLOAT, "^gone")))[0]


def test_data_after_control_input():
    found = problems(graph_of(const("a"), make_node("AddV2", "b", ["a", "^a", "a"], T=FLOAT)))
    assert found == ["node 'b' has the data input 'a' after a control input"]


def test_cycle():
    found = problems(graph_of(const("a"), add("b", "a", "c"), identity("c", "b"), identity("after", "c")))
    assert len(found) == 1 and "cycle" in found[0] and "'b'" in found[0] and "'c'" in found[0]
    by_control = graph_of(const("a"), identity("b", "a", FLOAT, "^c"), identity("c", "b"))
    assert "cycle" in problems(by_control)[0]


def while_loop(back="NextIteration"):
    return graph_of(
        const("start"),
        make_node("Enter", "enter", ["start"], T=FLOAT, frame_name="loop"),
        make_node("Merge", "merge", ["enter", "next"], T=FLOAT, N=2),
        make_node("Less", "less", ["merge", "merge"], T=FLOAT),
        make_node("LoopCond", "cond", ["less"]),
        make_node("Switch", "switch", ["merge", "cond"], T=FLOAT),
        make_node(back, "next", ["switch:1"], T=FLOAT),
        make_node("Exit", "exit", ["switch"], T=FLOAT),
    )


def test_loops_may_have_their_cycle():
    assert problems(while_loop()) == []
    assert "cycle" in problems(while_loop(back="Identity"))[0]


def test_a_loop_that_turns_into_a_cycle_is_noticed():
    before = while_loop()
    edit = before.editor()
    edit.node("next").op = "Identity"
    assert "cycle" in problems(edit.finish(), before)[0]


def test_wrong_type():
    found = problems(graph_of(const("a", INT), identity("b", "a")))
    assert found == ["node 'b' (Identity) wants type 1 from 'a:0', which has type 3"]


def test_of_copies_of_a_node_the_types_of_the_first_are_checked():
    wrong, cut_off = identity("b", "a"), identity("c", "nothing")
    like = object()

    def copies(*nodes):
        edit = graph_of(const("a", INT)).editor()
        lazy = {node.name: Lazy(node.name, node.op, lambda node=node: node, like) for node in nodes}
        edit.add_all(lazy, {node.name: tuple(map(parse_input, node.input)) for node in nodes})
        return edit.finish()

    right = identity("c", "a", INT)
    assert lint(copies(right, wrong), tf_compat.op_def) == []
    assert "wants type" in lint(copies(wrong, right), tf_compat.op_def)[0]
    assert "does not exist" in lint(copies(right, cut_off), tf_compat.op_def)[0]


def test_value_where_a_reference_is_wanted():
    found = problems(graph_of(const("a"), const("value"), make_node("Assign", "set", ["a", "value"], T=FLOAT)))
    assert len(found) == 1 and "wants type 101" in found[0]
    variable = make_node("VariableV2", "v", dtype=FLOAT)
    assert problems(graph_of(variable, const("value"), make_node("Assign", "set", ["v", "value"], T=FLOAT))) == []
    assert problems(graph_of(variable, identity("read", "v"))) == []


def test_wrong_number_of_inputs():
    found = problems(graph_of(const("a"), make_node("AddV2", "b", ["a"], T=FLOAT)))
    assert found == ["node 'b' (AddV2) has 1 inputs, its operation takes 2"]
    found = problems(graph_of(const("a"), make_node("AddN", "b", ["a", "a"], T=FLOAT, N=3)))
    assert found == ["node 'b' (AddN) has 2 inputs, its operation takes 3"]


def test_output_that_does_not_exist():
    assert problems(graph_of(const("a"), identity("b", "a:1"))) == ["node 'b' uses output 1 of 'a', which has 1"]


def test_colocation_with_a_missing_node():
    node = identity("b", "a")
    node.attr["_class"].list.s.extend([b"loc:@a", b"loc:@gone", b"something else"])
    assert problems(graph_of(const("a"), node)) == ["node 'b' is colocated with 'gone', which does not exist"]


def test_unknown_operations_are_taken_on_trust():
    assert problems(graph_of(const("a"), make_node("MyFunction", "f", ["a"]), identity("b", "f:7"))) == []


def test_type_of_an_unchanged_consumer():
    """A node is wrong when what it consumes has changed, though it is the same itself."""
    before = graph_of(const("a"), identity("b", "a"))
    edit = before.editor()
    set_attr(edit.node("a"), "dtype", INT)
    assert problems(edit.finish(), before) == problems(edit.finish()) != []


def test_removed_nodes_are_noticed():
    before = graph_of(const("a"), identity("b", "a"))
    after = Graph({"b": before.nodes["b"]}, before.library, before.versions)
    assert problems(after, before) == problems(after) != []


@st.composite
def edited_graphs(draw):
    """(well-formed graph, the same after some edits, harmful ones among them)."""
    size = draw(st.integers(2, 8))
    dtypes = [draw(st.sampled_from([FLOAT, INT])) for _ in range(size)]
    nodes = []
    for i in range(size):
        fitting = [k for k in range(i) if dtypes[k] == dtypes[i]]
        if fitting and draw(st.booleans()):
            nodes.append(add("n%d" % i, *["n%d" % draw(st.sampled_from(fitting)) for _ in range(2)], dtype=dtypes[i]))
        else:
            nodes.append(const("n%d" % i, dtypes[i]))
    before = graph_of(*nodes)
    edit = before.editor()
    for number in range(draw(st.integers(0, 4))):
        name = "n%d" % draw(st.integers(0, size - 1))
        other = "n%d" % draw(st.integers(0, size))  # one beyond the last: does not exist
        what = draw(st.sampled_from(["input", "control", "type", "add", "cycle", "op"]))
        node = edit.node(name)
        if what == "input" and len(node.input):
            node.input[draw(st.integers(0, len(node.input) - 1))] = other
        elif what == "control":
            node.input.append("^" + other)
        elif what == "type":
            set_attr(node, "T" if node.op == "AddV2" else "dtype", draw(st.sampled_from([FLOAT, INT])))
        elif what == "add":
            edit.add(identity("new%d" % number, other, draw(st.sampled_from([FLOAT, INT]))))
        elif what == "cycle":
            edit.add(identity("there%d" % number, "back%d" % number))
            edit.add(identity("back%d" % number, "there%d" % number))
        elif what == "op":
            node.op = draw(st.sampled_from(["NextIteration", "AddV2", "Placeholder", "Unknown"]))
            set_attr(node, "T", draw(st.sampled_from([FLOAT, INT])))
            set_attr(node, "dtype", draw(st.sampled_from([FLOAT, INT])))
    return before, edit.finish()


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(edited_graphs())
def test_incremental_check_equals_the_full_one(graphs):
    before, after = graphs
    assert problems(before) == []
    assert sorted(problems(after, before)) == sorted(problems(after))


def test_a_moved_node_is_not_checked_again_but_what_changes_later_is(diamond):
    edit = diamond.editor()
    edit.move("b", "/cpu:0", lambda groups: groups)
    moved = edit.finish()
    assert moved.nodes["b"].device == "/cpu:0" and diamond.nodes["b"].device == ""
    assert moved.edges is diamond.edges and moved.changes_since(diamond) == {}
    assert problems(moved, since=diamond) == []
    edit = moved.editor()
    set_attr(edit.node("b"), "T", INT)
    assert "wants type 3 from 'a:0'" in problems(edit.finish(), since=moved)[0]


def test_a_moved_node_keeps_the_colocation_that_it_is_told_to():
    node = identity("b", "a")
    node.attr["_class"].list.s.extend([b"loc:@a", b"loc:@gone"])
    graph = graph_of(const("a"), node)
    edit = graph.editor()
    edit.move("b", "/cpu:0", lambda groups: [g for g in groups if g != b"loc:@gone"], "_marked")
    after = edit.finish()
    assert list(after.nodes["b"].attr["_class"].list.s) == [b"loc:@a"] and after.nodes["b"].attr["_marked"].b
    assert problems(after, since=graph) == []
    assert "'gone', which does not exist" in problems(graph)[0]


def test_order_goes_with_the_edges_and_leaves_cycles_out(diamond):
    order = diamond.order
    assert sorted(order) == ["a", "b", "c", "d", "w"]
    assert all(order[p] < order[name] for name, inputs in diamond.inputs.items() for p, _ in inputs)
    cyclic = graph_of(const("a"), add("b", "a", "c"), identity("c", "b"))
    assert list(cyclic.order) == ["a"]


def test_nodes_are_found_by_type_in_creation_order(diamond):
    assert diamond.find(lambda op: op != "AddV2") == ["a", "w", "b", "c"]
    edit = diamond.editor()
    edit.node("w")
    edit.add(const("z"))
    edit.add(identity("y", "z"))
    later = edit.finish()
    assert later.find("Identity".__eq__) == diamond.find("Identity".__eq__) + ["y"]
    assert later.find(lambda op: op != "AddV2") == ["a", "w", "b", "c", "z", "y"]
    edit = later.editor()
    edit.node("b").op = "Snapshot"
    assert edit.finish().find("Identity".__eq__) == [n for n in later.find("Identity".__eq__) if n != "b"]


def test_what_changed_since_a_graph(diamond):
    edit = diamond.editor()
    edit.add(const("z"))
    edit.move("c", "/cpu:0", lambda groups: groups)
    edit.move("b", "/cpu:0", lambda groups: groups)
    edit.node("b").op = "Snapshot"
    after = edit.finish()
    assert list(after.changes_since(diamond)) == ["b", "z"]
    twice = after.editor().finish()  # not made of the first graph itself: what is different counts as changed
    assert sorted(twice.changes_since(diamond)) == ["b", "c", "z"]
