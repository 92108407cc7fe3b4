r"""Takes the time before and after each operation that gives a batch (io.stats).

GetNext   becomes   Timestamp -^-> GetNext -^-> Timestamp
"""

from epl.graph.node_defs import make_node
from epl.plan.facts import data_ops
from epl.plan.facts.names import time_names

_TIMED = data_ops.GET_NEXT | data_ops.DEQUEUES


def time_reads(program, plan):
    """Two nodes time_names(n) for each such node n of this worker's graph; those in branches and loops are left out."""
    if not plan.io_stats:
        return program
    graph = program.graph
    inside = plan.analysis.in_control_flow
    edit = graph.editor()
    for name in graph.find(_TIMED.__contains__):
        if name in inside:
            continue
        before, after = time_names(name)
        control = [text for text in graph.nodes[name].input if text[0] == "^"]
        edit.add(make_node("Timestamp", before, control, plan.mesh.host_device))
        edit.add(make_node("Timestamp", after, ["^" + name], plan.mesh.host_device))
        edit.node(name).input.append("^" + before)
    return program.with_graph(edit.finish())
