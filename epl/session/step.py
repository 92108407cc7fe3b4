"""What one call of a session runs on this worker: reachability over the tables of its Program."""

import collections
import copy
import hashlib

from epl.errors import UnsupportedError
from epl.graph import tags
from epl.graph.functions import CALLS
from epl.graph.index import node_of
from epl.plan.facts.analysis import batch_placeholder, fixed_placeholder, touched_by, variable_of
from epl.plan.facts.constant_values import constant_digests
from epl.plan.facts.names import clone_name, clone_tensor, micro_batch_name, micro_batch_tensor, saved_name, time_names
from epl.plan.precision.verdicts import stages_verdicts
from epl.program.placement import TURNED
from epl.rules import effects
from epl.session.added import begun_with, own_beside, restored_with
from epl.session.ahead import loads_of
from epl.session.described import describe, settings
from epl.session.every_nth import made_of_data
from epl.session.parts import communicators, fetched_messages, needed_messages, own_targets, own_tensor
from epl.session.sparse_feeds import sparse_feeds


class Step(object):
    """What one call of a session runs, in names of the rewritten graph.

    Attributes:
      fetches: tensor names, in the order of the call.
      targets: operation names; the call's own, and those which further instances must run along.
      feeds: for each fed tensor a list of (tensor name, range, count): of so many equal slices of the fed value that
        tensor gets those in the range.
      orders: communicator of the pool to the tags of its collectives in order.
      groups: the Communicators for that which not all workers have.
      weighed: (fed batch, parts of weight 1 in this worker) pairs, where workers have parts of different size.
      told: whether the user knows that what is fed to one of these is not divided.
      fixed: the fed tensors whose number of rows the graph knows, so that they are fed whole.
      sparse: fed tensor to its SparseFeed, of those that are a part of a sparse tensor.
      communicates: True when there is any collective with other workers.
      trains: True when instances beyond the first take part.
      initialises: names of variables that the call gives first values.
      restores: those that passes have added, and that a checkpoint may hold from which the call reads others, to the
        tensor that is its name.
      begins_anew: those that passes have added for each rank, and that begin anew with what it initialises.
      added: other variables which passes have added and which the call needs.
      constants: those of `initialises` that every worker gives the same value, made of constants alone, to a digest of
        that.
      updates: True when the call changes variables, in whatever way.
      changes: names of variables that the call changes other than that, in the same way in every copy of this worker.
      open_gates: tensors that are fed anything, so that the run does not wait for what it is not for.
      only_reads: True when the call only takes variables from other workers of the pipeline; they can help any time.
      messages: the Messages between workers of the pipeline, in their order.
      sources: names of the operations here from which the call takes a batch: iterators, queues, readers.
      reads: whether there are any.
      whole: True when there is one copy of the model in this worker, or its pipeline, as what is fed does not divide.
      view: how the session calls the nodes; None: by their names.
      is_local: True for a training step after which copies may be averaged (local_sgd); it does not communicate.
      losses: tensors at the end of `fetches` from which the time of averages follows (local_sgd.adaptive).
      saved: names of the variables that a checkpoint takes, and that may be fed to it.
      optimizes: True when the call applies gradients.
      times: of a training step, tensors with when each operation that gives a batch began and ended (io.stats).
      may_alias: True when a fetched array may share its memory with a variable.
      repeats: how many times a call runs it (execution.steps_per_run).
      is_simple: whether that takes few operations, and no loops or functions that may have many.
      checked: the CheckedGradients of this worker that the call computes.
      is_plain: whether the session's graph is all there is to run: nothing is fed, changed, timed or exchanged.
      takes_several: whether the call needs more than one micro-batch or copy of the model.
      fingerprint: digest of all that must be the same on every worker for these collectives to fit.
    """

    whole, view, _may_wait, told = False, None, None, False
    is_local, saved, losses, times, timed = False, (), (), (), False

    def __init__(self, rewritten, fetches, targets, feeds):
        self._rewritten = rewritten
        plan, graph = rewritten.plan, rewritten.graph
        stop = frozenset(node_of(name) for name in feeds)
        self.fetches = [rewritten.merged(name) for name in fetches]
        roots = [node_of(name) for name in self.fetches] + list(targets)
        updates = rewritten.first_updates(roots, stop)
        roots += updates
        losses = self._losses_behind(graph.ancestors(roots, stop=stop)) if plan.local_sgd is not None else []
        roots += [node_of(loss) for loss in losses]
        micro_batches = rewritten.micro_batches
        gates = rewritten.gates(roots, stop)
        self.open_gates = tuple(gate + ":0" for gate in gates)
        stop = stop.union(gates)
        # Whoever changes a moving average does it for all micro-batches.
        reached = graph.ancestors(roots, stop=stop)
        changes = [
            micro_batch_name(w, m)
            for w in graph.in_order(reached & micro_batches.writes)
            for m in range(1, micro_batches.count)
        ]
        reached |= graph.ancestors(changes, stop=stop)
        copies = graph.in_order(reached & rewritten.in_all_copies)
        along = updates + changes + [clone_name(w, i.index) for w in copies for i in plan.instances_with(w)[1:]]
        # A message that is sent is received too.
        along += [rewritten.partners[n] for n in graph.in_order(reached & set(rewritten.partners))]
        given = {v for w, v in plan.analysis.initial_writes.items() if w in reached and w not in stop}
        along += begun_with(plan, given)
        reached |= graph.ancestors(along, stop=stop)
        self.fetches, self.targets = tuple(self.fetches), tuple(targets) + tuple(along)
        self.may_alias = rewritten.has_reference_variables
        instances = plan.mesh.instances
        self.trains = any(
            clone_name(n, i.index) in reached for i in instances[1:] for n in plan.analysis.cloned & reached
        ) or any(micro_batch_name(n, 1) in reached for n in micro_batches.nodes)
        self.takes_several = self.trains if plan.mesh.is_even else self._takes_several(reached)
        own = [each for each in rewritten.program.checked if rewritten.has(node_of(each.tensor))]
        self.checked = [each for each in own if node_of(each.tensor) in reached]
        sources = {n for n in reached if graph.nodes[n].op in effects.SOURCES and rewritten.has(n)}
        self.sources = tuple(graph.in_order(sources))
        self.reads = bool(sources)
        self.feeds = [self._fed(name) for name in feeds]
        self.sparse = sparse_feeds(rewritten.program.source.graph, feeds)
        self.fixed = tuple(n for n in feeds if fixed_placeholder(rewritten.program.source.graph, node_of(n)))
        initial = {w: v for w, v in plan.analysis.initial_writes.items() if w in reached and w not in stop}
        self.initialises = frozenset(initial.values())
        self.restores = restored_with(plan, graph, initial)
        self.begins_anew = own_beside(plan, given)
        self.added = frozenset(v.name for v in plan.added if v.name in reached) - self.initialises
        self.constants = self._constants(initial, stop) if plan.mesh.num_workers > 1 else {}
        self.changes = rewritten.changed_by(reached & rewritten.writes)
        collectives = sorted(rewritten.keys[n] for n in rewritten.keys if n in reached)
        self._collectives = [name for _, name, _, _ in collectives]
        self._updates = reached & rewritten.writes
        self.updates = bool(self._updates)
        self.optimizes = any(tags.phase(graph.nodes[w]) == tags.APPLY for w in self._updates)
        self.weighed = self._weighed(feeds) if self.optimizes else ()
        self.repeats = plan.steps_per_run if self.optimizes else 1
        hidden = effects.CONTROL_FLOW_OPENS | CALLS
        self.is_simple = len(reached) <= _FEW and not any(graph.nodes[n].op in hidden for n in reached)
        self.orders, self.groups, self.messages, self.only_reads = {}, [], [], False
        self._names_fed = tuple(feeds)
        between = plan.mesh.everywhere.num_workers > 1
        within = {verdict.name for verdict in stages_verdicts(plan)}  # of a pipeline of several workers
        for _, name, slot, tag in collectives if between or within else ():
            if not between and name not in within:
                continue
            if name not in rewritten.idle and rewritten.has(name) and not plan.mesh.is_alone(slot):
                self.orders.setdefault(slot, []).append(tag)
        self.communicates = bool(collectives) and between or bool(self.orders)
        if plan.shards_span_workers:
            # What one worker alone draws, reads or changes would leave the parts of others behind.
            self.communicates = self.communicates or self.reads or bool(reached & rewritten.in_step)
        if plan.local_sgd is not None:
            self.is_local = bool(self.updated & plan.averaged)
            self.saved = tuple(name for name in plan.variables if saved_name(name) in reached)
            if self.is_local:
                self.losses = tuple(losses)
                self.fetches += self.losses
        if rewritten.part is not None:
            self._of_pipeline(reached, stop)
        else:
            self.groups = rewritten.communicators(self.orders)
        self.loads, self.restarts = loads_of(plan, rewritten.own_graph, reached)
        if plan.io_stats and self._updates:
            held = rewritten.own_graph.nodes
            timed = [time_names(name) for name in graph.in_order(reached) if time_names(name)[1] in held]
            self.times = tuple(name + ":0" for names in timed for name in names)
            self.timed = bool(self.times or self.loads)
        self.fingerprint = self._fingerprint() if self.communicates else b"\0" * 16
        more = self.feeds or self.open_gates or self.loads or self.restarts or self.times or self.timed or self.checked
        changes = self.updates or self.initialises or self.changes or self.added or self.trains or self.is_local
        self.is_plain = not (more or changes or self.saved or self.communicates)

    def may_wait(self, fetches):
        """Those of the call's fetches of which a value of an earlier step will do (execution.fetch_every)."""
        if self._may_wait is None:
            self._may_wait = made_of_data(self._rewritten.program.source, fetches, self._names_fed)
        return self._may_wait

    def _losses_behind(self, reached):
        """The losses of which gradients are among `reached`, whether or not the program fetches them.

        Those of all copies of the model here, where the call changes what these average.
        """
        plan = self._rewritten.plan
        found = sorted({loss for loss, seed in plan.local_sgd.losses if seed in reached})
        changed = {variable_of(self._rewritten.graph, write) for write in reached & self._rewritten.writes}
        copies = [i.index for i in plan.mesh.instances] if changed & plan.averaged else [0]
        return [clone_tensor(loss, i if node_of(loss) in plan.analysis.cloned else 0) for i in copies for loss in found]

    def _takes_several(self, reached):
        """Whether the call needs more than one micro-batch of the first replica."""
        plan = self._rewritten.plan
        first = plan.mesh.instances[0].data
        others = [i.index for i in plan.mesh.instances if i.data != first]
        return any(micro_batch_name(n, 1) in reached for n in self._rewritten.micro_batches.nodes) or any(
            clone_name(n, other) in reached for other in others for n in plan.analysis.cloned & reached
        )

    def _of_pipeline(self, reached, stop):
        """Leaves what this worker runs of a step of its pipeline, and adds the messages."""
        rewritten = self._rewritten
        messages = needed_messages(rewritten.part, reached, stop) + fetched_messages(rewritten.part, self.fetches)
        rewritten.add_messages(messages)
        part = rewritten.part
        self.communicates = self.communicates or bool(messages)
        self.fetches = tuple(own_tensor(part, tensor) for tensor in self.fetches)
        self.targets = own_targets(part, self.targets, reached, stop, rewritten.plan)
        self.feeds = [[fed for fed in copies if part.is_here(node_of(fed[0]))] for copies in self.feeds]
        self.open_gates = tuple(gate for gate in self.open_gates if part.is_here(node_of(gate)))
        self.only_reads = bool(messages) and not self._collectives and self._changes_nothing(reached)
        self._collectives += [message.name for message in messages]
        self._without_messages = self.targets, self.orders
        self._carry(messages)

    def _carry(self, messages):
        """Sets what depends on the messages."""
        part, mesh = self._rewritten.part, self._rewritten.plan.mesh
        targets, orders = self._without_messages
        self.messages = messages
        self.targets = targets + tuple(m.send for m in messages if m.source == part.index)
        self.groups = communicators(mesh, part, sorted(orders), messages)
        self.orders = _with_messages(orders, part, messages)

    @property
    def is_fed_a_batch(self):
        graph = self._rewritten.program.source.graph
        return any(_is_batch(graph, name) for name in self._names_fed)

    @property
    def updated(self):
        """Names of the variables that the call changes, in whatever way."""
        return frozenset(variable_of(self._rewritten.graph, write) for write in self._updates).difference([None])

    @property
    def touched(self):
        """Names of the variables that the call may change, slots of optimizers too."""
        return frozenset().union(*(touched_by(self._rewritten.graph, write) for write in self._updates))

    def alone(self):
        """The same for a step that only reads and is run for this worker: nobody else gets what it fetches."""
        place = self._rewritten.part.index
        step = copy.copy(self)
        step._carry([m for m in self.messages if m.consumers or m.target == place])
        return step

    def _constants(self, initial, fed):
        # Each worker turns the state of a generator of random numbers after it has got worker 0's.
        plan, placed = self._rewritten.plan, self._rewritten.plan.placed
        # Only the worker of the first copy gives a variable its first value; of others it may be the second.
        initial = {w: v for w, v in initial.items() if placed(v).data.begins != TURNED and not plan.is_spread(v)}
        digests = constant_digests(self._rewritten.graph, initial, fed)
        several = {v for v, times in collections.Counter(initial.values()).items() if times > 1}
        return {initial[w]: digest for w, digest in digests.items() if initial[w] not in several}

    def _fed(self, name):
        """Placeholders whose first dimension is not known are fed the worker's share of the batch: it is divided."""
        plan, micro_batches, node = self._rewritten.plan, self._rewritten.micro_batches, node_of(name)
        if not self.trains and plan.mesh.is_even:
            return [(name, _WHOLE, 1)]
        if plan.partitioned is not None:
            return self._fed_to_shards(name, plan.instances_with(node))
        is_batch = _is_batch(self._rewritten.program.source.graph, name)
        # Where stages have different numbers of devices, rows that are only looked at are those of the first copy too.
        looked_at = is_batch and not plan.mesh.is_even
        holding = plan.instances_with(node)
        instances = plan.mesh.computing(plan.stage(node)) if looked_at else holding
        count = micro_batches.count if looked_at or node in micro_batches.nodes else 1
        if not self.takes_several:
            instances, count = [i for i in instances if i.data == instances[0].data], 1
        span, fed = plan.mesh.span(plan.stage(node)), []
        replicas = sorted({instance.data for instance in instances})
        # A micro-batch of a replica is divided over the devices that compute it.
        of_replica = [i for i in instances if i.data == replicas[0]]
        weights = [plan.mesh.weights_of(plan.stage(node))[i.shard // span] for i in of_replica]
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

    def rows(self, feeds):
        """Rows that are fed for each part of weight 1, where other workers have devices of other weights; else None."""
        rows = (
            (self.sparse[n].rows(feeds, parts) if n in self.sparse else len(feeds[n]), parts)
            for n, parts in self.weighed
        )
        return max((count / float(parts) for count, parts in rows), default=None)

    def _weighed(self, feeds):
        mesh, graph = self._rewritten.plan.mesh, self._rewritten.program.source.graph
        if not mesh.weights or mesh.num_workers == 1:
            return ()
        parts = sum(mesh.weights[instance.shard] for instance in mesh.instances) * self._rewritten.micro_batches.count
        return tuple((name, parts) for name in feeds if _is_batch(graph, name))

    def _fed_to_shards(self, name, instances):
        """The devices of a model replica take the same; what is a batch is divided over the replicas of this worker."""
        if self._rewritten.is_divided(name):
            raise UnsupportedError(
                "'%s' is fed, but each of %d devices has a part of it, as epl.split divides it. Feed a placeholder, or "
                "build what is fed outside of the scope." % (name, self._rewritten.plan.mesh.num_shards)
            )
        replicas, micro_batches = sorted({instance.data for instance in instances}), self._rewritten.micro_batches
        count = micro_batches.count if node_of(name) in micro_batches.nodes else 1
        is_batch, fed = _is_batch(self._rewritten.program.source.graph, name), []
        for instance in instances:
            for m in range(count):
                micro_batch = replicas.index(instance.data) * count + m
                tensor = clone_tensor(micro_batch_tensor(name, m), instance.index)
                slices = range(micro_batch, micro_batch + 1), len(replicas) * count
                fed.append((tensor,) + (slices if is_batch else (_WHOLE, 1)))
        return fed

    def lines(self):
        """What must be the same on every worker, a line for each thing.

        These are the settings, the hints, the collectives, and the nodes of the user's graph that collectives and
        updates of variables depend on; of those that only updates depend on (a learning rate, say) the constants'
        values too.
        """
        users = self._rewritten.program.source.graph
        updates = users.ancestors(self._updates, stop=self._rewritten.differing)
        compared = users.ancestors(self._rewritten.in_one_copy(self._compared()) | self._gathered()) - updates
        return (
            self._rewritten.settings
            + [settings(self._rewritten.plan)]
            + ["hint: %s %s" % hint for hint in sorted(self._rewritten.hints.items())]
            + self._rewritten.plan.data.facts()
            + self._collectives
            + ["message %s: %d to %d over channel %d" % (m.name, m.source, m.target, m.channel) for m in self.messages]
            + [describe(users.nodes[name], with_value=name in updates) for name in users.in_order(compared | updates)]
        )

    def _changes_nothing(self, reached):
        """True for what can be run at any time: it changes no variable, takes no data, is fed a file's name at most."""
        graph = self._rewritten.graph
        if self.initialises or self._updates or any(graph.nodes[name].op in effects.SOURCES for name in reached):
            return False
        return all(
            name not in reached or tags.phase(graph.nodes[name]) == tags.SAVE for name in map(node_of, self._names_fed)
        )

    def _compared(self):
        """Nodes on which the workers must agree: the collectives, and what messages carry."""
        nodes = self._rewritten.graph.nodes
        # What is received for a checkpoint takes nothing here; its name says which variable's part it is.
        for_files = ("EplBroadcastSend", "EplBroadcastReceive")
        collectives = [name for name in self._collectives if name in nodes and nodes[name].op not in for_files]
        return collectives + [node_of(message.tensor) for message in self.messages]

    def _gathered(self):
        """What reads parameters that are gathered; a worker's own gather takes those that it holds alone."""
        plan, collectives, found = self._rewritten.plan, set(self._collectives), set()
        for segment in plan.zero.segments if plan.zero is not None else ():
            if any(segment.gather_of(lane) in collectives for lane in plan.lanes_of(segment.variables[0])):
                found.update(segment.reads)
        return found

    def _fingerprint(self):
        digest = hashlib.sha256()
        for line in self.lines():
            digest.update(line.encode())
            digest.update(b"\n")
        return digest.digest()[:16]


class RemoteRead(object):
    """What a worker runs for another one of its pipeline that only reads. It has what `Step` has for being run.

    Args:
      rewritten: the Rewritten.
      messages: this worker's Messages among those that the other one needs.
    """

    feeds, fetches, checked, may_alias, whole, view, saved, times = (), (), (), False, False, None, (), ()
    timed, loads, restarts, sparse, fixed = False, (), (), {}, ()

    def __init__(self, rewritten, messages):
        rewritten.add_messages(messages)
        part, mesh = rewritten.part, rewritten.plan.mesh
        sent = [m for m in messages if m.source == part.index]
        self.targets = tuple(m.send for m in sent) + tuple(m.receive for m in messages if m.target == part.index)
        gates = rewritten.gates([node_of(m.tensor) for m in sent], frozenset())
        self.open_gates = tuple(gate + ":0" for gate in gates if part.is_here(gate))
        self.groups = communicators(mesh, part, [], messages)
        self.orders = _with_messages({}, part, messages)


def _with_messages(orders, part, messages):
    """Communicator to its tags in order, for those of collectives and for a worker's messages."""
    found = {slot: list(tags_) for slot, tags_ in orders.items()}
    for message in messages:
        if part.index in (message.source, message.target):
            found.setdefault(part.first_slot + message.channel, []).append(message.tag)
    return found


_FEW = 1000  # operations; they take a millisecond at least
# The one part of what is not divided.
_WHOLE = range(1)


def _is_batch(graph, tensor):
    return batch_placeholder(graph, node_of(tensor))
