r"""Copies what every micro-batch of a step computes, and adds up the gradients.

                                        x   -> y   -> grad   \
    x -> y -> grad -> apply   becomes           (then)        Add -> Mul (1/2) -> apply
                                        x/1 -> y/1 -> grad/1 /

What comes out is a program again, of one device and without parallelism, to which everything else is done as usual. Its
plan says of the copies what it said of the one copy (epl.plan.pipeline.copied).
"""

from dataclasses import dataclass, field, replace
from typing import Dict, FrozenSet, Tuple

from epl.errors import PlanError
from epl.graph import tags, types
from epl.graph.index import canonical_tensor, format_input, node_of, parse_input
from epl.graph.node_defs import Type, constant, make_node, set_attr
from epl.graph.types import FLOAT32, INT32
from epl.passes.copies.reseed_functions import call_copies
from epl.passes.copies.schedule_gates import Gates, order_actions, order_changes
from epl.passes.copies.stamp import Stamp
from epl.passes.node_copies import marks_of
from epl.passes.nodes import dtype_of, tagged
from epl.passes.row_lists import add_rows
from epl.passes.seeds import derive, seeds_of, set_seed, turn_seed
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.merge_points import source_of
from epl.plan.facts.names import merged_name, micro_batch_name, micro_batch_tensor
from epl.plan.facts.summarised import shown_by
from epl.plan.pipeline.copied import merged_before_name
from epl.rules import effects


@dataclass(frozen=True)
class Unrolled:
    """What a session needs to know of a model whose micro-batches are copies.

    Attributes:
      count: micro-batches.
      nodes: the user's nodes of which each micro-batch has a copy.
      writes: changes of state; who runs one runs the copies too.
      fetched: tensor to what a fetch of it gets: its merged value.
      counted: nodes that hold what metrics come to; of these a fetch gets the last micro-batch's.
      action_of: node of the user's to (kind, stage): the action of the schedule that computes it.
      sums: gradient tensor to the sum of those of all micro-batches.
      added: all nodes that were added, in creation order.
      gates: (node names whose being reached means that a root is served, names of its gates) pairs.
    """

    count: int
    nodes: FrozenSet[str]
    writes: FrozenSet[str]
    fetched: Dict[str, str]
    gates: Tuple[Tuple[FrozenSet[str], Tuple[str, ...]], ...]
    action_of: Dict[str, Tuple[str, int]] = field(default_factory=dict)
    counted: FrozenSet[str] = frozenset()
    sums: Dict[str, str] = field(default_factory=dict)
    added: Tuple[str, ...] = ()

    def copies(self, name):
        """A node's copies for all micro-batches, by name; the node alone where all share it."""
        return [micro_batch_name(name, m) for m in range(self.count if name in self.nodes else 1)]

    def original(self, node):
        """The name of the node of the user's of which a NodeDef is the copy for a micro-batch, or beside whose copies a
        pass has added it; its own for others."""
        if tags.ORIGINAL in node.attr:
            return tags.get_str(node, tags.ORIGINAL)
        name = node.name[len(micro_batch_name("", tags.get_int(node, tags.MICRO_BATCH))) :]
        return name if name in self.nodes else node.name

    def shown(self, tensor):
        """The tensor that a fetch of `tensor`, a canonical name, gets as far as micro-batches go."""
        if node_of(tensor) in self.counted and tensor not in self.fetched:
            return micro_batch_tensor(tensor, self.count - 1)
        return self.fetched.get(tensor, tensor)


def copy_micro_batches(program, plan):
    """Makes the copies.

    Raises:
      PlanError: a tensor that is to be averaged holds no floating-point numbers.
    """
    if plan.micro_batches is None:
        return replace(program, micro_batches=Unrolled(1, frozenset(), frozenset(), {}, ()))
    whole, plan = plan, plan.micro_batches
    graph = program.graph
    edit = graph.editor()
    for name, waits in plan.not_awaited.items():
        kept = [text for text in graph.nodes[name].input if text not in waits]
        del edit.node(name).input[:]
        edit.node(name).input.extend(kept)
    _copy(graph, edit, plan)
    _wait_for_all(graph, edit, plan)
    replaced, added = _accumulate(graph, edit, plan)
    gates = Gates(edit, plan, [whole.mesh.device(index) for index in whole.mesh.instances[0].devices])
    order_actions(graph, edit, plan, gates, added)
    order_changes(graph, edit, plan, gates)
    fetched = _merge(graph, edit, plan, program, whole.mesh.host_device)
    counted = _counted(graph, edit, plan, program)
    _reseed(graph, edit, plan)
    result = edit.finish()
    unrolled = Unrolled(
        plan.count,
        plan.nodes,
        frozenset(plan.writes),
        fetched,
        gates.by_root(added),
        plan.action_of,
        counted,
        replaced,
        tuple(name for name in result.nodes if name not in graph.nodes),
    )
    return replace(program, graph=result, micro_batches=unrolled)


