"""Nodes at which users let segments of parameters end (`zero.segment_anchors`)."""

import difflib

from epl.errors import PlanError
from epl.graph import tags
from epl.graph.index import node_of


def anchors_of(program, analysis, text):
    """Names of the nodes that a list of tensors or operations, separated by commas, stands for.

    Args:
      program: a Program with one copy of the model.
      analysis: its Analysis.
      text: the value of `zero.segment_anchors`.

    Raises:
      PlanError: one is not in the graph, or is not computed in the forward pass of the training.
    """
    graph, found = program.graph, []
    for word in filter(None, (word.strip() for word in text.split(","))):
        name = node_of(word)
        if name not in graph.nodes:
            known = [n for n in graph.nodes if _is_forward(graph, analysis, n)]
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
            raise PlanError(
                "zero.segment_anchors names '%s', but the graph has no operation '%s'.%s Name tensors or operations of "
                "the model as tensor.name or tensor.op.name have it."
                % (word, name, " Did you mean %s?" % " or ".join("'%s'" % n for n in near) if near else "")
            )
        if not _is_forward(graph, analysis, name):
            raise PlanError(
                "zero.segment_anchors names '%s' (%s), which is not computed of a batch in the forward pass of the "
                "training, so that no segment can end there. Name a tensor between two layers of the model."
                % (word, graph.nodes[name].op)
            )
        found.append(name)
    return tuple(found)


def _is_forward(graph, analysis, name):
    return name in analysis.varying and name in graph.order and tags.phase(graph.nodes[name]) == tags.FORWARD
