r"""Lets owners of gradients agree on whether all are finite (amp.loss_scale, with zero.level or stages in workers).

    finite/0 (owner 0) \              finite/0 -> all (owner 0) \
                        packed   becomes                         EplAllReduce(min) -> packed
    finite/1 (owner 1) /              finite/1 -> all (owner 1) /

What is known of gradients that nobody owns stays where it is. With stages in several workers each worker's gradients
are those of its stages, of one copy of the model: the others have the same, as they are aggregated by then.
"""

from epl.graph.index import node_of
from epl.graph.node_defs import Type, constant, make_node, set_attr
from epl.graph.types import BOOL, INT32
from epl.passes.node_workers import at, everywhere, of_keeper
from epl.passes.nodes import collective_node
from epl.plan.facts.names import clone_name
from epl.plan.precision.found_inf import stages_found_infs
from epl.plan.zero.zero import owners_found_infs


def join_found_infs(program, plan):
    """One all-reduce of a number for each FoundInf on gradients that have owners."""
    found, of_stages = owners_found_infs(plan), stages_found_infs(plan)
    if not found and not of_stages:
        return program
    graph, edit = program.graph, program.graph.editor()
    for agreement in found:
        _agree(graph, edit, plan, agreement)
    for found_inf in of_stages:
        _agree_in_pipeline(graph, edit, plan, found_inf)
    return program.with_graph(edit.finish())


def _agree(graph, edit, plan, agreement):
    copies = plan.zero.shard_group
    here = plan.zero.of_worker(copies.index)
    said = [_said(edit, plan, agreement, rank) for rank in range(copies.size)]
    inputs = [said[rank] for rank in here] + ["^" + name for rank, name in enumerate(said) if rank not in here]
    reduce = _least(plan, agreement, inputs, len(here))
    flags = {clone_name(name, shard_rank) for name, _ in agreement.flags for shard_rank in range(plan.zero.num_owned)}
    _take(edit, plan, agreement, everywhere(edit, reduce), flags)


def _agree_in_pipeline(graph, edit, plan, found_inf):
    """Each worker hands in what it says itself: cutting leaves it that, unless owners share state."""
    joined = _joined(graph, found_inf)
    host, group, places = plan.mesh.host_device, plan.owning_group, range(plan.mesh.pipeline.num_workers)
    shared, said = plan.zero is not None, []
    for copy in range(found_inf.copies):
        for place in places:
            stem = "%s/from_%d" % (found_inf.name, len(said))
            add = at(place, copy if found_inf.copies > 1 else None)
            flags = sorted({joined.get(flag, flag) for flag in found_inf.flags_of(place, copy)})
            said.append(_number(edit, stem, flags, host, add))
    named = [joined.get(name, name) for name, _, _ in found_inf.flags]
    flags = {clone_name(name, i.index) for name in named for i in plan.mesh.instances}
    if shared:
        inputs = [said[group.index]] + ["^" + name for place, name in enumerate(said) if place != group.index]
        reduce = _least(plan, found_inf, inputs, 1)
        _take(edit, plan, found_inf, everywhere(edit, reduce), flags)
    else:
        reduce = _least(plan, found_inf, said, len(said))
        _take(edit, plan, found_inf, edit.add(reduce).name, flags)


def _joined(graph, found_inf):
    """dict of flags of which each device says something else, as it has a part of the gradient (epl.split), to the node
    that has what all devices say."""
    flags, found = {name for name, _, _ in found_inf.flags}, {}
    for producer, index in graph.inputs[found_inf.packed]:
        if index >= 0 and producer not in flags:
            made_of = graph.ancestors([producer], stop=flags, data_only=True) & flags
            found.update((flag, producer) for flag in made_of)
    return found


def _least(plan, found_inf, inputs, copies):
    """The all-reduce that gives the least of all numbers: of `copies` inputs here."""
    options = dict(N=1, R=copies, num_inputs=copies, reduce_op="min")
    return collective_node(plan, plan.collective(found_inf.name), found_inf.name, inputs, INT32, **options)


def _take(edit, plan, agreement, least, flags):
    """Puts what all say into the place of what is known of each gradient."""
    host = plan.mesh.host_device
    cast = make_node("Cast", agreement.name + "/all", [least], host, SrcT=Type(INT32), DstT=Type(BOOL))
    all_finite = everywhere(edit, cast)
    for instance in plan.mesh.instances:
        packed = edit.node(clone_name(agreement.packed, instance.index))
        kept = [text for text in packed.input if node_of(text) not in flags]
        del packed.input[:]
        packed.input.extend([all_finite] + kept)
        set_attr(packed, "N", len([text for text in packed.input if text[0] != "^"]))


def _said(edit, plan, agreement, rank):
    """What a copy of the model says of the gradients that it owns: 1 where all are finite; in its worker alone."""
    host, add = plan.mesh.host_device, of_keeper(plan, rank // plan.zero.shard_group.local, agreement.packed)
    return _number(edit, "%s/from_%d" % (agreement.name, rank), agreement.flags_of(rank), host, add)


def _number(edit, stem, flags, host, add):
    """The node that is 1 where all of some truth values hold, else 0."""
    if not flags:
        return add(edit, constant(stem, 1, INT32, host))
    packed = make_node("Pack", stem + "/packed", flags, host, N=len(flags), T=Type(BOOL), axis=0)
    axis = add(edit, constant(stem + "/axis", [0], INT32, host))
    inputs = [add(edit, packed), axis]
    every = add(edit, make_node("All", stem + "/all", inputs, host, Tidx=Type(INT32), keep_dims=False))
    return add(edit, make_node("Cast", stem, [every], host, SrcT=Type(BOOL), DstT=Type(INT32)))