def _tensor(plan, text, micro_batch):
    """A tensor as a micro-batch sees it: its own copy, or the one that all share."""
    return micro_batch_tensor(text, micro_batch) if node_of(text) in plan.nodes else text


def _copy(graph, edit, plan):
    """Adds the copies."""
    nodes = {name: edit.peek(name) for name in graph.in_order(plan.nodes)}
    edited = {name: tuple(map(parse_input, edit.peek(name).input[:])) for name in plan.not_awaited if name in nodes}
    stamp = Stamp(nodes, lambda name: edited[name] if name in edited else graph.inputs[name])
    for micro_batch in range(1, plan.count):
        marks = marks_of(**{tags.MICRO_BATCH: micro_batch})
        stamp.copies(edit, micro_batch_name("", micro_batch), marks)


def _wait_for_all(graph, edit, plan):
    """What waits for an operation of which there are copies now waits for all of them."""
    for name in graph.in_order(plan.once):
        awaited = [text for text in graph.nodes[name].input if text[0] == "^" and text[1:] in plan.nodes]
        for text in awaited:
            edit.node(name).input.extend(micro_batch_tensor(text, m) for m in range(1, plan.count))


def _accumulate(graph, edit, plan):
    """Adds up gradients.

    Returns:
      (dict of gradient tensor to its sum or mean, dict of (Accumulated's name, micro-batch) to the node that is there
      when that micro-batch is added).
    """
    replaced, added = {}, {}
    for gradient in plan.gradients:
        combine = _put_end_to_end if gradient.indices else _sum
        for tensor, consumers in zip((gradient.values, gradient.indices), gradient.consumers):
            kind = "values" if tensor == gradient.values else "indices"
            result = combine(graph, edit, plan, "%s/%s" % (gradient.name, kind), tensor, gradient.name, added)
            if plan.mean and kind == "values":
                result = _scaled(graph, edit, plan, "%s/mean" % gradient.name, result, tensor)
            set_attr(edit.node(node_of(result)), tags.ORIGINAL, node_of(tensor))
            replaced[tensor] = result
            for name, position in consumers:
                edit.set_input(name, position, result)
    return replaced, added


def _like(graph, tensor, node):
    """Gives a node the device and the TaskGraph of the node that makes `tensor`."""
    near = graph.nodes[node_of(tensor)]
    node.device = near.device
    if tags.TASKGRAPH in near.attr:
        set_attr(node, tags.TASKGRAPH, near.attr[tags.TASKGRAPH].i)
    set_attr(node, tags.PHASE, tags.BACKWARD)
    return tagged(node, "accumulate")


def _sum(graph, edit, plan, prefix, tensor, gradient, added):
    total = tensor
    dtype = Type(dtype_of(graph, tensor))
    for micro_batch in range(1, plan.count):
        node = make_node("AddV2", "%s_%d" % (prefix, micro_batch), [total, _tensor(plan, tensor, micro_batch)], T=dtype)
        total = edit.add(_like(graph, tensor, node)).name
        added[gradient, micro_batch] = total
    added[gradient, 0] = node_of(tensor)
    return total


def _put_end_to_end(graph, edit, plan, prefix, tensor, gradient, added):
    edit.add(_like(graph, tensor, constant(prefix + "/axis", 0, INT32)))
    tensors = [_tensor(plan, tensor, m) for m in range(plan.count)]
    node = make_node(
        "ConcatV2",
        prefix,
        tensors + [prefix + "/axis"],
        N=plan.count,
        T=Type(dtype_of(graph, tensor)),
        Tidx=Type(INT32),
    )
    for micro_batch, each in enumerate(tensors):
        added[gradient, micro_batch] = node_of(each)
    return edit.add(_like(graph, tensor, node)).name


