r"""Lets checkpoints take large divided variables (epl.split) from the devices that have parts of them, part by part.

    w -> SaveV2   becomes   w, w/1 of this worker -> SaveV2 of worker 0, which has slices of one tensor
                            w, w/1 of worker 1 -> EplBroadcastSend     EplBroadcastReceive, ... -> SaveV2

`epl.passes.worker.save_by_file` lets worker 0 receive a few parts at a time. Where the stages of a pipeline lie in
several workers, those that have a stage do this among themselves, and the first of them gives the parts on:

                            w -> EplBroadcastSend      EplBroadcastReceive -> Identity, to worker 0 by a message

In other pipelines an empty tensor has the name of the Identity, so that all of them have the same messages.
"""

from epl.graph import tags
from epl.graph.index import canonical_tensor, node_of
from epl.graph.node_defs import Type, constant, make_node, set_attr
from epl.graph.types import INT32
from epl.partition.checkpoints import slice_text
from epl.partition.conversion import shard_sizes, shard_starts
from epl.passes.node_workers import owned
from epl.passes.nodes import instance_tensor, tagged
from epl.passes.save_nodes import save_instead, saved_by
from epl.passes.sync.join_shards import replicas
from epl.plan.exchange.order import OF_SHARDS
from epl.plan.facts.names import PREFIX
from epl.program.collective import tag_of

_CHIEF = 0


def save_shards(program, plan):
    """In each SaveV2, slices in the place of what is divided and was not gathered for it."""
    if program.partitioned is None:
        return program
    graph, edit = program.graph, program.graph.editor()
    for name in graph.find(lambda op: op == "SaveV2"):
        saved = saved_by(edit.peek, graph.nodes[name])
        placements = [program.partitioned.placements.get(canonical_tensor(text)) for text, _, _, _ in saved or ()]
        if any(placement is not None and placement.kind == "sharded" for placement in placements):
            _Save(program, plan, edit, name).take(saved, placements)
    return program.with_graph(edit.finish())


class _Save(object):
    """One SaveV2.

    Args:
      program, plan, edit: as in other passes.
      name: of the SaveV2.
    """

    def __init__(self, program, plan, edit, name):
        self._program, self._plan, self._edit, self._name = program, plan, edit, name
        self._stem, self._replica, self._waits = "%s_save/%s" % (PREFIX, name), replicas(plan.mesh)[0], []

    def take(self, saved, placements):
        """Makes it take slices of what is divided.

        Args:
          saved: as epl.passes.save_nodes.saved_by gives it.
          placements: the Placement of each; None for what is whole.
        """
        mesh, kept = self._plan.mesh, []
        shard_ranks = mesh.num_shards // mesh.tensor_group.num_workers
        for entry, placement in zip(saved, placements):
            if placement is None or placement.kind != "sharded":
                kept.append(entry)
                continue
            text, name, _, dtype = entry
            shape = self._program.spec_of(canonical_tensor(text)).shape
            starts, sizes = [each(shape[placement.dim], mesh.num_shards) for each in (shard_starts, shard_sizes)]
            for shard in range(mesh.num_shards):
                if sizes[shard]:
                    value = self._shard(text, dtype, *divmod(shard, shard_ranks))
                    piece = slice_text(shape, placement.dim, starts[shard], sizes[shard])
                    kept.extend([(value, name, piece, dtype)] if value is not None else [])
        if self._plan.mesh.tensor_group.index == _CHIEF or self._plan.mesh.pipeline.num_workers > 1:
            save_instead(self._edit, self._name, self._stem, kept)
        else:  # it writes no file, see `write_once`
            self._edit.node(self._name).input.extend("^" + wait for wait in self._waits)

    def _shard(self, text, dtype, worker, shard_rank):
        """What this worker writes of the shard that a worker has of a tensor; None where it writes nothing of it."""
        group = self._plan.mesh.tensor_group
        own = instance_tensor(self._plan, text, self._replica[shard_rank].index)
        if worker == _CHIEF:
            value = own if group.index == _CHIEF else "^" + node_of(own)
            return self._given_on(
                "%s/of_%d_%d/%s" % (self._stem, worker, shard_rank, node_of(text)), text, value, dtype
            )
        sends = worker == group.index
        name = "%s/from_%d_%d/%s" % (self._stem, worker, shard_rank, node_of(text))
        attrs = dict(T=Type(dtype), comm=group.communicator(0), tag=tag_of(name), collective_name=name)
        attrs.update({} if sends else {"root": worker})
        # Whether it sends or not, a worker does this at the same place of its order.
        inputs = [own] if sends else ["^" + node_of(own)]
        inputs += ["^" + self._waits[-1]] if self._waits else []
        op = "EplBroadcastSend" if sends else "EplBroadcastReceive"
        node = make_node(op, name, inputs, self._plan.mesh.host_device, **attrs)
        set_attr(node, tags.PHASE, tags.SAVE)
        set_attr(node, tags.SAVER, self._name)
        self._waits.append(self._edit.add(tagged(node, OF_SHARDS)).name)
        self._stay(name, text)
        value = name if group.index == _CHIEF else "^" + name
        return self._given_on(name.replace("/from_", "/of_", 1), text, value, dtype)

    def _given_on(self, name, text, value, dtype):
        """A tensor where this worker has all stages; else what comes to worker 0 by a message.

        Args:
          name: of the node that is sent.
          text: what is saved.
          value: a tensor, what this worker writes of it; or "^" and what it sends for it instead.
          dtype: of it.
        """
        writes = value[0] != "^"
        if self._plan.mesh.pipeline.num_workers == 1:
            return value if writes else None
        host = self._plan.mesh.host_device
        # Whatever is sent, it comes at the same place of all workers' order.
        dims = self._edit.add(constant(name + "/dims", [0], INT32, host)).name
        if writes:
            node = make_node("Identity", name, [value, "^" + dims], host, T=Type(dtype))
        else:
            node = make_node("Empty", name, [dims, value], host, dtype=Type(dtype), init=False)
        set_attr(node, tags.PHASE, tags.SAVE)
        set_attr(node, tags.SAVER, self._name)
        self._edit.add(tagged(node, "join"))
        self._stay(name, text)
        return name

    def _stay(self, name, text):
        """A node that is added for the sake of a tensor is where that is."""
        # A part that another copy of the model owns comes to the first one's worker.
        keeper = _CHIEF if self._plan.zero is not None else None
        owned(self._edit.node(name), self._plan.owners.get(node_of(text)), keeper)
