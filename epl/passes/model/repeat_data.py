r"""Lets data sets begin again where they have ended, and say so (io.equal_steps="repeat").

    data -> MakeIterator   becomes   data           -> zip(1) \
                                     data -> repeat -> zip(0) -> concatenate -> MakeIterator

Elements get one more component: 1 the first time that the data is gone through, 0 afterwards.
"""

from epl.graph.index import node_of
from epl.graph.node_defs import constant, make_node
from epl.graph.types import INT32, INT64
from epl.partition.emit import type_list
from epl.passes.edited_bodies import EditedBodies
from epl.passes.nodes import tagged
from epl.plan.facts.names import PREFIX

_FOREVER = -1


def repeat_data(program, plan):
    """Wraps what each iterator of plan.repeated goes through."""
    graph = program.graph
    if not plan.repeated:
        return program
    bodies = EditedBodies(graph, plan.mesh.host_device)
    main = bodies.of("")
    for each in plan.repeated:
        kind = graph.nodes[each.iterator]
        if kind.op == "OneShotIterator":
            factory = bodies.of(kind.attr["dataset_factory"].func.name)
            factory.set_result(_wrapped(factory, each.iterator, factory.result, kind))
        for node in graph.find("MakeIterator".__eq__):
            if _behind_identities(graph, graph.nodes[node].input[1]) == each.iterator:
                maker = main.node(node)
                maker.input[0] = _wrapped(main, node, maker.input[0], kind)
        for name in (each.iterator, each.get_next):
            _with_flag(main.node(name))
    return program.with_graph(bodies.finish())


def _behind_identities(graph, text):
    name = node_of(text)
    while graph.nodes[name].op == "Identity":
        name = node_of(graph.nodes[name].input[0])
    return name


def _with_flag(node):
    node.attr["output_types"].list.type.append(INT32)
    node.attr["output_shapes"].list.shape.add()


def _wrapped(body, name, data, kind):
    """The input that stands for the data set `data` followed by its repetitions; `kind`: the iterator's node."""
    stem = "%s_repeat/%s" % (PREFIX, name)

    def add(node, argument="handle"):
        body.add(tagged(node, "repeat"))
        return body.output(node.name, 0, argument)

    def typed(op, what, inputs, **attrs):
        node = make_node(op, "%s/%s" % (stem, what), inputs, **attrs)
        for key in ("output_types", "output_shapes"):
            node.attr[key].CopyFrom(kind.attr[key])
        return node

    def flagged(what, data, flag):
        number = add(constant("%s/%s_flag" % (stem, what), flag, INT32), "output")
        flags = make_node("TensorDataset", "%s/%s_flags" % (stem, what), [number], Toutput_types=type_list([INT32]))
        flags.attr["output_shapes"].list.shape.add()
        endless = make_node("RepeatDataset", flags.name + "_repeated", [add(flags), forever])
        endless.attr["output_types"].list.type.append(INT32)
        endless.attr["output_shapes"].list.shape.add()
        both = typed("ZipDataset", what, [data, add(endless)], N=2)
        _with_flag(both)
        return add(both)

    forever = add(constant(stem + "/forever", _FOREVER, INT64), "output")
    first = flagged("first", data, 1)
    again = flagged("again", add(typed("RepeatDataset", "repeated", [data, forever])), 0)
    whole = typed("ConcatenateDataset", "whole", [first, again])
    _with_flag(whole)
    return add(whole)
