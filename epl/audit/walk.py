"""Finds what the tensors of graphs are: of the single-device graph, and of those of all workers together."""

import re

import numpy as np

from epl.audit.compared_values import SOURCE, SUM, VARIABLE, Value, near
from epl.graph import tags
from epl.graph.index import format_input
from epl.graph.lazy import node_def_of
from epl.graph.types import FLOAT32, FLOAT64
from epl.rules import effects, tensors

_COPY = re.compile(r"(?:epl_instance_(\d+)/)?(?:epl_micro_batch_(\d+)/)?(.*)", re.DOTALL)
# Attributes that say nothing of what an operation computes.
_ASIDE = frozenset("_class _output_shapes _grad_op_type use_locking container shared_name parallel_iterations".split())
_SEEDS = frozenset(["seed", "seed2"])
_DRAWS = frozenset([effects.SEEDED, effects.KEYED, effects.DRAWN])
_GIVEN = frozenset([effects.FED, effects.SOURCE])
# What they give is their first input. (Of a reference variable, its value.)
_SAME = tensors.SAME | {"ReadVariableOp", "CheckNumerics"}
_PRODUCTS = frozenset(["Mul", "RealDiv"])
_LOOPS = effects.ENTERS | effects.EXITS | effects.LOOP_EDGES
_TYPES = {"float_val": FLOAT32, "double_val": FLOAT64}
# What receives to what sends.
_RECEIVES = {"EplBroadcastReceive": "EplBroadcastSend"}


def original_name(name):
    """(name in the single-device graph, number of the copy in its worker, micro-batch) of a node by its name."""
    instance, micro_batch, rest = _COPY.match(name).groups()
    return rest, int(instance or 0), int(micro_batch or 0)


