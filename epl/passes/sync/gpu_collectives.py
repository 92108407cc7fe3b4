r"""Moves collectives to the GPU that their tensors are on: between workers, where NCCL carries them, and within one.

    grad   \                                grad   \
            EplAllReduce @CPU:0   becomes           AddN @GPU:0 -> EplAllReduce @GPU:0
    grad/1 /                                grad/1 /

Copies of the model in one worker are added up by TensorFlow's own kernels; the collective is between the first GPUs of
the workers, and of a single worker nothing but the sum is left. What takes a result apart goes along. The same happens
in every worker, or their collectives would not meet: what is moved follows from the operation alone and from where the
place pass put what it takes.
"""

from epl.graph import tags
from epl.graph.index import node_of
from epl.graph.node_defs import Type, constant, make_node, set_attr
from epl.graph.types import FLOAT32, INT32, INT64, SHORT_FLOATS
from epl.plan.cost.memory import PARTS

_MOVED = frozenset(
    [
        "EplAllGather",
        "EplAllReduce",
        "EplAllToAll",
        "EplBroadcast",
        "EplRecv",
        "EplReduce",
        "EplReduceScatter",
        "EplSend",
    ]
)
_MESSAGES = frozenset(["EplSend", "EplRecv"])
_REDUCTIONS = frozenset(["EplAllReduce", "EplReduce", "EplReduceScatter"])
# AddN takes them all at once, the others two at a time.
_LOCAL = {"sum": "AddN", "mean": "AddN", "min": "Minimum", "max": "Maximum", "prod": "Mul"}


def move_collectives_to_gpu(program, plan):
    """Moves what can run there; without NCCL what is between workers stays where the place pass has put it."""
    graph = program.graph
    several = plan.mesh.copies.num_workers > 1
    if plan.mesh.device_type != "GPU" or (several and not plan.collectives_on_gpu):
        return program
    can_move = _can_move if several else _can_become_local
    moved = [name for name in graph.find(_MOVED.__contains__) if can_move(graph, graph.nodes[name])]
    if not moved:
        return program
    edit = graph.editor()
    device = plan.mesh.device(0)
    for name in moved:
        node = edit.node(name)
        node.device = device
        node.attr.pop("_class", None)
        for consumer in graph.edges.data_consumers.get(name, ()):
            if graph.nodes[consumer].op == PARTS:
                edit.node(consumer).device = device
        if node.op == "EplAllReduce" and tags.get_int(node, "R", 1) > 1:
            _reduce_locally(edit, node)
        if not several:
            _become_local(edit, node)
    _forget_colocation(graph, edit, frozenset("loc:@" + name for name in moved))
    return program.with_graph(edit.finish())


def _can_move(graph, node):
    dtype = node.attr["T"].type
    if tags.get_int(node, "workers", 1) < 2 or dtype == INT32:  # TensorFlow keeps int32 in host memory, on GPUs too
        return False
    if "wire_fp16" in node.attr and node.attr["wire_fp16"].b:  # packed and unpacked by the kernel of the host
        return False
    if node.op in _REDUCTIONS and tags.get_str(node, "reduce_op") == "mean" and dtype == INT64:  # not NCCL's
        return False
    if node.op in _MESSAGES:  # sender and receiver know nothing of each other's devices
        return True
    return _takes_from_gpu(graph, node)


def _can_become_local(graph, node):
    """In a single worker: reductions over its copies."""
    int32 = node.attr["T"].type == INT32
    return (
        node.op == "EplAllReduce"
        and tags.get_int(node, "workers", 1) == 1
        and not int32
        and _takes_from_gpu(graph, node)
    )


def _takes_from_gpu(graph, node):
    data = [graph.nodes[node_of(text)].device for text in node.input if text[0] != "^"]
    if node.op != "EplAllGather" or tags.get_str(node, tags.ROLE) != "collective":
        return any("GPU" in device for device in data)
    # The found_inf must be that of all workers, whose shares may be empty and on the host: what the others send is
    # among
    # the control inputs, and has the device of the user, which is none for most, where another worker has placed it.
    others = [graph.nodes[text[1:]].device for text in node.input if text[0] == "^"]
    return any("CPU" not in device.upper() for device in data + others)


def _reduce_locally(edit, node):
    """Puts one tensor a worker in the place of those of all local copies."""
    copies, count = node.attr["R"].i, node.attr["N"].i
    data = [text for text in node.input if text[0] != "^"]
    control = [text for text in node.input if text[0] == "^"]
    method = tags.get_str(node, "reduce_op") or "sum"
    del node.input[:]
    for i in range(count):
        node.input.append(_combined(edit, node, "%s/local_%d" % (node.name, i), data[i::count], _LOCAL[method]))
    node.input.extend(control)
    if method == "mean":  # over all copies of all workers
        set_attr(node, "reduce_op", "sum")
        scale = node.attr["scale"].f if "scale" in node.attr else 1.0
        set_attr(node, "scale", scale / (copies * node.attr["workers"].i))
    set_attr(node, "R", 1)
    set_attr(node, "num_inputs", count)


def _combined(edit, node, name, tensors, op):
    dtype = Type(node.attr["T"].type)
    if dtype in SHORT_FLOATS:
        wide = [_cast(edit, node, "%s_wide_%d" % (name, i), t, dtype, FLOAT32) for i, t in enumerate(tensors)]
        return _cast(edit, node, name + "_short", _join(edit, node, name, wide, op, Type(FLOAT32)), FLOAT32, dtype)
    return _join(edit, node, name, tensors, op, dtype)


def _join(edit, node, name, tensors, op, dtype):
    if op == "AddN":
        return edit.add(make_node(op, name, tensors, node.device, N=len(tensors), T=dtype)).name
    result = tensors[0]
    for number, tensor in enumerate(tensors[1:]):
        result = edit.add(make_node(op, "%s_%d" % (name, number), [result, tensor], node.device, T=dtype)).name
    return result


def _cast(edit, node, name, tensor, source, target):
    return edit.add(make_node("Cast", name, [tensor], node.device, SrcT=Type(source), DstT=Type(target))).name


def _become_local(edit, node):
    """Leaves of a reduction over the copies of one worker what `_reduce_locally` has put before it, scaled."""
    dtype, scale = node.attr["T"].type, node.attr["scale"].f if "scale" in node.attr else 1.0
    count = tags.get_int(node, "N", 1)
    if scale != 1.0:
        by = edit.add(constant(node.name + "/factor", scale, FLOAT32, node.device)).name
        if dtype != FLOAT32:
            by = _cast(edit, node, node.name + "/factor_cast", by, FLOAT32, dtype)
        for i in range(count):
            scaled = make_node("Mul", "%s/scaled_%d" % (node.name, i), [node.input[i], by], node.device, T=Type(dtype))
            node.input[i] = edit.add(scaled).name
    node.op = "IdentityN"
    for key in [key for key in node.attr if not key.startswith("_")]:
        del node.attr[key]
    node.attr["T"].list.type.extend([dtype] * count)


def _forget_colocation(graph, edit, groups):
    """Others that wanted to be where a moved node was."""
    groups = frozenset(group.encode() for group in groups)
    for name, node in graph.nodes.items():
        if "_class" not in node.attr or not groups.intersection(node.attr["_class"].list.s):
            continue
        own = edit.node(name)
        kept = [group for group in own.attr["_class"].list.s if group not in groups]
        if kept:
            own.attr["_class"].list.s[:] = kept
        else:
            own.attr.pop("_class", None)
