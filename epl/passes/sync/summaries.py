r"""Lets summaries show what a fetch would, and lets the chief alone write those that the graph itself writes.

    loss ----------> ScalarSummary      becomes      merged loss -> ScalarSummary

Operations that write event files (tf.contrib.summary) do nothing on other workers, nor in further copies of the model.
"""

from epl.graph import tags
from epl.graph.index import parse_input
from epl.plan.facts.summarised import shown_by
from epl.rules import effects


def show_merged(program, plan):
    """Summaries of tensors in a collection of epl.GraphKeys take the merged values."""
    graph = program.graph
    if plan.mesh.copies.size == 1:
        return program
    writes = graph.find((effects.SUMMARY_WRITES | effects.SUMMARY_WRITERS).__contains__)
    if not (plan.merges or writes):
        return program
    edit = graph.editor()
    for merge in plan.merges:
        for consumer, position in shown_by(graph, merge.tensor, merge.how):
            edit.set_input(consumer, position, merge.name)
    for name in writes:
        if not plan.mesh.has_first or tags.get_int(graph.nodes[name], tags.INSTANCE):
            _silence(edit.node(name))
    return program.with_graph(edit.finish())


def _silence(node):
    """The node still waits for what it waited for."""
    waits = [text if text[0] == "^" else "^" + parse_input(text).node for text in node.input]
    node.op = "NoOp"
    del node.input[:]
    node.input.extend(sorted(set(waits), key=waits.index))
    for key in list(node.attr):
        if not key.startswith("_"):
            del node.attr[key]