class Walk(object):
    """Values of the tensors of some graphs.

    Args:
      terms: the Terms; one for all graphs that are compared.
      source: the single-device Graph.
      varying: its nodes whose values differ from copy to copy.
      graphs: Graphs of workers, by the worker's index; None: of the single-device graph itself.
      whole: function (term, factor, number of shares) -> whether the factor times the sum of a term over all shares is
        what one device has.
      shares: all shares of the batch; empty for the single-device graph.
    """

    def __init__(self, terms, source, varying, graphs=None, whole=None):
        self._terms, self._source, self._varying = terms, source, varying
        self._is_source = graphs is None
        self.graphs = {0: source} if graphs is None else graphs
        self._whole = whole
        self._known, self._open, self._numbers = {}, set(), {}
        self._sends, self._exchanges = self._tagged()
        self._groups = self._joined_by_messages()
        self.shares = frozenset() if self._is_source else frozenset(self._all_shares())

    def _tagged(self):
        """({(worker, node) that receives: (worker, node) that sends}, {(type, tag): [(worker, node)] that take part})

        Several groups of workers may use a tag: of as many who send and who receive, the first belongs to the first.
        """
        exchanges, sends = {}, {}
        for worker, graph in self.graphs.items():
            for name in graph.find(lambda op: op.startswith("Epl")):
                node = graph.nodes[name]
                if "tag" in node.attr:
                    exchanges.setdefault((node.op, node.attr["tag"].i), []).append((worker, name))
        for (op, tag), receivers in exchanges.items():
            senders = exchanges.get((_RECEIVES.get(op), tag), [])
            if len(senders) == 1:
                sends.update((receiver, senders[0]) for receiver in receivers)
            elif len(senders) == len(receivers):
                sends.update(zip(receivers, senders))
        return sends, exchanges

    def _joined_by_messages(self):
        """dict of a worker to the first one that it computes a copy of the model together with: it sends it what data
        changes."""
        group = {worker: worker for worker in self.graphs}
        for (receiver, _), (sender, name) in self._sends.items():
            sent = self.graphs[sender].inputs[name][0].node
            if original_name(sent)[0] in self._varying:
                one, other = sorted((group[sender], group[receiver]))
                group = {worker: one if first == other else first for worker, first in group.items()}
        return group

    def _all_shares(self):
        for worker, graph in self.graphs.items():
            for name in graph.nodes:
                original, instance, micro_batch = original_name(name)
                if original in self._varying and self._gives(original):
                    yield (self._groups[worker], instance, micro_batch)

    def _gives(self, original):
        return effects.kind_of(self._source.nodes[original].op) in _GIVEN

    def value(self, worker, tensor):
        """The Value of a tensor (a NodeInput) of a worker's graph."""
        stack = [(worker, tensor.node)]
        while stack:
            key = stack[-1]
            if key in self._known:
                stack.pop()
                continue
            missing = [each for each in self._needs(*key) if each not in self._known]
            if any(each in self._open for each in missing):
                self._known[key] = self._unknown("it stands in a loop", *key)
            elif missing:
                self._open.add(key)
                stack.extend(missing)
            else:
                self._known[key] = self._found(*key)
            if key in self._known:
                self._open.discard(key)
        found = self._known[(worker, tensor.node)]
        return found(tensor.index) if callable(found) else found

    def _needs(self, worker, name):
        node = self.graphs[worker].nodes[name]
        if node.op in _RECEIVES:
            sender = self._sends.get((worker, name))
            return [] if sender is None else self._inputs(*sender)
        if self._is_given(worker, name):
            return []
        if node.op == "EplAllReduce":
            return [each for one in self._takers(worker, name) for each in self._inputs(*one)]
        return self._inputs(worker, name)

    def _inputs(self, worker, name):
        return [(worker, each.node) for each in self.graphs[worker].inputs[name] if each.index >= 0]

    def _takers(self, worker, name):
        node = self.graphs[worker].nodes[name]
        if node.attr["workers"].i == 1:
            return [(worker, name)]
        return self._exchanges[(node.op, node.attr["tag"].i)]

    def _is_given(self, worker, name):
        node = self.graphs[worker].nodes[name]
        kind = effects.kind_of(node.op)
        return kind in _GIVEN or kind in _DRAWS or kind == effects.VARIABLE

    def _values(self, worker, name):
        graph = self.graphs[worker]
        found = []
        for producer, index in graph.inputs[name]:
            if index >= 0:
                known = self._known[(worker, producer)]
                found.append(known(index) if callable(known) else known)
        return found

    def _unknown(self, reason, worker, name):
        return self._terms.unknown(reason, (worker, name))

    def _found(self, worker, name):
        """The Value of a node's only output, or a function from an output's number to its Value."""
        node = node_def_of(self.graphs[worker].nodes[name])
        original, instance, micro_batch = original_name(name)
        if self._is_given(worker, name):
            return self._given(worker, node, original, (self._groups[worker], instance, micro_batch))
        if node.op in _RECEIVES:
            sender = self._sends.get((worker, name))
            return (
                self._unknown("it is not known who sends it", worker, name)
                if sender is None
                else self._values(*sender)[0]
            )
        if node.op == "EplAllReduce":
            return self._all_reduced(worker, node)
        if node.op in _LOOPS or node.op.startswith("Epl") or effects.kind_of(node.op) == effects.CALL:
            return self._unknown("'%s' is not followed" % node.op, worker, name)
        return self._computed(node, self._values(worker, name))

    def _given(self, worker, node, original, share):
        if original not in self._source.nodes or self._source.nodes[original].op != node.op:
            return self._unknown("one device has no '%s' of this name" % node.op, worker, node.name)
        if effects.kind_of(node.op) == effects.VARIABLE:
            return self._noted(Value(self._terms.number(VARIABLE, original), None), original)
        share = None if self._is_source or original not in self._varying else share
        if effects.kind_of(node.op) in _DRAWS:
            asked = _asked(node, _SEEDS), _asked(self._source.nodes[original], _SEEDS)
            if asked[0] != asked[1]:
                return self._unknown("it draws other numbers than on one device", worker, node.name)
        give = self._terms.number

        def given(index):
            tensor = format_input(original, index)
            return self._noted(Value(give(SOURCE, tensor), share), tensor)

        return given

    def _all_reduced(self, worker, node):
        takers = self._takers(worker, node.name)
        if len(takers) != node.attr["workers"].i:
            reason = "%d workers take part in it, where %d should" % (len(takers), node.attr["workers"].i)
            return self._unknown(reason, worker, node.name)
        way = node.attr["reduce_op"].s.decode() or "sum"
        if way not in ("sum", "mean") or node.attr["wire_fp16"].b:
            return self._unknown("its '%s' is not followed" % way, worker, node.name)
        copies, count = max(1, node.attr["R"].i), node.attr["N"].i
        scale = near(node.attr["scale"].f) if "scale" in node.attr else 1
        factor = scale / (copies * len(takers)) if way == "mean" else scale
        taken = [self._values(*each) for each in takers]

        def reduced(index):
            return self._summed([each for values in taken for each in values[index::count]], factor)

        return reduced

    def _summed(self, values, factor=1):
        """A sum, as what one device has of all shares where it is that."""
        found = self._terms.added(values, factor)
        items = self._terms.items(found)
        terms, factors = {value.term for value in items}, set(items.values())
        if len(terms) == 1 and len(factors) == 1 and self.shares and {v.share for v in items} == self.shares:
            if self._whole(terms.copy().pop(), factors.copy().pop(), len(self.shares)):
                return Value(terms.pop(), None)
        return found

    def _computed(self, node, values):
        if node.op in _SAME and values:
            return values[0]
        shares = {value.share for value in values} - {None}
        sums = [value for value in values if self._terms.kind(value.term) == SUM]
        if not self._is_source:
            if node.op in tensors.SUMS and (sums or len(shares) > 1 or self._is_doubled(node, values)):
                return self._summed(values)
            if node.op in _PRODUCTS and len(values) == 2:
                scaled = self._scaled(node, values, bool(sums))
                if scaled is not None:
                    return scaled
        share = shares.pop() if len(shares) == 1 else None
        if shares:
            return self._unknown("it takes what belongs to several shares of the batch", -1, node.name)
        return self._operation(node, values, share)

    def _is_doubled(self, node, values):
        """Whether it adds something to itself, where one device does not."""
        term = self._terms.number(node.op, (_asked(node), 0), tuple(value.term for value in values))
        return len(set(values)) < len(values) and self._terms.origin(term) is None

    def _operation(self, node, values, share):
        what, inputs = _asked(node), tuple(value.term for value in values)
        if node.op == "Const":
            self._numbers[self._terms.number("Const", (what, 0))] = _number(node.attr["value"].tensor)

        def output(index):
            return self._noted(
                Value(self._terms.number(node.op, (what, index), inputs), share), format_input(node.name, index)
            )

        return output

    def _scaled(self, node, values, has_sum):
        """A Value times a constant; None where it is no such product, or one that one device has too."""
        factors = [self._numbers.get(value.term) for value in values]
        if node.op == "Mul" and factors[0] is not None:
            values, factors = values[::-1], factors[::-1]
        if factors[1] is None or not (node.op == "Mul" or factors[1]):
            return None
        term = self._terms.number(node.op, (_asked(node), 0), tuple(value.term for value in values))
        if not has_sum and self._terms.origin(term) is not None:
            return None
        return self._summed(values[:1], factors[1] if node.op == "Mul" else 1 / factors[1])

    def _noted(self, value, tensor):
        if self._is_source:
            self._terms.note(value.term, tensor)
        return value


def _number(tensor):
    """The fraction that a TensorProto of one number stands for; None of any other."""
    for field, dtype in (("float_val", np.float32), ("double_val", np.float64)):
        values = getattr(tensor, field)
        if tensor.dtype == _TYPES[field] and not tensor.tensor_shape.dim:
            numbers = values if values else np.frombuffer(tensor.tensor_content, dtype)
            return near(float(numbers[0])) if len(numbers) else None
    return None


def _asked(node, but=frozenset()):
    """What a node's attributes ask for, as bytes."""
    return tuple(
        (key, node.attr[key].SerializeToString(deterministic=True))
        for key in sorted(node.attr)
        if not key.startswith(tags.PREFIX) and key not in _ASIDE and key not in but
    )
