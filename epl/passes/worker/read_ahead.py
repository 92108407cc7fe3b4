r"""Lets batches be on the devices that compute before the steps that use them begin (io.prefetch_to_device).

    GetNext ---> model      becomes      GetNext ---> Stage   @device            Prefetched.load waits for all of these
    GetNext/1 -> model/1                 GetNext/1 -> Stage/1 @device of /1      Prefetched.clear empties them
                                         Unstage -> model,  Unstage/1 -> model/1

The Unstage has the name that GetNext had, so that what is fetched of it goes the same way. A session runs `load` while
the step before runs; batches are put on devices once all copies have got theirs, so data that ends in the middle of it
leaves none behind.
"""

from epl.graph.lazy import node_def_of
from epl.graph.node_defs import make_node
from epl.passes.nodes import tagged
from epl.plan.facts.names import PREFIX

_GATE = "EplGate"  # what the reading of a micro-batch waits for


def read_ahead(program, plan):
    """The nodes for each iterator of plan.prefetched that this worker reads."""
    if not plan.prefetched:
        return program
    graph, edit = program.graph, program.graph.editor()
    for each in plan.prefetched:
        copies = each.copies(graph, plan)
        if copies:
            _read_ahead(graph, edit, plan, each, copies)
    return program.with_graph(edit.finish())


def _read_ahead(graph, edit, plan, each, copies):
    raw = []
    for name, _ in copies:
        raw.append(_moved(edit, graph.nodes[name], raw[-1:]))
    loads, clears = [], []
    for (name, instance), source in zip(copies, raw):
        device, holder = plan.mesh.device(instance.devices[0]), edit.node(name)
        types, stem = list(holder.attr["output_types"].list.type), "%s_ahead/%s" % (PREFIX, name)
        outputs = ["%s:%d" % (source, index) if index else source for index in range(len(types))]
        waits = ["^" + other for other in raw if other != source]
        loads.append(_add(edit, "Stage", stem + "/stage", outputs + waits, device, name, types))
        clears.append(_add(edit, "StageClear", stem + "/clear", (), device, name, types))
        gates = [text for text in holder.input if text[0] == "^" and graph.nodes[text[1:]].op == _GATE]
        marks = {key: value for key, value in holder.attr.items() if key.startswith("_epl_")}
        holder.CopyFrom(_staging("Unstage", name, gates, device, name, types))
        for key, value in marks.items():
            holder.attr[key].CopyFrom(value)
    for name, waited in ((each.load, loads), (each.clear, clears)):
        edit.add(make_node("NoOp", name, ["^" + other for other in waited], plan.mesh.host_device))


def _moved(edit, node, before):
    """The name of a node like this one, under which data is read from now on, after that of the copy before it."""
    moved = type(node_def_of(node))()
    moved.CopyFrom(node_def_of(node))
    moved.name = "%s_ahead/%s/read" % (PREFIX, node.name)
    moved.input[:] = [text for text in moved.input if text[0] != "^"] + ["^" + name for name in before]
    return edit.add(moved).name


def _staging(op, name, inputs, device, area, types):
    node = make_node(op, name, inputs, device, capacity=0, memory_limit=0, container="", shared_name=area)
    node.attr["dtypes"].list.type.extend(types)
    return node


def _add(edit, *arguments):
    return edit.add(tagged(_staging(*arguments), "ahead")).name
