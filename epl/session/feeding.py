"""How what a call is fed is divided over the copies of the model in this worker, and their micro-batches."""

from dataclasses import dataclass, field
from typing import Dict, Tuple

import numpy as np

from epl.errors import UnsupportedError
from epl.graph.index import node_of
from epl.plan.facts.analysis import batch_placeholder, fixed_placeholder
from epl.plan.facts.names import clone_tensor, micro_batch_tensor
from epl.plan.layout.rows import weights_of
from epl.session.sparse_feeds import SparseFeed, sparse_feeds

# The one part of what is not divided.
_WHOLE = range(1)


@dataclass
class Feeding:
    """What a call is fed.

    Attributes:
      names: of the tensors that the program feeds.
      copies: for each of them a tuple of (tensor name, range, count): of so many equal slices of the fed value that
        tensor of this worker gets those in the range.
      fixed: those whose number of rows the graph knows, so that they are fed whole.
      sparse: those that are a part of a sparse tensor, to its SparseFeed.
      weighed: (fed batch, parts of weight 1 in this worker) pairs, where workers have parts of different size.
      batches: those that are a batch.
      shares: nodes of this worker that say how much its rows count beside those of the others, where these may have
        other numbers of them.
      told: whether the user knows that what is fed to one of these is not divided.
    """

    names: Tuple[str, ...] = ()
    copies: Tuple[Tuple[Tuple[str, range, int], ...], ...] = ()
    fixed: Tuple[str, ...] = ()
    sparse: Dict[str, SparseFeed] = field(default_factory=dict)
    weighed: Tuple[Tuple[str, int], ...] = ()
    batches: Tuple[str, ...] = ()
    shares: Tuple[str, ...] = ()
    told: bool = False

    def rows(self, feeds):
        """Rows that are fed for each part of weight 1, where other workers have devices of other weights; else None.

        Args:
          feeds: dict of the tensors to their values.
        """
        rows = ((self._rows(name, feeds, parts), parts) for name, parts in self.weighed if np.ndim(feeds[name]))
        return max((count / float(parts) for count, parts in rows), default=None)

    def counted(self, feeds):
        """Rows of the batch that is fed, where losses count by them; -1 where nobody knows, as several batches have
        different numbers of them, or a sparse one has no shape.

        Args:
          feeds: dict of the tensors to their values.
        """
        if not self.shares:
            return -1
        batches = [name for name in self.batches if np.ndim(feeds[name])]
        known = all(name not in self.sparse or self.sparse[name].is_whole(feeds) for name in batches)
        rows = {self._rows(name, feeds, 1) for name in batches} if known else ()
        return rows.pop() if len(rows) == 1 else -1

    def shared(self, rows, worker):
        """dict of tensors to what they are fed, so that each worker counts by its rows; nothing if all have as many.

        Args:
          rows: what `counted` gives, by worker.
          worker: the number of this one.
        """
        if not self.shares or len(set(rows)) == 1 or min(rows) < 0:
            return {}
        share = np.float32(rows[worker] * len(rows) / float(sum(rows)))
        return {name + ":0": share for name in self.shares}

    def _rows(self, name, feeds, count):
        return self.sparse[name].rows(feeds, count) if name in self.sparse else len(feeds[name])


def feeding_of(rewritten, names, reach, trains):
    """The Feeding of a call.

    Args:
      rewritten: the Rewritten.
      names: of the tensors that the program feeds.
      reach: the Reach of the call.
      trains: whether the call applies gradients.

    Raises:
      UnsupportedError: each device has a part of what is fed.
    """
    graph, part = rewritten.program.source.graph, rewritten.part
    copies = [_copies(rewritten, name, reach) for name in names]
    return Feeding(
        tuple(names),
        tuple(tuple(fed for fed in each if part is None or part.is_here(node_of(fed[0]))) for each in copies),
        tuple(name for name in names if fixed_placeholder(graph, node_of(name))),
        sparse_feeds(graph, names),
        _weighed(rewritten, names) if trains else (),
        tuple(name for name in names if _is_batch(graph, name)),
        tuple(name for name in rewritten.shares if name in reach.nodes),
    )


