r"""Lets a session ask how far data sets have been read, and put them there (checkpoint.data_position).

Iterator -> SerializeIterator -> SerializeTensor                Position.state
Iterator -> DeserializeIterator <- ParseTensor <- Placeholder   Position.take_up, Position.given
Iterator -> IteratorGetNext                                     Position.skip

Where all workers take turns in one order, each begins behind what was taken before:

DataStream.node -> share   becomes   DataStream.node -> DataStream.skip -> share,   DataStream.taken -> DataStream.skip
"""

from epl import tf_compat
from epl.graph.lazy import node_def_of
from epl.graph.node_defs import Type, constant, make_node
from epl.graph.types import INT64, STRING, VARIANT
from epl.passes.nodes import copy_element_types
from epl.plan.facts.names import PREFIX

# A data set of which TensorFlow does not write all that its next elements follow from is one that it cannot write.
_POLICY, _FAIL = "external_state_policy", 2


def keep_positions(program, plan):
    """The nodes for each iterator of plan.positions that this worker has."""
    graph = program.graph
    held = [each for each in plan.positions if each.iterator in graph.nodes]
    if not held:
        return program
    edit = graph.editor()
    for each in held:
        iterator = graph.nodes[each.iterator]
        device, stem = iterator.device, "%s_position/" % PREFIX + "%s/" + each.iterator
        state = make_node("SerializeIterator", stem % "variant", [each.iterator], device)
        if any(attr.name == _POLICY for attr in tf_compat.op_def(state.op).attr):
            state.attr[_POLICY].i = _FAIL
        edit.add(state)
        edit.add(make_node("SerializeTensor", each.state, [state.name], device, T=Type(VARIANT)))
        given = make_node("Placeholder", each.given, (), device, dtype=Type(STRING))
        given.attr["shape"].shape.SetInParent()
        edit.add(given)
        parsed = make_node("ParseTensor", stem % "parsed", [each.given], device, out_type=Type(VARIANT))
        edit.add(parsed)
        edit.add(make_node("DeserializeIterator", each.take_up, [each.iterator, parsed.name], device))
        skip = make_node("IteratorGetNext", each.skip, [each.iterator], device)
        for name in ("output_types", "output_shapes"):
            skip.attr[name].CopyFrom(node_def_of(iterator).attr[name])
        edit.add(skip)
        for stream in each.streams:
            _begin_behind(graph, edit, stream)
    return program.with_graph(edit.finish())


def _begin_behind(graph, edit, stream):
    if stream.taken in edit:
        return  # several initializers go through the same data set
    source = graph.nodes[stream.node]
    none = constant(stream.taken + "/none", 0, INT64, source.device)
    taken = make_node("PlaceholderWithDefault", stream.taken, [none.name], source.device, dtype=Type(INT64))
    taken.attr["shape"].shape.SetInParent()
    rest = make_node("SkipDataset", stream.skip, [stream.node, stream.taken], source.device)
    copy_element_types(rest, source)
    for node in (none, taken, rest):
        edit.add(node)
    for name in graph.edges.data_consumers.get(stream.node, ()):
        for position, each in enumerate(graph.inputs[name]):
            if each.node == stream.node and each.index >= 0:
                edit.set_input(name, position, stream.skip)
