r"""Gives each worker the parameters that others hold, where it computes with them (`zero.level` "v2" and "v3").

    read (owner) -> segment (all)   becomes   read (owner) -> flat \
                                                                    EplAllGather -> SplitV -> segment (all)
                                                      others' flat /

Devices of one worker get what another one holds from TensorFlow itself. What lies in host memory (`offload.level`)
comes to the host: no device has more of it than the copies that it computes with.
"""

from dataclasses import replace

from epl.graph import tags
from epl.graph.build import Type, make_node
from epl.passes.sync.divide_updates import gather_from_owners
from epl.passes.vectors import Whereabouts, empty, reshape, split
from epl.plan.gradients import num_elements
from epl.plan.names import clone_name, micro_batch_name


def gather_parameters(program, plan):
    """Between what reads the parameters of a segment and what takes them, an all-gather; one in each micro-batch whose
    segments wait for what differs between these."""
    if plan.zero is None or not plan.zero.segments or plan.sharing.num_workers == 1:
        return program
    edit, where = program.graph.editor(), Whereabouts(plan)
    for segment in plan.zero.segments:
        copies = len(program.micro_batches.copies(segment.nodes[0]))
        for micro_batch in range(copies):
            _gather(program.graph, edit, plan, segment, micro_batch, where)
    return replace(program.with_graph(edit.finish()), plan=where.planned())


def _gather(graph, edit, plan, segment, micro_batch, where):
    """Replaces the nodes of a segment in one micro-batch."""
    zero, host, stem = plan.zero, plan.mesh.host_device, micro_batch_name(segment.gather, micro_batch)
    rank_of = {variable: plan.placed(variable).data.rank for variable in segment.variables}
    places = sorted(range(len(segment.variables)), key=lambda place: rank_of[segment.variables[place]])
    shares, all_have = [], where.of_stage(segment.variables[0])
    for rank in range(plan.sharing.size):
        add, flat = where.of_keeper(rank // zero.local, segment.variables[0]), []
        for place in places:
            if rank_of[segment.variables[place]] == rank:
                read = graph.nodes[segment.reads[place]]
                # Also of reads that other workers have, and have placed: all must come to the same (gpu_collectives).
                device = host if tags.HOST in read.attr else read.device
                flat.append(reshape(edit, "%s/%d" % (stem, place), read.name, (-1,), segment.dtype, device, add))
        shares.append(flat or [empty(edit, "%s/from_%d" % (stem, rank), segment.dtype, host, add)])
    nodes = [micro_batch_name(name, micro_batch) for name in segment.nodes]
    waits = [text for text in graph.nodes[nodes[0]].input if text[0] == "^"]
    slot = segment.number % plan.mesh.num_communicators
    tag = segment.tag_of(micro_batch)
    pieces = [gather_from_owners(edit, plan, stem, shares, segment.dtype, slot, tag, all_have, waits)]
    shapes = [plan.variables[segment.variables[place]] for place in places]
    if len(places) > 1:
        sizes = [num_elements(known) for known in shapes]
        pieces = split(edit, stem + "/pieces", pieces[0], sizes, segment.dtype, host, all_have)
    for place, piece, known in zip(places, pieces, shapes):
        value = reshape(edit, "%s/%d/value" % (stem, place), piece, known.shape, segment.dtype, host, all_have)
        for instance in plan.mesh.instances:
            node = edit.node(clone_name(nodes[place], instance.index))
            node.CopyFrom(_handing_on(node, value, segment.dtype))


def _handing_on(node, value, dtype):
    """The node of a segment, which waits no more: the collective does."""
    made = make_node("Identity", node.name, [value], node.device, T=Type(dtype))
    for key, attr in node.attr.items():
        if key.startswith("_"):
            made.attr[key].CopyFrom(attr)
    return made
