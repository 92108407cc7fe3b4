r"""Joins the collectives of a partitioned program: within a worker by plain operations, between workers by EPL's.

x   -> EplShardAllReduce   -> y            x   \       / y
x/1 -> EplShardAllReduce/1 -> y/1  becomes      AddN ->            (-> EplAllReduce ->, with several workers)
                                           x/1 /       \ y/1
"""

from epl.errors import UnsupportedError
from epl.graph import tags, types
from epl.graph.index import canonical_tensor, format_input
from epl.graph.node_defs import Type, constant, make_node, set_attr
from epl.graph.types import BOOL, INT32, INT64
from epl.partition import partitioned
from epl.partition.conversion import shard_sizes
from epl.partition.emit import type_list
from epl.passes.messages import with_whole
from epl.passes.nodes import instance_tensor, tagged
from epl.plan.exchange.order import OF_SHARDS
from epl.plan.facts.names import clone_name, joined_name, whole_name
from epl.program.collective import tag_of
from epl.program.placement import RAGGED

_REDUCED = {"max": "Maximum", "min": "Minimum", "prod": "Mul"}


def join_shards(program, plan):
    """In the place of each collective of the shards, what gives each instance its result."""
    if program.partitioned is None:
        return program
    graph, edit = program.graph, program.graph.editor()
    # Where a worker has no GPUs and its host is none of the devices, TensorFlow would take the host for what has none.
    apart = plan.mesh.first_device > 0
    for each in program.partitioned.collectives:
        node = program.partitioned.graph.nodes[each.node]
        dtype = node.attr["T"].type
        for name in program.micro_batches.copies(each.node):
            found = replicas(plan.mesh)
            for replica in found[: plan.zero.replicate_group.local] if plan.is_owned(each.node) else found:
                copies = [graph.nodes[clone_name(name, i.index)] for i in replica]
                device = copies[0].device if apart or tags.HOST in copies[0].attr else node.device
                join = _Join(edit, plan, replica, joined_name(name), dtype, device)
                given = [copy.input[0] for copy in copies]
                if node.op == partitioned.SEND_ROWS:
                    results = join.sent_rows(given, [copy.input[1] for copy in copies])
                else:
                    results = [(text,) for text in _results(join, node, given)]
                for instance, result in zip(replica, results):
                    _become(edit.node(clone_name(name, instance.index)), result, dtype)
    return program.with_graph(edit.finish())


def with_wholes(program, plan, tensors):
    """The program with nodes that hold the wholes of some tensors; the same object where all are there.

    Raises:
      UnsupportedError: of a tensor there is no whole, as each device makes a list of its own.
    """
    graph = program.whole
    missing = [t for t in sorted(set(map(canonical_tensor, tensors))) if whole_name(t) not in graph.nodes]
    if not missing:
        return program
    edit = graph.editor()
    replica = replicas(plan.mesh)[0]
    for tensor in missing:
        placement = program.partitioned.placements[tensor]
        if placement.kind == RAGGED and placement.dim < 0:
            raise UnsupportedError(
                "'%s' cannot be fetched: each of the %d devices makes it of the entries of its own rows of the batch, "
                "which '%s' divides. Fetch what comes of it for each row of the batch."
                % (tensor, program.partitioned.shards, placement.of)
            )
        dtype, device = types.base(program.spec_of(tensor).dtype), plan.mesh.host_device
        sent = INT32 if dtype == BOOL else dtype
        join = _Join(edit, plan, replica, joined_name(whole_name(tensor)), sent, device, {tags.FETCHED: True})
        given = [join.cast(instance_tensor(plan, tensor, i.index), dtype, sent) for i in replica]
        whole = (
            join.combined(given, placement.combine)
            if placement.kind == "partial"
            else join.gathered(given, placement.dim)
        )
        whole = join.cast(whole, sent, dtype)
        edit.add(make_node("Identity", whole_name(tensor), [whole], device, T=Type(dtype)))
    return with_whole(program, edit.finish())