def _scaled(graph, edit, plan, name, total, like):
    dtype = dtype_of(graph, like)
    factor = edit.add(_like(graph, like, constant(name + "/scale", 1.0 / plan.count, FLOAT32))).name
    if dtype != FLOAT32:
        cast = make_node("Cast", name + "/cast", [factor], SrcT=Type(FLOAT32), DstT=Type(dtype))
        factor = edit.add(_like(graph, like, cast)).name
    return edit.add(_like(graph, like, make_node("Mul", name, [total, factor], T=Type(dtype)))).name


def _merge(graph, edit, plan, model, device):
    """Merges the tensors of collections over micro-batches; returns a dict of tensor to merged tensor."""
    fetched = {}
    for key in sorted(model.merges):
        how = key.split("_")[1]
        for tensor in model.merges[key]:
            tensor = canonical_tensor(tensor)
            name = merged_before_name(merged_name(tensor, key))
            if name not in edit:
                _merge_one(graph, edit, plan, how, source_of(model, tensor), name, device)
                for consumer, position in shown_by(graph, tensor, how):
                    if consumer not in plan.nodes:
                        edit.set_input(consumer, position, name)
            fetched[tensor] = name
    return fetched


def _merge_one(graph, edit, plan, how, tensor, name, device):
    dtype = dtype_of(graph, tensor)
    if how == "mean" and dtype not in types.FLOAT_TYPES:
        raise PlanError(
            "tensor '%s' is in a collection of means but holds no floating-point numbers; cast it to float32 "
            "first, or use a collection of sums" % tensor
        )
    inputs = [format_input(*parse_input(_tensor(plan, tensor, m))) for m in range(plan.count)]
    options = dict(R=plan.count, comm=0, tag=0, workers=1)
    if how == "concat":
        nodes = add_rows(
            edit,
            name,
            dtype,
            tensor,
            lambda name, dtype: make_node("EplAllGather", name, inputs, device, T=Type(dtype), **options),
        )
    else:
        scale = 1.0 / plan.count if how == "mean" else 1.0
        options.update(T=Type(dtype), N=1, num_inputs=plan.count, reduce_op="sum", scale=scale)
        nodes = [edit.add(make_node("EplAllReduce", name, inputs, device, **options))]
    near = graph.nodes[node_of(tensor)]
    for node in nodes:
        if tags.TASKGRAPH in near.attr:
            set_attr(node, tags.TASKGRAPH, near.attr[tags.TASKGRAPH].i)
        tagged(node, "merge")


def _counted(graph, edit, plan, model):
    """The nodes that hold what metrics come to with a micro-batch; summaries show what they come to with the last."""
    metrics = {variable.name for variable in model.variables.values() if variable.is_metric}
    updates = [name for name in plan.writes if variable_of(graph, name) in metrics]
    if not updates:
        return frozenset()
    found = graph.descendants(updates) & graph.descendants(metrics, data_only=True) & plan.nodes
    for name in graph.in_order(found):
        for consumer, position in graph.consumers.get(name, ()):
            text = graph.nodes[consumer].input[position]
            if consumer in plan.nodes or edit.peek(consumer).input[position] != text:  # the merged value, say
                continue
            if text[0] != "^" or consumer not in plan.once:  # what runs once waits for all of them already
                edit.set_input(consumer, position, micro_batch_tensor(text, plan.count - 1))
    return frozenset(found)


def _reseed(graph, edit, plan):
    """Random operations of each micro-batch draw numbers of their own, or dropout would drop the same units."""
    marks = ["micro_batch_%d" % m for m in range(1, plan.count)]
    names = graph.in_order(plan.nodes)
    for micro_batch, mark in enumerate(marks, 1):
        for name in names:
            node = graph.nodes[name]
            if node.op in effects.RANDOM and any(seeds_of(node)):
                set_seed(edit.node(micro_batch_name(name, micro_batch)), derive(seeds_of(node), mark))
            elif node.op in effects.SEED_INPUT:
                for added in turn_seed(edit.node(micro_batch_name(name, micro_batch)), derive("seed of copy", mark)):
                    set_attr(edit.add(added), tags.ORIGINAL, name)
    call_copies(graph, edit, names, {mark: (lambda n, m=m: micro_batch_name(n, m)) for m, mark in enumerate(marks, 1)})
