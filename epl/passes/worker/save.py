r"""Lets the chief write a checkpoint of variables that other workers have without ever holding all of them.

    w (here), v (received) -> SaveV2   becomes   w -> SaveV2 (part 0)
                                                 v -> SaveV2 (part 1), received after part 0 is written, ...
                                                 -> MergeV2Checkpoints

The parts are one checkpoint of several data files, as TensorFlow's own sharded ones are.
"""

from epl.graph import tags
from epl.graph.index import node_of
from epl.graph.node_defs import Type, constant, make_node
from epl.graph.types import DTYPE_BYTES, INT32, STRING
from epl.partition.checkpoints import FIRST_SAVED, slice_size
from epl.passes.save_nodes import saved_by
from epl.plan.exchange.order import OF_SHARDS
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.names import PREFIX
from epl.plan.facts.variable_sizes import size_bytes

# What is received at a time, or one variable if that is larger.
_FILE_BYTES = 64 << 20


def save_by_file(program, plan):
    """Divides each SaveV2 of a worker's graph that takes messages; they are received in their order."""
    if plan.saves_beside:  # all of it lies in host memory, before any of it is written
        return program
    graph, part = program.graph, program.part
    messages = [m for m in part.messages if m.target == part.index] if part is not None else []
    received = {m.receive: (place, _bytes(part, plan, m.tensor)) for place, m in enumerate(messages)}
    received.update(_of_shards(graph))
    edit = graph.editor()
    for name in graph.find(lambda op: op == "SaveV2") if received else ():
        made = _made_of(graph, name, received)
        if made or any(node_of(text) in received for text in graph.nodes[name].input):
            _divide(graph, edit, plan, name, received, made)
    return program.with_graph(edit.finish())


def _made_of(graph, name, received):
    """The tensors of a SaveV2 that are made of what is received: node to (place of the last of that, bytes)."""
    found = {}
    for text in graph.nodes[name].input[FIRST_SAVED:]:
        if text[0] != "^" and node_of(text) not in received:
            needed = [received[n] for n in graph.ancestors([node_of(text)], data_only=True) if n in received]
            if needed:
                found[node_of(text)] = max(needed)[0], sum(size for _, size in needed)
    return found


def _divide(graph, edit, plan, name, direct, made):
    """Divides one SaveV2; direct, made: (place, bytes) of what is received, and of what is made of that."""
    received = {**direct, **made}
    node = graph.nodes[name]
    tensors = [text for text in node.input[FIRST_SAVED:] if text[0] != "^"]
    control = [text for text in node.input if text[0] == "^"]
    here = [i for i, text in enumerate(tensors) if node_of(text) not in received]
    others = [i for i, text in enumerate(tensors) if node_of(text) in received]
    others.sort(key=lambda i: received[node_of(tensors[i])][0])
    sizes = {i: received[node_of(tensors[i])][1] for i in others}
    runs = ([here] if here else []) + _runs(others, sizes)
    device = plan.mesh.host_device
    prefixes, before = [], control
    for index, members in enumerate(runs):
        stem = "%s_save/%s/part_%d" % (PREFIX, name, index)
        prefixes.append(_prefix(edit, stem, node.input[0], index, len(runs), device))
        for member in members:
            if node_of(tensors[member]) in direct and before != control:
                edit.node(node_of(tensors[member])).input.extend(before)
        inputs = [prefixes[-1]]
        inputs += [_chosen(edit, "%s/%s" % (stem, kind), node.input[p], members) for p, kind in _LISTS]
        save = make_node("SaveV2", stem, inputs + [tensors[i] for i in members] + before, device)
        save.attr["dtypes"].list.type.extend(node.attr["dtypes"].list.type[i] for i in members)
        before = ["^" + edit.add(save).name]
    packed = make_node(
        "Pack", "%s_save/%s/parts" % (PREFIX, name), prefixes, device, N=len(prefixes), T=Type(STRING), axis=0
    )
    merge = edit.node(name)
    merge.op = "MergeV2Checkpoints"
    merge.device = device
    del merge.input[:]
    merge.input.extend([edit.add(packed).name, node.input[0]] + before)
    for key in ("dtypes", "_class"):
        merge.attr.pop(key, None)
    merge.attr["delete_old_dirs"].b = False


_LISTS = ((1, "names"), (2, "slices"))


def _bytes(part, plan, tensor):
    """Bytes of a variable that is sent; what is not known counts as a part of its own."""
    variable = plan.variables.get(variable_of(part.whole, node_of(tensor)))
    return (size_bytes(variable) if variable is not None else 0) or _FILE_BYTES


def _of_shards(graph):
    """What comes from workers that have other parts of tensors, as `save_shards` lets it: node to (place, bytes)."""
    found = {}
    for name in graph.find(lambda op: op == "SaveV2"):
        for text, _, piece, dtype in saved_by(graph.nodes.__getitem__, graph.nodes[name]) or ():
            node = graph.nodes[node_of(text)]
            if node.op == "EplBroadcastReceive" and tags.get_str(node, tags.ROLE) == OF_SHARDS:
                found[node.name] = len(found), slice_size(piece) * DTYPE_BYTES.get(dtype, 4)
    return found


def _runs(members, sizes):
    runs, filled = [], 0
    for member in members:
        if not runs or filled + sizes[member] > _FILE_BYTES:
            runs.append([])
            filled = 0
        runs[-1].append(member)
        filled += sizes[member]
    return runs


def _prefix(edit, stem, prefix, index, count, device):
    """The name of a part's files, beside the checkpoint's; merging renames them. SaveV2 makes no folder in a folder."""
    text = constant(stem + "/suffix", b"_epl_part-%05d-of-%05d" % (index, count), STRING, device)
    join = make_node("StringJoin", stem + "/prefix", [prefix, edit.add(text).name], device, N=2, separator="")
    return edit.add(join).name


def _chosen(edit, name, text, members):
    """Some of a vector of strings."""
    edit.add(constant(name + "/indices", members, INT32))
    edit.add(constant(name + "/axis", 0, INT32))
    gather = make_node(
        "GatherV2",
        name,
        [text, name + "/indices", name + "/axis"],
        edit.peek(node_of(text)).device,
        Tparams=Type(STRING),
        Tindices=Type(INT32),
        Taxis=Type(INT32),
        batch_dims=0,
    )
    return edit.add(gather).name