def replicas(mesh):
    """The instances of this worker by model replica."""
    found = {}
    for instance in mesh.instances:
        found.setdefault(instance.data, []).append(instance)
    return [found[data] for data in sorted(found)]


def _become(node, texts, dtype):
    """Makes a node hand on a tensor, or that and a vector of int64."""
    controls = [each for each in node.input if each[0] == "^"]
    for key in ("shards", "combine", "dim", "size", "to_dim", "to_size"):
        node.attr.pop(key, None)
    node.op = "Identity" if len(texts) == 1 else "IdentityN"
    node.input[:] = list(texts) + controls
    set_attr(node, "T", Type(dtype) if len(texts) == 1 else type_list([dtype, INT64]))


def _results(join, node, given):
    """What each instance of a replica gets of a collective."""
    kind, attr = node.op, node.attr
    if kind == partitioned.ALL_REDUCE:
        return [join.combined(given, attr["combine"].s.decode())] * len(given)
    if kind == partitioned.ALL_GATHER:
        return [join.gathered(given, attr["dim"].i)] * len(given)
    if kind == partitioned.REDUCE_SCATTER:
        return join.reduce_scattered(given, attr["combine"].s.decode(), attr["dim"].i, attr["size"].i)
    return join.exchanged_shards(given, attr["dim"].i, attr["size"].i, attr["to_dim"].i, attr["to_size"].i)


