r"""Lets gradients travel in fewer bits between workers (communication.wire_dtype).

    grad -> apply   becomes   grad -> EplWireEncode -> EplAllToAll -> EplWireSum -> EplAllGather -> EplWireDecode ->
                              left -/  \-> Assign(left)  residual_of_sum -/  \-> Assign(residual_of_sum)

Each worker adds up one share of every gradient. What is applied waits until what is left over has been kept.
"""

from epl.graph.node_defs import constant, make_node
from epl.graph.types import FLOAT32, INT64, UINT8
from epl.passes.nodes import assign_node, collective_node, instance_tensor, read_node, rewire, tagged


def encode_gradients(program, plan):
    """Two exchanges of bytes for each group of gradients that travels in fewer bits."""
    if plan.wire is None:
        return program
    edit = program.graph.editor()
    for group in plan.aggregation.groups:
        if group.name in plan.wire.groups:
            _exchange(edit, plan, group)
    return program.with_graph(edit.finish())


def _exchange(edit, plan, group):
    coded, host, first = plan.wire.groups[group.name], plan.mesh.host_device, group.tensors[0]
    instances = plan.mesh.givers(group.shard_rank, plan.stage(first))
    kept = []

    def wire_node(op, name, inputs, **attrs):
        node = make_node(op, name, inputs, host, N=len(coded), workers=plan.wire.workers, **attrs)
        node.attr["wire_dtype"].s = plan.wire.dtype.encode()
        node.attr["sizes"].list.i.extend(each.num_elements for each in coded)
        return tagged(node, "wire")

    def exchange(name, inputs, **attrs):
        edit.add(collective_node(plan, plan.collective(name), name, inputs, UINT8, **attrs))

    def keep(variables, name):
        for place, variable in enumerate(variables):
            value = "%s:%d" % (name, place + 1)
            kept.append(edit.add(assign_node(edit.peek(variable), variable + "/keep", value, FLOAT32)).name)

    def read(variables):
        return [edit.add(read_node(edit.peek(each), each + "/read", FLOAT32)).name for each in variables]

    to_sum, sums = plan.wire.names(group)
    gradients = [instance_tensor(plan, tensor, each.index) for each in instances for tensor in group.tensors]
    residual, residual_of_sum = [each.residual for each in coded], [each.residual_of_sum for each in coded]
    encode = wire_node(
        "EplWireEncode",
        group.name + "/encode",
        gradients + read(residual),
        R=len(instances),
        num_inputs=len(gradients),
    )
    keep(residual, edit.add(encode).name)
    splits = edit.add(constant(group.name + "/equal", [], INT64, host)).name
    exchange(to_sum, [encode.name, splits])
    add_up = wire_node(
        "EplWireSum",
        group.name + "/add_up",
        [to_sum] + read(residual_of_sum),
        scale=float(plan.gradient_scale_of(first)),
    )
    keep(residual_of_sum, edit.add(add_up).name)
    exchange(sums, [add_up.name], R=1)
    decode = wire_node("EplWireDecode", group.name, [sums] + ["^" + name for name in kept])
    for each in coded:
        shape = decode.attr["shapes"].list.shape.add()
        for size in each.shape:
            shape.dim.add().size = size
    edit.add(decode)
    for place, tensor in enumerate(group.tensors):
        output = "%s:%d" % (group.name, place) if place else group.name
        rewire(edit, plan, plan.aggregation.consumers[tensor], output, group.shard_rank)
