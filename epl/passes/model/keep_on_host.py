r"""Lets tensors of the forward pass wait for the backward pass in host memory (`gradient_checkpoint.offload`).

y -> next layer                  y -> next layer
 \\                    becomes     \\-> kept (on the host) -> copy -> dx
  -> dx                                                      ^(control: what the layer before dx begins with)
"""

import logging

from epl.graph.index import node_of
from epl.passes.model.move_to_host import add_copies, on_host
from epl.plan.facts.names import PREFIX

_LOG = logging.getLogger("epl")


def offload_kept(program, plan):
    """Adds a node on the host for each tensor that waits there, and the copies that the backward pass gets of it, as an
    epl.plan.memory.offload_kept.Kept says."""
    graph = program.graph
    edit, kept = graph.editor(), {}
    for number, tensor in enumerate(plan.tensors):
        name = "%s_kept/%d/%s" % (PREFIX, number, node_of(tensor))
        kept[tensor] = edit.add(on_host(graph, name, tensor, tensor, node_of(tensor))).name
    add_copies(graph, edit, plan.copies, "%s_kept_copy" % PREFIX, kept)
    if not kept:
        _LOG.warning("gradient_checkpoint.offload: no tensor that the backward pass uses could wait in host memory.")
    _LOG.info("%d tensors wait in host memory for the backward pass.", len(kept))
    return program.with_graph(edit.finish())
