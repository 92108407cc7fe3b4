r"""Lets workers send each other the largest parts of gradients, and keep the others for later (dgc.sparsity).

    grad -> ApplyMomentum   becomes   velocity, residual \
                                                     grad -> EplSparseAllReduce -> ApplyMomentum
                                                                      \-> Assign(velocity), Assign(residual)

The update waits until what is kept has been kept. It applies no momentum where the velocity that is sent has it.
"""

import math

from epl.graph.node_defs import Type, constant, make_node
from epl.graph.types import FLOAT32, INT64
from epl.passes.nodes import assign_node, instance_tensor, read_node, rewire, tagged
from epl.plan.facts.names import PREFIX
from epl.plan.sync.dgc import MOMENTUM


def compress_gradients(program, plan):
    """One EplSparseAllReduce for each group of gradients that is compressed."""
    if plan.dgc is None:
        return program
    edit, counted, clips = program.graph.editor(), {}, {}
    for group in plan.aggregation.groups:
        compressed = plan.dgc.of_group(group)
        if compressed:
            call = compressed[0].call
            first = call not in counted
            if first:
                clips[call] = _clip(edit, plan, call)
                counted[call] = _read(edit, compressed[0].steps, INT64)
            _exchange(program.graph, edit, plan, group, compressed, clips[call], counted[call], first)
    return program.with_graph(edit.finish())


def _exchange(graph, edit, plan, group, compressed, clip, steps, counts):
    """Adds the exchange of a group; `counts`: it also counts the steps of its call."""
    dgc, host, size, exchange = plan.dgc, plan.mesh.host_device, len(compressed), plan.collective(group.name)
    inputs = [instance_tensor(plan, each.gradient, i.index) for i in plan.mesh.instances for each in compressed]
    num_gradients = len(inputs)
    inputs += [_read(edit, each.velocity, FLOAT32) for each in compressed]
    inputs += [_read(edit, each.residual, FLOAT32) for each in compressed]
    inputs += [_read(edit, each.slot, FLOAT32, "%s/%s/read" % (group.name, each.slot)) for each in compressed]
    inputs += [graph.nodes[each.update].input[MOMENTUM] for each in compressed]
    node = make_node(
        "EplSparseAllReduce",
        group.name,
        inputs + [clip, steps],
        host,
        N=size,
        R=len(plan.mesh.instances),
        num_inputs=num_gradients,
        comm=exchange.communicator,
        tag=exchange.tag,
        workers=exchange.workers,
        scale=float(plan.gradient_scale),
        begin_step=dgc.begin_step,
        ramp_steps=dgc.ramp_steps,
    )
    node.attr["sparsity"].list.f.extend(dgc.sparsity)
    edit.add(tagged(node, "collective"))

    def output(kind, place):
        number = kind * size + place
        return "%s:%d" % (group.name, number) if number else group.name

    for place, each in enumerate(compressed):
        rewire(edit, plan, plan.aggregation.consumers[each.gradient], output(0, place))
        rewire(edit, plan, [(each.update, MOMENTUM)], output(3, place))
        waits = [_keep(edit, each.velocity, output(1, place), FLOAT32)]
        waits.append(_keep(edit, each.residual, output(2, place), FLOAT32))
        if counts and place == 0:
            waits.append(_keep(edit, each.steps, output(4, 0), INT64))
        edit.node(each.update).input.extend("^" + name for name in waits)


def _keep(edit, variable, value, dtype):
    return edit.add(assign_node(edit.peek(variable), variable + "/keep", value, dtype)).name


def _read(edit, variable, dtype, name=None):
    node = read_node(edit.peek(variable), name or variable + "/read", dtype)
    return edit.add(node).name


def _clip(edit, plan, call):
    """A scalar: what the gradients of a call are multiplied by in this worker, before anything is kept of them.

    Each worker's part of a gradient that is clipped to clip_norm, if workers' parts differ as noise does (section 3.3).
    """
    dgc, host, stem = plan.dgc, plan.mesh.host_device, "%s_dgc/call_%d/clip" % (PREFIX, call)
    one = edit.add(constant(stem + "/one", 1.0, FLOAT32, host)).name
    if not dgc.clip_norm:
        return one
    squares = []
    for place, each in enumerate(c for c in dgc.gradients.values() if c.call == call):
        own = [instance_tensor(plan, each.gradient, i.index) for i in plan.mesh.instances]
        total = _add(edit, "AddN", "%s/sum_%d" % (stem, place), own, host, N=len(own))
        squares.append(_add(edit, "L2Loss", "%s/half_square_%d" % (stem, place), [total], host))
    workers = plan.mesh.copies.num_workers
    # A worker's sum counts scale * workers times as much as in the aggregate; L2Loss has half of the squares.
    most = dgc.clip_norm / (plan.gradient_scale * workers * math.sqrt(workers) * math.sqrt(2.0))
    most = edit.add(constant(stem + "/most", most, FLOAT32, host)).name
    square = _add(edit, "AddN", stem + "/half_square", squares, host, N=len(squares))
    norm = _add(edit, "Sqrt", stem + "/norm", [square], host)
    return _add(edit, "Minimum", stem, [one, _add(edit, "RealDiv", stem + "/ratio", [most, norm], host)], host)


def _add(edit, op, name, inputs, device, **attrs):
    return edit.add(make_node(op, name, inputs, device, T=Type(FLOAT32), **attrs)).name
