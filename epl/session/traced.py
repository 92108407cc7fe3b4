"""For `python -m epl.verify`: where a worker's step has the tensors of the program, to be compared one by one."""

from epl import compiler, tf_compat
from epl.graph import control_flow, tags, types
from epl.graph.index import canonical_tensor, format_input, node_of
from epl.passes.nodes import dtype_of
from epl.plan.facts.names import clone_tensor, micro_batch_tensor
from epl.rules import effects, tensors


class Traced(object):
    """Of one Rewritten.

    Args:
      program: the Program as it was captured.
      rewritten: the Rewritten.
      wanted: losses and gradients: what is looked at is what they are made of.
      given: names of nodes of which one device is given what the job had.
    """

    def __init__(self, program, rewritten, wanted, given):
        self._program, self._rewritten = program, rewritten
        self._partitioned, self._changed = rewritten.program.partitioned, compiler.changes(rewritten.program)
        graph = program.graph
        left_out = control_flow.inside_control_flow(graph) | frozenset(given) | _aliases(graph)
        self.tensors = []
        reached = graph.ancestors(list(map(node_of, wanted)), stop=given, data_only=True)
        for name in graph.in_order(reached - left_out):
            node = graph.nodes[name]
            if tags.phase(node) in (tags.FORWARD, tags.BACKWARD) and not effects.is_write(node.op):
                taken = {graph.inputs[c][at].index for c, at in graph.consumers.get(name, ())}
                self.tensors += [format_input(name, i) for i in sorted(taken) if i >= 0 and self._is_floating(name, i)]
        instances, count = rewritten.plan.mesh.instances, rewritten.micro_batches.count
        self._copies = frozenset(
            _copy(tensor, i, m) for tensor in self.tensors for i in instances for m in range(count)
        )

    def _is_floating(self, name, index):
        spec = self._program.spec_of(format_input(name, index))
        return spec is not None and spec.dtype in types.FLOAT_TYPES

    def places(self, reached):
        """[what it is, name of the tensor] pairs of what a step of this worker has of them.

        Args:
          reached: nodes of the worker's graph that the step runs.

        Returns:
          What it is: ["traced", tensor, copy of the model, micro-batch, shard, kind, dim]: the last two of its
          Placement, of what has to be combined how it has to.
        """
        rewritten, found = self._rewritten, []
        for tensor in self.tensors:
            placement = self._partitioned.placements.get(tensor) if self._partitioned is not None else None
            kind, dim = ("whole", -1) if placement is None else (placement.combine or placement.kind, placement.dim)
            for instance in rewritten.plan.mesh.instances:
                for m in range(rewritten.micro_batches.count):
                    name = _copy(tensor, instance, m)
                    if node_of(name) in reached:
                        found.append((["traced", tensor, instance.data, m, instance.shard, kind, dim], name))
        return found

    def way(self, reached, node, position):
        """What leads from gradients as copies of the model make them to who takes the joined one.

        Args:
          reached: nodes of this worker's graph that the step runs.
          node, position: who takes it in this worker's graph, and where.

        Returns:
          [(tensor, what gives it in words)], none before one that it is made of, the last one as it is taken.
        """
        own, found = self._rewritten.own_graph, {}
        stack = [own.inputs[node][position]]
        while stack:
            each = stack.pop()
            text = format_input(*each)
            if each.index < 0 or text in found or text in self._copies or each.node not in reached:
                continue
            made = own.nodes[each.node]
            if made.op == "Const" or made.op in effects.VARIABLES or dtype_of(own, text) not in types.FLOAT_TYPES:
                continue
            found[text] = each.node
            stack += _inputs_for(made, own.inputs[each.node], each.index)
        order = own.order
        return [(text, self.words(found[text])) for text in sorted(found, key=lambda text: order[found[text]])]

    def others(self, reached):
        """What nodes take in the place of what they take in the program.

        Returns:
          A list of [tensor of the program, copy of the model, micro-batch, what it takes there, what here, what that
          is].
        """
        graph, own, found = self._program.graph, self._rewritten.own_graph, []
        for tensor in self.tensors:
            for instance in self._rewritten.plan.mesh.instances:
                for m in range(self._rewritten.micro_batches.count):
                    name = node_of(_copy(tensor, instance, m))
                    if name in reached and len(own.inputs[name]) >= len(graph.inputs[node_of(tensor)]):
                        for was, now in zip(graph.inputs[node_of(tensor)], own.inputs[name]):
                            text, was = format_input(*now), format_input(*was)
                            if now.index >= 0 and text not in (was, _copy(was, instance, m), _copy(was, None, m)):
                                place = [tensor, instance.data, m]
                                found.append(place + [was, text, self.words(now.node)])
        return found

    def words(self, name):
        """What a node of this worker's graph is, and the passes that have made and changed it, in words."""
        changed = self._changed.get(name, ())
        passes = " (%s)" % ", ".join(changed) if changed else ""
        return self._rewritten.own_graph.nodes[name].op + passes

    def lines(self, tf_graph):
        """{node of the program: [line of the user's program, ...]}, of those that made it the innermost first."""
        found = {}
        for name in {node_of(tensor) for tensor in self.tensors}:
            found[name] = tf_compat.program_lines(tf_graph.get_operation_by_name(name))
            forward = self._program.forward_op(name)
            if forward is not None:
                forward = tf_graph.get_operation_by_name(forward)
                found[name] = tf_compat.program_lines(forward) or found[name]
        return found

    def passes(self):
        """{tensor of the program: the passes that have changed its node in this worker, or made a copy of it}."""
        found, rewritten = {}, self._rewritten
        for tensor in self.tensors:
            names = [
                node_of(_copy(tensor, instance, m))
                for instance in rewritten.plan.mesh.instances
                for m in range(rewritten.micro_batches.count)
            ]
            changed = [each for name in names for each in self._changed.get(name, ())]
            found[tensor] = list(dict.fromkeys(changed))
        return found


def _inputs_for(node, inputs, index):
    """The inputs of which an output is made; an all-reduce of several tensors takes all of one copy, then the next."""
    if "num_inputs" not in node.attr or "N" not in node.attr:
        return inputs
    count, taken = node.attr["N"].i, node.attr["num_inputs"].i
    return [each for at, each in enumerate(inputs) if at >= taken or at % count == index]


def _copy(tensor, instance, micro_batch):
    name = micro_batch_tensor(tensor, micro_batch)
    return canonical_tensor(name if instance is None else clone_tensor(name, instance.index))


def _aliases(graph):
    """Nodes that may share their memory with a reference variable, so that they change when that is written."""
    found = set(graph.find((effects.VARIABLES - {"VarHandleOp"}).__contains__))
    for name in graph.order:
        if graph.nodes[name].op in tensors.IN_MEMORY_OF_INPUT and any(
            each.node in found for each in graph.inputs[name]
        ):
            found.add(name)
    return frozenset(found)