def _copies(rewritten, name, reach):
    """Placeholders whose first dimension is not known are fed the worker's share of the batch: it is divided."""
    plan, micro_batches, node = rewritten.plan, rewritten.micro_batches, node_of(name)
    if not reach.several_copies and plan.mesh.is_even:
        return [(name, _WHOLE, 1)]
    if plan.partitioned is not None:
        return _copies_of_shards(rewritten, name)
    is_batch = _is_divided(rewritten, name)
    # Where stages have different numbers of devices, rows that are only looked at are those of the first copy too.
    looked_at = is_batch and not plan.mesh.is_even
    holding = plan.instances_with(node)
    instances = plan.mesh.computing(plan.stage(node)) if looked_at else holding
    count = micro_batches.count if looked_at or node in micro_batches.nodes else 1
    if not reach.several_rows:
        instances, count = [i for i in instances if i.data == instances[0].data], 1
    span, fed = plan.mesh.span(plan.stage(node)), []
    replicas = sorted({instance.data for instance in instances})
    # A micro-batch of a replica is divided over the devices that compute it.
    of_replica = [i for i in instances if i.data == replicas[0]]
    weights = [weights_of(plan.mesh, plan.stage(node))[i.shard // span] for i in of_replica]
    shares, total = len(of_replica), sum(weights)
    for instance in instances:
        for m in range(count if instance in holding else 0):
            if m and node not in micro_batches.nodes:
                break
            micro_batch = replicas.index(instance.data) * count + m
            place = instance.shard // span % shares
            first = micro_batch * total + sum(weights[:place])
            slices = range(first, first + weights[place]), len(replicas) * count * total
            tensor = clone_tensor(micro_batch_tensor(name, m), instance.index)
            fed.append((tensor,) + (slices if is_batch else (_WHOLE, 1)))
    return fed


def _copies_of_shards(rewritten, name):
    """The devices of a model replica take the same; what is a batch is divided over the replicas of this worker."""
    plan, micro_batches = rewritten.plan, rewritten.micro_batches
    if rewritten.is_divided(name):
        raise UnsupportedError(
            "'%s' is fed, but each of %d devices has a part of it, as epl.split divides it. Feed a placeholder, or "
            "build what is fed outside of the scope." % (name, plan.mesh.num_shards)
        )
    instances = plan.instances_with(node_of(name))
    replicas = sorted({instance.data for instance in instances})
    count = micro_batches.count if node_of(name) in micro_batches.nodes else 1
    is_batch, fed = _is_divided(rewritten, name), []
    for instance in instances:
        for m in range(count):
            micro_batch = replicas.index(instance.data) * count + m
            tensor = clone_tensor(micro_batch_tensor(name, m), instance.index)
            slices = range(micro_batch, micro_batch + 1), len(replicas) * count
            fed.append((tensor,) + (slices if is_batch else (_WHOLE, 1)))
    return fed


def _weighed(rewritten, names):
    """(fed batch, parts of weight 1 in this worker) pairs, where workers have parts of different size."""
    mesh, graph = rewritten.plan.mesh, rewritten.program.source.graph
    if not mesh.weights or mesh.num_workers == 1:
        return ()
    parts = sum(mesh.weights[instance.shard] for instance in mesh.instances) * rewritten.micro_batches.count
    return tuple((name, parts) for name in names if _is_batch(graph, name))


def _is_divided(rewritten, name):
    """Whether the copies of the model divide what is fed."""
    return not rewritten.plan.mesh.whole and _is_batch(rewritten.program.source.graph, name)


def _is_batch(graph, tensor):
    return batch_placeholder(graph, node_of(tensor))
