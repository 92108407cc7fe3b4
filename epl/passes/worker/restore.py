"""Lets a worker read from a checkpoint only what it has variables for."""

import collections

from epl.graph.index import format_input, node_of, parse_input
from epl.graph.node_defs import constant
from epl.graph.types import STRING
from epl.partition.checkpoints import strings_of
from epl.plan.facts.names import PREFIX


def restore_own(program, plan):
    """RestoreV2 operations read no more tensors than the graph uses; those that nothing uses stay as they are."""
    del plan
    graph = program.graph
    if program.part is None and program.partitioned is None:
        return program
    edit = graph.editor()
    changed = False
    for name in graph.find(lambda op: op == "RestoreV2"):
        changed |= _narrow(graph, edit, name)
    return program.with_graph(edit.finish()) if changed else program


def _narrow(graph, edit, name):
    node = graph.nodes[name]
    lists = [graph.nodes[node_of(text)] for text in node.input[1:3]]
    uses = collections.defaultdict(list)
    for consumer, position in graph.consumers.get(name, ()):
        index = parse_input(graph.nodes[consumer].input[position]).index
        if index >= 0:
            uses[index].append((consumer, position))
    dtypes = node.attr["dtypes"].list.type
    if not uses or len(uses) == len(dtypes) or any(each.op != "Const" for each in lists):
        return False
    kept = sorted(uses)
    own = edit.node(name)
    own.attr["dtypes"].list.type[:] = [dtypes[index] for index in kept]
    for place, (kind, each) in enumerate(zip(("names", "slices"), lists), 1):
        values = strings_of(each, len(dtypes))
        chosen = [values[index] for index in kept]
        made = constant("%s_restore/%s/%s" % (PREFIX, name, kind), chosen, STRING, each.device)
        own.input[place] = edit.add(made).name
    for new, old in enumerate(kept):
        for consumer, position in uses[old]:
            edit.set_input(consumer, position, format_input(name, new))
    return True
