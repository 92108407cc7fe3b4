r"""Puts the aggregate of all instances' gradients in the place of each instance's own.

    grad   -> apply                 grad   \                / apply
    grad/1 -> apply/1   becomes             EplAllReduce ->
                                    grad/1 /                \ apply/1

IndexedSlices are gathered: the values and indices of all instances, one after the other.

Where each worker makes updates of its own (zero.level), a reduce-scatter gives it the gradients of these alone.
"""

from epl.graph.index import node_of
from epl.graph.node_defs import Type, constant, make_node
from epl.graph.types import FLOAT16, FLOAT32, INT32, INT64
from epl.passes.node_workers import of_keeper, of_stage
from epl.passes.nodes import all_gather_node, all_reduce_node, collective_node, dtype_of, instance_tensor, rewire
from epl.passes.vectors import in_lines, padded, parts, reshape
from epl.plan.zero.zero import scattered_groups

_NOT_FINITE = (
    "a gradient is not finite, or has become infinite in the half-precision numbers that workers send, which end at "
    "65504. Make communication.fp16_scale smaller, or set communication.fp16 to False"
)


def aggregate_gradients(program, plan):
    """One all-reduce for each group of dense gradients, two all-gathers for each sparse one."""
    graph = program.graph
    if not plan.aggregation.groups and not plan.aggregation.sparse:
        return program
    edit, scattered = graph.editor(), scattered_groups(plan)
    for group in plan.aggregation.groups:
        if group.name in graph.nodes or plan.wire is not None and group.name in plan.wire.groups:
            continue  # compressed, or in fewer bits
        if group.name in scattered:
            _scatter(graph, edit, plan, scattered[group.name], bool(program.scaled))
            continue
        fp16 = {"wire_fp16": True, "fp16_scale": plan.fp16_scale} if plan.wire_fp16 and group.dtype == FLOAT32 else {}
        scale = plan.gradient_scale_of(group.tensors[0])
        edit.add(all_reduce_node(plan, group.name, group.tensors, group.dtype, scale, **fp16))
        for index, tensor in enumerate(group.tensors):
            reduced = "%s:%d" % (group.name, index) if index else group.name
            rewire(edit, plan, plan.aggregation.consumers[tensor], reduced, group.shard_rank)
    for sparse in plan.aggregation.sparse:
        values, indices = (_dense_detour if sparse.is_made_dense(plan) else _gather)(graph, edit, plan, sparse)
        rewire(edit, plan, plan.aggregation.consumers[sparse.values], values, sparse.shard_rank)
        rewire(edit, plan, plan.aggregation.consumers[sparse.indices], indices, sparse.shard_rank)
    return program.with_graph(edit.finish())


def _scatter(graph, edit, plan, group, judged):
    """One reduce-scatter of a group; each worker takes its share apart again.

    `judged`: whether a step is left out whose gradients are not finite.
    """
    all_have = of_stage(plan, node_of(group.tensors[0]))
    host, copies, instances = plan.mesh.host_device, plan.mesh.copies, plan.mesh.givers(group.shard_rank)
    ranks = [plan.zero.of_worker(worker) for worker in range(copies.num_workers)]
    vectors = [_flat(graph, edit, plan, group, ranks, instance.index, all_have) for instance in instances]
    whole = vectors[0]
    if len(vectors) > 1:
        each_place = enumerate(zip(*vectors))
        whole = [_sum(edit, "%s/sum_%d" % (group.name, i), v, group.dtype, host, all_have) for i, v in each_place]
    counts = [_counts(group, each) for each in ranks]
    whole = padded(edit, group.name, whole, [size for each in counts for size in each], group.dtype, host, all_have)
    short = plan.wire_fp16 and group.dtype == FLOAT32 and copies.num_workers > 1  # within a worker nothing travels
    if short:
        whole = [_halved(edit, plan, "%s/half_%d" % (group.name, i), v, all_have) for i, v in enumerate(whole)]
    shares = [sum(in_lines(size, group.dtype) for size in each) for each in counts]
    sizes = all_have(edit, constant(group.name + "/sizes", shares, INT64, host))
    mean = plan.reduce_mean and len(instances) == 1 and not short
    node = collective_node(
        plan,
        plan.collective(group.name),
        group.name,
        whole + [sizes],
        FLOAT16 if short else group.dtype,
        N=len(whole),
        reduce_op="mean" if mean else "sum",
    )
    share = all_have(edit, node)
    factor = 1.0 if mean else plan.gradient_scale
    if short:
        share, factor = _whole(edit, plan, group.name, share, judged, all_have), factor / plan.fp16_scale
    if factor != 1.0:
        share = _scaled(edit, plan, group.name, share, group.dtype, factor)
    for worker, own in enumerate(ranks):
        places, add = group.of(own), of_keeper(plan, worker, node_of(group.tensors[0]))
        if not places:
            continue
        shapes = [group.shapes[place] for place in places]
        values = parts(edit, "%s/to_%d" % (group.name, worker), share, shapes, group.dtype, host, add)
        for place, value in zip(places, values):
            rewire(edit, plan, plan.aggregation.consumers[group.tensors[place]], value, group.shard_rank)


def _halved(edit, plan, name, vector, add):
    """A float32 vector times communication.fp16_scale, in 16 bits."""
    scale = add(edit, constant(name + "/scale", plan.fp16_scale, FLOAT32, plan.mesh.host_device))
    product = make_node("Mul", name + "/scaled", [vector, scale], plan.mesh.host_device, T=Type(FLOAT32))
    types = dict(SrcT=Type(FLOAT32), DstT=Type(FLOAT16))
    return add(edit, make_node("Cast", name, [add(edit, product)], plan.mesh.host_device, **types))