class _Join(object):
    """Adds the nodes that join what the instances of one model replica have.

    Args:
      edit: the Editor.
      plan: the Plan.
      replica: the Instances of this worker that belong to it.
      name: of the node between workers, and what the other names begin with.
      dtype: of what is joined.
      device: where.
      marks: tags of what workers exchange.
    """

    def __init__(self, edit, plan, replica, name, dtype, device, marks=()):
        self._edit, self._plan, self._replica, self._marks = edit, plan, replica, dict(marks)
        self._name, self._dtype, self._device = name, dtype, device
        self._count = 0

    def combined(self, given, how):
        """The combination of what all have."""
        if how == "sum":
            own = given[0] if len(given) == 1 else self._add("AddN", given, N=len(given))
        else:
            own = given[0]
            for other in given[1:]:
                own = self._add(_REDUCED[how], [own, other])
        if self._plan.mesh.tensor_group.num_workers == 1:
            return own
        return self._exchange("EplAllReduce", own, N=1, R=1, num_inputs=1, reduce_op=how, scale=1.0)

    def gathered(self, given, dim):
        """What all have, one behind the other along a dimension."""
        own = given[0]
        if len(given) > 1:
            own = self._add("ConcatV2", given + [self._integers(dim)], N=len(given), Tidx=Type(INT32))
        if self._plan.mesh.tensor_group.num_workers == 1:
            return own
        own = self._swapped(own, dim)
        return self._swapped(self._exchange("EplAllGather", own, R=1), dim)

    def reduce_scattered(self, given, how, dim, size):
        """For each instance its part of a dimension of the combination; size: of the whole of it, -1 if not known."""
        if self._plan.mesh.tensor_group.num_workers == 1 or how != "sum":
            return self._divided(self.combined(given, how), dim, self._shard_sizes(given[0], dim, size))
        own = given[0] if len(given) == 1 else self._add("AddN", given, N=len(given))
        sizes = self._shard_sizes(own, dim, size)
        own = self._swapped(own, dim)
        share = self._exchange("EplReduceScatter", own, self._of_workers(sizes), reduce_op="sum")
        return self._own_shards(self._swapped(share, dim), dim, sizes)

    def exchanged_shards(self, given, dim, size, to_dim, to_size):
        """For each instance its part of a dimension of what the instances have parts of along another one."""
        shards, group = self._plan.mesh.num_shards, self._plan.mesh.tensor_group
        if group.num_workers == 1 or size <= 0 or size % shards:  # workers send parts of the same size only
            whole = self.gathered(given, dim)
            return self._divided(whole, to_dim, self._shard_sizes(whole, to_dim, to_size))
        own = given[0]
        if len(given) > 1:
            own = self._add("ConcatV2", given + [self._integers(dim)], N=len(given), Tidx=Type(INT32))
        sizes = self._shard_sizes(own, to_dim, to_size)
        come = self._exchange("EplAllToAll", self._swapped(own, to_dim), self._of_workers(sizes))
        count = group.num_workers
        each = self._add("Split", [self._integers(0), come], num_split=count)
        at = dim or to_dim  # where the other dimension is while this one is the first
        pieces = [format_input(each, i) for i in range(count)]
        joined = self._add("ConcatV2", pieces + [self._integers(at)], N=count, Tidx=Type(INT32))
        return self._own_shards(self._swapped(joined, to_dim), to_dim, sizes)

    def sent_rows(self, given, counts):
        """For each instance the rows that come from all, in their order, and how many come from each.

        Args:
          given: the rows that each has, those for the first one first.
          counts: how many are for each, vectors of int64.
        """
        shard_ranks, workers = len(given), self._plan.mesh.tensor_group.num_workers
        if shard_ranks == 1:
            come = self._exchange("EplAllToAll", given[0], counts[0])
            return [(come, format_input(come, 1))]
        shards = self._plan.mesh.num_shards
        pieces = [self._pieces(rows, count, shards) for rows, count in zip(given, counts)]
        table = self._node(
            "Pack", counts, T=Type(INT64), N=shard_ranks, axis=1
        )  # [to each, from each of this worker's]
        if workers > 1:
            ordered = [pieces[shard_rank][shard] for shard in range(shards) for shard_rank in range(shard_ranks)]
            own = self._concatenated(ordered)
            by_worker = self._reshaped(table, [workers, shard_ranks * shard_ranks])
            types = {"T": Type(INT64), "Tidx": Type(INT32)}
            sums = self._node("Sum", [by_worker, self._integers([1])], keep_dims=False, **types)
            come = self._exchange("EplAllToAll", own, sums)
            one_each = self.cast(self._integers([1] * workers), INT32, INT64)
            told = self._exchange("EplAllToAll", by_worker, one_each, name="counts", T=Type(INT64))
            flat = self._pieces(come, self._reshaped(told, [-1]), workers * shard_ranks * shard_ranks)
            told = self._reshaped(told, [workers, shard_ranks, shard_ranks])
            order = self._integers([1, 0, 2])
            table = self._node("Transpose", [told, order], T=Type(INT64), Tperm=Type(INT32))
            table = self._reshaped(table, [shard_ranks, workers * shard_ranks])
            of_shard_rank = [
                [
                    flat[(worker * shard_ranks + to) * shard_ranks + shard_rank]
                    for worker in range(workers)
                    for shard_rank in range(shard_ranks)
                ]
                for to in range(shard_ranks)
            ]
        else:
            of_shard_rank = [[pieces[shard_rank][to] for shard_rank in range(shard_ranks)] for to in range(shard_ranks)]
        told = self._node("Unpack", [table], T=Type(INT64), num=shard_ranks, axis=0)
        return [(self._concatenated(each), format_input(told, to)) for to, each in enumerate(of_shard_rank)]

    def _pieces(self, rows, counts, number):
        """Rows, cut by how many belong together."""
        made = self._add("SplitV", [rows, counts, self._integers(0)], num_split=number, Tlen=Type(INT64))
        return [format_input(made, index) for index in range(number)]

    def _concatenated(self, pieces):
        if len(pieces) == 1:
            return pieces[0]
        return self._add("ConcatV2", pieces + [self._integers(0)], N=len(pieces), Tidx=Type(INT32))

    def _reshaped(self, text, shape):
        """Numbers of rows in another shape."""
        return self._node("Reshape", [text, self._integers(shape)], T=Type(INT64), Tshape=Type(INT32))

    def _of_workers(self, sizes):
        """The sizes of the shards' parts, added up by worker."""
        shard_ranks = self._plan.mesh.shard_ranks
        if shard_ranks > 1:
            rows = self._integers([-1, shard_ranks])
            rows = self._node("Reshape", [sizes, rows], T=Type(INT32), Tshape=Type(INT32))
            sizes = self._node("Sum", [rows, self._integers([1])], T=Type(INT32), Tidx=Type(INT32), keep_dims=False)
        return self.cast(sizes, INT32, INT64)

    def _own_shards(self, text, dim, sizes):
        """The parts of this worker's instances, of what they have together; sizes: of the parts of all."""
        shard_ranks = len(self._replica)
        if shard_ranks == 1:
            return [text]
        first = self._integers([self._replica[0].shard])
        own = self._node("Slice", [sizes, first, self._integers([shard_ranks])], T=Type(INT32), Index=Type(INT32))
        text = self._add("SplitV", [text, own, self._integers(dim)], num_split=shard_ranks, Tlen=Type(INT32))
        return [format_input(text, i) for i in range(shard_ranks)]

    def _divided(self, whole, dim, sizes):
        """For each instance its part of a dimension of what all have whole."""
        count = self._plan.mesh.num_shards
        text = self._add("SplitV", [whole, sizes, self._integers(dim)], num_split=count, Tlen=Type(INT32))
        own = [format_input(text, instance.shard) for instance in self._replica]
        if self._plan.mesh.pipeline.num_workers == 1:
            return own
        return [self._add("Identity", [part]) for part in own]  # a message is called the same, whichever part it has

    def _shard_sizes(self, whole, dim, size):
        """A vector: how much of a dimension each shard has; size: of the whole of it, -1 where it is not known."""
        shards = self._plan.mesh.num_shards
        if size >= 0:
            return self._integers(shard_sizes(size, shards))
        shape = self._add("Shape", [whole], out_type=Type(INT32))
        types = {key: Type(INT32) for key in ("Tparams", "Tindices", "Taxis")}
        found = self._node("GatherV2", [shape, self._integers(dim), self._integers(0)], **types)
        more = self._node("Add", [found, self._integers(list(range(shards - 1, -1, -1)))], T=Type(INT32))
        return self._node("FloorDiv", [more, self._integers(shards)], T=Type(INT32))

    def _exchange(self, op, *texts, **attrs):
        """A collective of the workers that have parts of the replica; `name` is added to what it is called."""
        group, suffix = self._plan.mesh.tensor_group, attrs.pop("name", None)
        name = self._name if suffix is None else "%s/%s" % (self._name, suffix)
        attrs.setdefault("T", Type(self._dtype))
        node = make_node(
            op,
            name,
            list(texts),
            self._plan.mesh.host_device,
            comm=group.communicator(0),
            tag=tag_of(name),
            workers=group.num_workers,
            **self._marks,
            **attrs,
        )
        return self._edit.add(tagged(node, OF_SHARDS)).name

    def _swapped(self, text, dim):
        """A tensor with a dimension and the first one exchanged, which is also how to undo it."""
        if dim == 0:
            return text
        rank = self._add("Rank", [text])
        behind = self._node("Range", [self._integers(dim + 1), rank, self._integers(1)], Tidx=Type(INT32))
        before = self._integers([dim] + list(range(1, dim)) + [0])
        joined = [before, behind, self._integers(0)]
        order = self._node("ConcatV2", joined, N=2, T=Type(INT32), Tidx=Type(INT32))
        return self._add("Transpose", [text, order], Tperm=Type(INT32))

    def cast(self, text, have, want):
        """A tensor in another type; the same where it is of that already."""
        return text if have == want else self._node("Cast", [text], SrcT=Type(have), DstT=Type(want))

    def _integers(self, values):
        self._count += 1
        name = "%s/integers_%d" % (self._base(), self._count)
        return self._edit.add(constant(name, values, INT32, self._device)).name

    def _base(self):
        return clone_name(self._name, self._replica[0].index)

    def _add(self, op, inputs, **attrs):
        """A node of tensors of the type that is joined."""
        return self._node(op, inputs, T=Type(self._dtype), **attrs)

    def _node(self, op, inputs, **attrs):
        self._count += 1
        node = make_node(op, "%s/local_%d" % (self._base(), self._count), inputs, self._device, **attrs)
        return self._edit.add(tagged(node, "join")).name
