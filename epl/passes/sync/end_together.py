r"""Ends data where it has ended on all workers, for data that begins again elsewhere (io.equal_steps="repeat").

    GetNext -> model   becomes   GetNext ---------------------------------------> IdentityN -> model
                                        \ flag -> EplAllReduce -> EplEndOfData -^-/

The IdentityN has the name that GetNext had, so that what is fetched of it or fed for it goes the same way. What all
micro-batches take is read first: a step is made whole, or not at all.
"""

from epl.graph.index import format_input
from epl.graph.node_defs import Type, constant, make_node
from epl.graph.types import INT32
from epl.passes.moved_reads import hand_on, moved
from epl.passes.nodes import collective_node, tagged
from epl.plan.facts.names import clone_name


def end_together(program, plan):
    """One agreement of all workers for each iterator of plan.repeated: the step is made where any has new data."""
    if not plan.repeated:
        return program
    edit = program.graph.editor()
    for each in plan.repeated:
        _agree(program, edit, plan, each)
    return program.with_graph(edit.finish())


def _agree(program, edit, plan, each):
    graph, host = program.graph, plan.mesh.host_device
    names = program.micro_batches.copies(each.get_next)
    flag = len(graph.nodes[each.get_next].attr["output_types"].list.type) - 1
    copies = [
        [copy for copy in (clone_name(name, i.index) for name in names) if graph.edges.data_consumers.get(copy)]
        for i in plan.instances_with(each.get_next)
    ]
    reads = _reads(edit, graph, copies)
    used, raw = list(reads), list(reads.values())
    flags = [format_input(name, flag) for name in raw]

    def add(op, part, inputs, **attrs):
        return edit.add(tagged(make_node(op, "%s/%s" % (each.name, part), inputs, host, **attrs), "join")).name

    packed = add("Pack", "flags", flags, N=len(flags), T=Type(INT32), axis=0)
    axis = edit.add(constant(each.name + "/axis", 0, INT32, host)).name
    here = add("Max", "here", [packed, axis], T=Type(INT32), Tidx=Type(INT32), keep_dims=False)
    options = dict(N=1, R=1, num_inputs=1, reduce_op="max", scale=1.0)
    edit.add(collective_node(plan, plan.collective(each.name), each.name, [here], INT32, **options))
    end = add("EplEndOfData", "end", [each.name], what=each.iterator)
    for copy, source in zip(used, raw):
        types = graph.nodes[copy].attr["output_types"].list.type[:flag]
        waits = _gates(graph, copy) + ["^" + end]
        hand_on(edit.node(copy), [format_input(source, index) for index in range(flag)], types, waits)


def _gates(graph, name):
    return [text for text in graph.nodes[name].input if text[0] == "^" and graph.nodes[text[1:]].op == "EplGate"]


def _reads(edit, graph, copies):
    """The names of the nodes that read for the copies of GetNext, which are given for each instance in the order of its
    micro-batches: one after the other, not in their turns."""
    found = {}
    for own in copies:
        before = []
        for copy in own:
            found[copy] = name = moved(edit, graph.nodes[copy])
            node, gates = edit.node(name), _gates(graph, copy)
            kept = [text for text in node.input if text not in gates]
            node.input[:] = kept + before
            before = ["^" + name]
    return found
