r"""Puts the aggregate of all instances' gradients in the place of each instance's own.

    grad   -> apply                 grad   \                / apply
    grad/1 -> apply/1   becomes             EplAllReduce ->
                                    grad/1 /                \ apply/1

IndexedSlices are gathered: the values and indices of all instances, one after the other.
"""

from epl.graph.build import Type, constant, make_node
from epl.passes.nodes import all_gather_node, all_reduce_node, dtype_of, instance_tensor, rewire, tagged
from epl.plan.names import tag_of

_FLOAT32 = 1
_INT32 = 3


def aggregate_gradients(program, plan):
    """One all-reduce for each group of dense gradients, two all-gathers for each sparse one."""
    graph = program.graph
    if not plan.aggregation.groups and not plan.aggregation.sparse:
        return program
    edit = graph.editor()
    for group in plan.aggregation.groups:
        fp16 = {"wire_fp16": True, "fp16_scale": plan.fp16_scale} if plan.wire_fp16 and group.dtype == _FLOAT32 else {}
        edit.add(
            all_reduce_node(
                plan, group.name, group.tensors, group.dtype, plan.gradient_scale, group.slot, group.tag, **fp16
            )
        )
        for index, tensor in enumerate(group.tensors):
            rewire(
                edit, plan, plan.aggregation.consumers[tensor], "%s:%d" % (group.name, index) if index else group.name
            )
    for sparse in plan.aggregation.sparse:
        values, indices = (_dense_detour if plan.sparse_as_dense and sparse.rows > 0 else _gather)(
            graph, edit, plan, sparse
        )
        rewire(edit, plan, plan.aggregation.consumers[sparse.values], values)
        rewire(edit, plan, plan.aggregation.consumers[sparse.indices], indices)
    return program.with_graph(edit.finish())


def _constant(edit, plan, name, value, dtype):
    return edit.add(constant(name, value, dtype, plan.mesh.host_device)).name


def _gather_indices(graph, edit, plan, sparse):
    name = sparse.name + "/indices"
    dtype = dtype_of(graph, sparse.indices)
    return edit.add(all_gather_node(plan, name, sparse.indices, dtype, sparse.slot, tag_of(name))).name, dtype


def _gather(graph, edit, plan, sparse):
    host = plan.mesh.host_device
    name = sparse.name + "/values"
    dtype = dtype_of(graph, sparse.values)
    gathered = edit.add(all_gather_node(plan, name, sparse.values, dtype, sparse.slot, tag_of(name))).name
    scale = _constant(edit, plan, sparse.name + "/scale", plan.gradient_scale, _FLOAT32)
    cast = edit.add(
        make_node("Cast", sparse.name + "/scale_cast", [scale], host, SrcT=Type(_FLOAT32), DstT=Type(dtype))
    ).name
    scaled = edit.add(make_node("Mul", sparse.name + "/scaled", [gathered, cast], host, T=Type(dtype))).name
    return scaled, _gather_indices(graph, edit, plan, sparse)[0]


def _dense_detour(graph, edit, plan, sparse):
    """Adds up each instance's slices into a dense tensor, reduces that, and takes out the rows that any instance
    touched.

    The optimizer still sees IndexedSlices, so it updates the rows that one device would update, and no others.
    """
    host = plan.mesh.host_device
    indices, index_dtype = _gather_indices(graph, edit, plan, sparse)
    rows = _constant(edit, plan, sparse.name + "/rows", sparse.rows, _INT32)
    dtype = dtype_of(graph, sparse.values)
    dense = []
    for instance in plan.mesh.instances:
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
                    Tnumsegments=Type(_INT32),
                )
            ).name
        )
    name = sparse.name + "/reduced"
    reduced = make_node(
        "EplAllReduce",
        name,
        dense,
        host,
        N=1,
        R=len(dense),
        num_inputs=len(dense),
        T=Type(dtype),
        comm=plan.mesh.copies.communicator(sparse.slot),
        tag=tag_of(name),
        workers=plan.mesh.copies.num_workers,
        reduce_op="sum",
        scale=plan.gradient_scale,
    )
    edit.add(tagged(reduced, "collective"))
    unique = edit.add(
        make_node("Unique", sparse.name + "/touched", [indices], host, T=Type(index_dtype), out_idx=Type(_INT32))
    ).name
    axis = _constant(edit, plan, sparse.name + "/axis", 0, _INT32)
    values = edit.add(
        make_node(
            "GatherV2",
            sparse.name + "/touched_rows",
            [name, unique, axis],
            host,
            Tparams=Type(dtype),
            Tindices=Type(index_dtype),
            Taxis=Type(_INT32),
            batch_dims=0,
        )
    ).name
    return values, unique
