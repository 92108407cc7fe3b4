"""The user's graph as it stands, its plan and its rewritten graph; made anew when the user's graph has grown."""

import hashlib
from dataclasses import replace

from epl import compiler, tf_compat
from epl.capture.record import make_program, version_of
from epl.communicators.library import collectives_on_gpu
from epl.graph import collector, tags, types
from epl.graph.index import canonical_tensor, node_of
from epl.passes.worker.broadcast import sync_orders
from epl.plan.exchange.order import keys_of_shards
from epl.plan.facts.analysis import variable_of
from epl.plan.facts.consistency import differing, merged_edges
from epl.plan.facts.names import clone_name, micro_batch_name, whole_name
from epl.rules import effects
from epl.session import settings
from epl.session.described import describe, told_hints
from epl.session.parts import communicators, wanted_messages
from epl.session.step import remote_read, step_of


class Rewritten(object):
    """One version of a user's graph, ready to be run.

    Args:
      tf_graph: the user's tf.Graph.
      config, cluster: of the process.
      job_seed: a number that all workers share.
      measure_link: function that returns the Link between the workers, called where groups of gradients follow from
        it; None: as is assumed for where the workers are.
      role: what the graph is for, where that is not as it was captured (epl.program.program).
      whole: the first copy of the model in each worker computes batches for all.
      at: as epl.compiler.compile takes it.

    Attributes:
      program: the Program of this worker.
      plan: its Plan.
      graph: the rewritten Graph: this worker's, or its pipeline's.
      partners: an EplSend of the user to its EplRecv.
      settings: lines about the configuration, see epl.session.settings.
      hints: tensors of the program to what epl.shard or epl.whole says of them.
      has_reference_variables: True when any variable is of the kind that is updated in place.
      told: whether the user knows that what does not divide is computed by one copy of the model.
    """

    told = False

    @collector.paused()
    def __init__(self, tf_graph, config, cluster, job_seed, measure_link=None, role=None, whole=False, at=None):
        self.version = version_of(tf_graph)
        on_gpu = collectives_on_gpu(cluster, config)
        program = make_program(tf_graph)
        program = replace(program, role=program.role if role is None else role, whole_batches=whole)
        self.program = compiler.compile(program, config, cluster, job_seed, on_gpu, measure_link, at=at)
        self.plan = self.program.plan
        self.graph = self.program.whole
        self.hints = told_hints(program.graph) if self.plan.partitioned is not None else {}
        self._keys = dict(self.program.order)
        self.partners = {c.partner: c.name for c in self.plan.user_collectives if c.partner}
        self._idle = frozenset(c.name for c in self.plan.user_collectives if not c.takes_part)
        self._merged = {merge.tensor: merge.name for merge in self.plan.merges}
        self._writes = frozenset(self.plan.analysis.writes)
        self._in_all_copies = self._in_step = self._writes & self.plan.analysis.cloned
        if self.plan.partitioned is not None:  # each device gives its parts values; all draw the same numbers
            drawn = self.plan.analysis.cloned.intersection(self.graph.find(effects.RANDOM.__contains__))
            self._in_all_copies |= drawn.union(self.plan.analysis.initial_writes)
            self._in_step |= drawn & self.graph.ancestors(self._writes)
        self._differing = self._shares = None
        self.settings = settings.lines(config)
        self._remote_reads = {}
        self.has_reference_variables = any(
            self.program.source.graph.nodes[v].op != "VarHandleOp" for v in self.program.variables
        )

    @property
    def part(self):
        return self.program.part

    @property
    def micro_batches(self):
        return self.program.micro_batches

    @property
    def own_graph(self):
        """What this worker's session holds."""
        return self.program.graph

    @property
    def shares(self):
        """Nodes of this worker that say how much the rows that it is fed count beside those of other workers."""
        if self._shares is None:
            nodes = self.own_graph.nodes
            self._shares = tuple(n for n in self.own_graph.find("Const".__eq__) if tags.SHARE in nodes[n].attr)
        return self._shares

    def has(self, name):
        """Whether this worker has a node of the graph."""
        return self.program.has(name)

    def communicators(self, slots):
        """The Communicators that only some of the workers have, for these slots of the pool."""
        return communicators(self.plan.mesh, self.part, sorted(slots), [])

    def described(self, variable):
        """What must be the same on all workers for a variable's value to be sent to them; None for one not there."""
        if not self.plan.is_sent(variable):
            return None
        known = self.plan.variables[variable]
        shape = "of any shape" if known.shape is None else "of shape (%s)" % ", ".join(map(str, known.shape))
        return "%s %s" % (tf_compat.tf.as_dtype(types.base(known.dtype)).name, shape)

    def holder(self, variable):
        """The worker whose value of a variable counts, though it is not the chief, and why; None for the chief's.

        Where there are several copies of a pipeline it is that of the first copy.
        """
        plan = self.plan
        worker = plan.only_holder(variable)
        if worker is None:
            return None
        if plan.is_kept(variable):
            what = "parameters" if variable in plan.zero.parameters else "the state of optimizers"
            return worker, "as zero.level divides %s" % what
        return worker, "in which its stage of the model lies"

    def add_messages(self, messages):
        """Makes sure that this worker has its nodes of some messages."""
        self.program = compiler.with_sent(self.program, messages)

    def remote_read(self, rows, reader, worker):
        """What this worker runs so that another one of its pipeline can read; `rows` of that one, see `rows`."""
        key = tuple(map(tuple, rows))
        if key not in self._remote_reads:
            wanted = wanted_messages(self.part, key, self._sent_by, reader, worker)
            self._remote_reads[key] = remote_read(self, wanted)
        return self._remote_reads[key]

    def rows(self, messages):
        """Messages as others can be told of them: what they are, and from what they are made."""
        return tuple((m.tensor, m.source, m.target, m.channel, m.name, self._sent_by(m.tensor)) for m in messages)

    def _sent_by(self, tensor):
        """A digest of the node that makes a tensor of this worker's pipeline."""
        return hashlib.sha256(describe(self.part.whole.nodes[node_of(tensor)]).encode()).hexdigest()[:16]

    def step(self, fetches, targets, feeds, view=None):
        """What has to run for a call of the session.

        Args:
          fetches: tensor names.
          targets: operation names.
          feeds: names of the fed tensors.
          view: how the session calls the nodes; None: by their names.

        Returns:
          A Step.
        """
        self._add_wholes(fetches)
        return step_of(self, fetches, targets, feeds, view)

    def _add_wholes(self, fetches):
        """Makes sure that there is the whole of each tensor that is fetched and of which devices have parts."""
        divided = [shown for shown in map(self._shown, fetches) if self.is_divided(shown)]
        program = compiler.with_whole_tensors(self.program, divided) if divided else self.program
        if program is self.program:
            return
        self.program, self.graph = program, program.whole
        for name, key in keys_of_shards(self.graph).items():
            # After all others, as nothing needs them.
            self._keys.setdefault(name, (float("inf"),) + key[1:])

    def is_divided(self, tensor):
        """Whether each device has a part of a tensor."""
        done, name = self.plan.partitioned, canonical_tensor(tensor)
        return done is not None and name in done.placements and self.graph.nodes[node_of(name)].op != "VarHandleOp"

    @property
    def in_all_copies(self):
        """Operations that run in all copies of the model in this worker, if in any."""
        return self._in_all_copies

    @property
    def in_step(self):
        """Those of them that are run for more than first values."""
        return self._in_step

    def merged(self, tensor):
        """The tensor that a fetch of `tensor` gets: its merged value if it is in a collection, a metric's last one."""
        own, shown = canonical_tensor(tensor), self._shown(tensor)
        if self.is_divided(shown):
            return whole_name(shown) + ":0"
        return shown + ":0" if shown != own else tensor

    def _shown(self, tensor):
        over_micro_batches = self.micro_batches.shown(canonical_tensor(tensor))
        return self._merged.get(over_micro_batches, over_micro_batches)

    def gates(self, roots, stop):
        """Gates of the micro-batches' order that a run must not wait for, as it is not for what they serve."""
        pairs = self.micro_batches.gates
        if not pairs:
            return []
        reached = self._without_gates(roots, stop)
        closed = {gate for signs, gates in pairs if not signs & reached for gate in gates}
        return [clone_name(gate, i.index) for gate in sorted(closed) for i in self.plan.instances_with(gate)]

    def first_updates(self, roots, stop):
        """The first micro-batch's updates of metrics, where `roots` need what these come to with the last one."""
        micro_batches = self.micro_batches
        if not micro_batches.counted:
            return []
        reached, last = self._without_gates(roots, stop), micro_batches.count - 1
        updates = self.graph.in_order(micro_batches.counted & micro_batches.writes)
        return [name for name in updates if micro_batch_name(name, last) in reached]

    def _without_gates(self, roots, stop):
        """What `roots` need but for the order of micro-batches."""
        gates = {gate for _, gates in self.micro_batches.gates for gate in gates}
        every = {clone_name(gate, i.index) for gate in gates for i in self.plan.mesh.instances}
        return self.graph.ancestors(roots, stop=every.union(stop))

    @property
    def keys(self):
        return self._keys

    @property
    def idle(self):
        return self._idle

    def changed_by(self, writes):
        """The variables that writes change, but for those of which each copy keeps a value of its own."""
        analysis, graph = self.plan.analysis, self.graph
        if self.plan.mesh.num_workers == 1:
            return frozenset()
        changed = {variable_of(graph, write) for write in writes - analysis.varying}
        return frozenset(filter(self.plan.is_sent, changed))

    @property
    def differing(self):
        """Nodes of the model that differ from copy to copy although gradients and state are merged; and gradients."""
        if self._differing is None:
            plan, graph = self.program.source.plan, self.program.source.graph
            merged = merged_edges(plan.aggregation, plan.state)
            found = differing(graph, plan.analysis.varying, merged).difference(plan.analysis.writes)
            self._differing = frozenset(found.union(node_of(t) for t in plan.aggregation.consumers))
        return self._differing

    @property
    def owned(self):
        """{variable: the worker that alone holds it} of those that one of several workers holds."""
        holders = ((name, self.plan.only_holder(name)) for name in self.plan.placements)
        return {name: holder for name, holder in holders if holder is not None}

    @property
    def state_owners(self):
        """{variable: the copy of the model, by rank, that updates it} where copies divide updates (zero.level)."""
        zero = self.plan.zero
        return {update.variable: update.owner for update in zero.updates} if zero is not None else {}

    def sync_orders(self, variables):
        """{slot: tags of collectives, in order}: with these, variables that this worker has get the chief's values."""
        orders = {}
        for variable in filter(self.plan.is_here, variables):
            for slot, in_order in sync_orders(self.plan, variable).items():
                orders.setdefault(slot, []).extend(in_order)
        return orders

    @property
    def writes(self):
        return self._writes

    def in_one_copy(self, names):
        """The user's nodes from which nodes of the first instance take data, or which they are."""
        users = self.program.source.graph.nodes
        found, seen, stack = set(), set(), list(names)
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            node = self.graph.nodes[name]
            if tags.INSTANCE in node.attr:
                continue
            original = self.micro_batches.original(node)
            if name in users or original != name:
                found.add(original)
            else:
                stack.extend(producer for producer, index in self.graph.inputs[name] if index >= 0)
        return found
