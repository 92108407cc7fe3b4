r"""Lets gradients travel in fewer bits between workers (communication.wire_dtype).

    grad -> apply   becomes   grad -> EplWireEncode -> EplAllToAll -> EplWireSum -> EplAllGather -> EplWireDecode ->
                              left -/  \-> Assign(left)  residual_of_sum -/  \-> Assign(residual_of_sum)

Each worker adds up one share of every gradient. What is applied waits until what is left over has been kept.

Where each worker makes updates of its own (zero.level), it adds up the gradients of these, which stay there:

    grad -> EplWireEncode -> EplAllToAll -> EplWireDecode -> apply
    left -/  \-> Assign(left)
"""

from epl.graph.index import format_input, node_of
from epl.graph.node_defs import constant, make_node
from epl.graph.types import FLOAT32, INT64, UINT8
from epl.passes.node_workers import of_keeper, of_stage
from epl.passes.nodes import assign_node, collective_node, instance_tensor, read_node, rewire, tagged
from epl.plan.zero.zero import scattered_groups


def encode_gradients(program, plan):
    """Two exchanges of bytes for each group of gradients that travels in fewer bits."""
    if plan.wire is None:
        return program
    edit, owned = program.graph.editor(), scattered_groups(plan)
    for group in plan.aggregation.groups:
        if group.name in plan.wire.to_owners:
            _to_owners(_Exchange(edit, plan, group, owned[group.name].tensors), owned[group.name])
        elif group.name in plan.wire.groups:
            _to_all(_Exchange(edit, plan, group, group.tensors))
    return program.with_graph(edit.finish())


def _to_all(exchange):
    """Each worker adds up a share of each gradient of a group and sends it to all."""
    group, coded = exchange.group, exchange.coded
    to_sum, sums = exchange.plan.wire.names(group)
    come, kept = exchange.encoded(to_sum, [])
    residuals = [each.residual_of_sum for each in coded]
    inputs = [come] + exchange.read(residuals)
    add_up = exchange.node("EplWireSum", group.name + "/add_up", inputs, coded, scale=exchange.scale)
    kept += exchange.keep(residuals, exchange.add(add_up))
    exchange.send(sums, [add_up.name], R=1)
    exchange.decode(group.name, [sums] + ["^" + name for name in kept], group.tensors, exchange.all_have)


def _to_owners(exchange, updates):
    """Each worker adds up the gradients of a group whose updates it makes, as an UpdateGroup says."""
    group, plan = exchange.group, exchange.plan
    to_sum, _ = plan.wire.names(group)
    local = plan.zero.shard_group.local
    workers = [update.owner // local for update in updates.updates]
    sizes = [
        plan.wire.whole_bytes([each for each, owner in zip(exchange.coded, workers) if owner == worker])
        for worker in range(plan.wire.workers)
    ]
    come, kept = exchange.encoded(to_sum, sizes, owners=workers)
    for worker in sorted(set(workers)):
        own = [tensor for tensor, owner in zip(updates.tensors, workers) if owner == worker]
        name, add = "%s/to_%d" % (group.name, worker), of_keeper(plan, worker, node_of(own[0]))
        exchange.decode(name, [come] + ["^" + each for each in kept], own, add, adds=True, scale=exchange.scale)


class _Exchange(object):
    """What both ways to exchange a DenseGroup have in common.

    Args:
      edit: the Editor.
      plan: the Plan.
      group: the DenseGroup.
      tensors: its gradients, in the order in which they are sent.
    """

    def __init__(self, edit, plan, group, tensors):
        self.plan, self.group, self._edit, self._host = plan, group, edit, plan.mesh.host_device
        self._coded_of = dict(zip(group.tensors, plan.wire.groups[group.name]))
        self._tensors, self.coded = tensors, [self._coded_of[tensor] for tensor in tensors]
        self.all_have = of_stage(plan, node_of(tensors[0]))
        self.scale = float(plan.gradient_scale_of(tensors[0]))

    def add(self, node):
        """Adds a node that all have who have the gradients; returns its name."""
        return self.all_have(self._edit, node)

    def encoded(self, name, splits, **attrs):
        """Adds the exchange of this worker's gradients; returns its name and those of what keeps what is left over.

        Args:
          name: of the collective.
          splits: bytes for each worker; none: as many for each.
        """
        plan, tensors = self.plan, self._tensors
        instances = plan.mesh.givers(self.group.shard_rank, plan.stage(tensors[0]))
        gradients = [instance_tensor(plan, tensor, each.index) for each in instances for tensor in tensors]
        residuals, stem = [each.residual for each in self.coded], self.group.name + "/encode"
        counts = dict(R=len(instances), num_inputs=len(gradients))
        inputs = gradients + self.read(residuals)
        encode = self.add(self.node("EplWireEncode", stem, inputs, self.coded, **dict(counts, **attrs)))
        self.send(name, [encode, self.add(constant(self.group.name + "/splits", splits, INT64, self._host))])
        return name, self.keep(residuals, encode)

    def node(self, op, name, inputs, coded, **attrs):
        """One of the operations for Coded gradients."""
        node = make_node(op, name, inputs, self._host, N=len(coded), workers=self.plan.wire.workers, **attrs)
        node.attr["wire_dtype"].s = self.plan.wire.dtype.encode()
        node.attr["sizes"].list.i.extend(each.num_elements for each in coded)
        return tagged(node, "wire")

    def send(self, name, inputs, **attrs):
        self.add(collective_node(self.plan, self.plan.collective(name), name, inputs, UINT8, **attrs))

    def keep(self, variables, name):
        """Gives variables the outputs of a node that come behind its first one; returns the names of what does it."""
        kept = []
        for place, variable in enumerate(variables):
            value = "%s:%d" % (name, place + 1)
            kept.append(self.add(assign_node(self._edit.peek(variable), variable + "/keep", value, FLOAT32)))
        return kept

    def read(self, variables):
        return [self.add(read_node(self._edit.peek(each), each + "/read", FLOAT32)) for each in variables]

    def decode(self, name, inputs, tensors, add, **attrs):
        """Adds what takes bytes apart again, and gives the gradients `tensors` to those who take them."""
        coded = [self._coded_of[tensor] for tensor in tensors]
        node = self.node("EplWireDecode", name, inputs, coded, **attrs)
        for each in coded:
            shape = node.attr["shapes"].list.shape.add()
            for size in each.shape:
                shape.dim.add().size = size
        add(self._edit, node)
        for place, tensor in enumerate(tensors):
            consumers = self.plan.aggregation.consumers[tensor]
            rewire(self._edit, self.plan, consumers, format_input(name, place), self.group.shard_rank)