def _whole(edit, plan, name, share, judged, add):
    """A share of a sum of such vectors in float32; what 16 bits cannot hold is an error, or a step that is left out."""
    host = plan.mesh.host_device
    if not judged:
        message = "'%s': %s (communication.fp16_scale is %g)" % (name, _NOT_FINITE, plan.fp16_scale)
        check = make_node("CheckNumerics", name + "/finite", [share], host, T=Type(FLOAT16), message=message.encode())
        share = add(edit, check)
    return add(edit, make_node("Cast", name + "/whole", [share], host, SrcT=Type(FLOAT16), DstT=Type(FLOAT32)))


def _counts(group, own):
    """Elements of the vectors that `_flat` makes for a worker."""
    return [group.size(place) for place in group.of(own)] + [1] * (not group.size_of(own))


def _flat(graph, edit, plan, group, ranks, instance, all_have):
    """An instance's gradients of a group as vectors, those for each worker one after the other.

    Args:
      ranks: for each worker those of its owners.
      all_have: function that adds a node.
    """
    flat = []
    stem = group.name + ("/instance_%d" % instance if instance else "")
    for worker, own in enumerate(ranks):
        for place in group.of(own):
            tensor, name = instance_tensor(plan, group.tensors[place], instance), "%s/flat_%d" % (stem, place)
            device = graph.nodes[node_of(tensor)].device
            flat.append(reshape(edit, name, tensor, (-1,), group.dtype, device, all_have))
        if not group.size_of(own):
            flat.append(_filler(edit, plan, "%s/filler_%d" % (stem, worker), group.dtype, all_have))
    return flat


def _sum(edit, name, vectors, dtype, device, add):
    return add(edit, make_node("AddN", name, list(vectors), device, N=len(vectors), T=Type(dtype)))


def _filler(edit, plan, name, dtype, all_have):
    """A vector of one element, for a worker that has nothing to get: a share is never empty."""
    host = plan.mesh.host_device
    zero = all_have(edit, constant(name + "/zero", [0.0], FLOAT32, host))
    return all_have(edit, make_node("Cast", name, [zero], host, SrcT=Type(FLOAT32), DstT=Type(dtype)))


def _scaled(edit, plan, name, tensor, dtype, factor):
    """A tensor times a number."""
    host = plan.mesh.host_device
    scale = _constant(edit, plan, name + "/scale", factor, FLOAT32)
    cast = make_node("Cast", name + "/scale_cast", [scale], host, SrcT=Type(FLOAT32), DstT=Type(dtype))
    return edit.add(make_node("Mul", name + "/scaled", [tensor, edit.add(cast).name], host, T=Type(dtype))).name


def _constant(edit, plan, name, value, dtype):
    return edit.add(constant(name, value, dtype, plan.mesh.host_device)).name


def _gather_indices(graph, edit, plan, sparse):
    _, name = sparse.gathered
    dtype = dtype_of(graph, sparse.indices)
    return edit.add(all_gather_node(plan, name, sparse.indices, dtype)).name, dtype


def _gather(graph, edit, plan, sparse):
    name, _ = sparse.gathered
    dtype = dtype_of(graph, sparse.values)
    gather = all_gather_node(plan, name, sparse.values, dtype)
    gathered = edit.add(gather).name
    scaled = _scaled(edit, plan, sparse.name, gathered, dtype, plan.gradient_scale_of(sparse.values))
    return scaled, _gather_indices(graph, edit, plan, sparse)[0]


def _dense_detour(graph, edit, plan, sparse):
    """Adds up each instance's slices into a dense tensor, reduces that, and takes out the rows that any instance
    touched.

    The optimizer still sees IndexedSlices, so it updates the rows that one device would update, and no others.
    """
    host = plan.mesh.host_device
    indices, index_dtype = _gather_indices(graph, edit, plan, sparse)
    rows = _constant(edit, plan, sparse.name + "/rows", sparse.rows, INT32)
    dtype = dtype_of(graph, sparse.values)
    dense = []
    for instance in plan.mesh.givers(sparse.shard_rank, plan.stage(sparse.values)):
        dense.append(
            edit.add(
                make_node(
                    "UnsortedSegmentSum",
                    "%s/dense_%d" % (sparse.name, instance.index),
                    [
                        instance_tensor(plan, sparse.values, instance.index),
                        instance_tensor(plan, sparse.indices, instance.index),
                        rows,
                    ],
                    host,
                    T=Type(dtype),
                    Tindices=Type(index_dtype),
                    Tnumsegments=Type(INT32),
                )
            ).name
        )
    name = sparse.reduced
    reduced = collective_node(
        plan,
        plan.collective(name),
        name,
        dense,
        dtype,
        N=1,
        R=len(dense),
        num_inputs=len(dense),
        reduce_op="sum",
        scale=plan.gradient_scale_of(sparse.values),
    )
    edit.add(reduced)
    unique = edit.add(
        make_node("Unique", sparse.name + "/touched", [indices], host, T=Type(index_dtype), out_idx=Type(INT32))
    ).name
    axis = _constant(edit, plan, sparse.name + "/axis", 0, INT32)
    values = edit.add(
        make_node(
            "GatherV2",
            sparse.name + "/touched_rows",
            [name, unique, axis],
            host,
            Tparams=Type(dtype),
            Tindices=Type(index_dtype),
            Taxis=Type(INT32),
            batch_dims=0,
        )
    ).name
    return values, unique
