"""Finds what the tensors of graphs are: of the single-device graph, and of those of all workers together."""

import collections
import re
from fractions import Fraction

import numpy as np

from epl.audit.compared_values import AFTER, SOURCE, SUM, UNKNOWN, VARIABLE, VECTOR, Value, near
from epl.audit.element_spans import aligned, cut, length, vector
from epl.audit.gathered_rows import ROWS, are_of_all, gathered, rows
from epl.graph import tags
from epl.graph.index import format_input
from epl.graph.lazy import node_def_of
from epl.graph.types import FLOAT32, FLOAT64, INDEX_TYPES
from epl.partition.values import constant_value
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
# Exchanges in which all workers of a group take part alike.
_JOINING = frozenset(["EplAllReduce", "EplReduceScatter", "EplAllGather"])
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
      shape_of: function from one of its tensors to its shape; None where that is not known.
      graphs: Graphs of workers, by the worker's index; None: of the single-device graph itself.
      whole: function (term, factor, number of shares) -> whether the factor times the sum of a term over all shares is
        what one device has.
      sparse: dict of the terms of values and indices of sparse gradients to a function (factor, number of shares) ->
        whether the factor times the rows of all shares are what one device has.
      whole_rows: those of which the rows of all shares were found, as one device has them.
      shares: all shares of the batch; empty for the single-device graph.
    """

    def __init__(self, terms, source, varying, shape_of, graphs=None, whole=None, sparse=None):
        self._terms, self._source, self._varying, self._shape_of = terms, source, varying, shape_of
        self._is_source = graphs is None
        self.graphs = {0: source} if graphs is None else graphs
        self._whole, self._sparse, self.whole_rows = whole, sparse or {}, set()
        self._known, self._open = {}, set()
        self._numbers, self._integers, self._shapes = {}, {}, {}  # of constants, by their terms
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
        if node.op in _JOINING:
            return [each for one in self._takers(worker, name) for each in self._inputs(*one)]
        written = [each for write in self._written_before(worker, name) for each in self._inputs(worker, write)]
        return self._inputs(worker, name) + written

    def _inputs(self, worker, name):
        return [(worker, each.node) for each in self.graphs[worker].inputs[name] if each.index >= 0]

    def _takers(self, worker, name):
        node = self.graphs[worker].nodes[name]
        if tags.get_int(node, "workers") == 1:
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
        if node.op in _JOINING:
            return self._joined(worker, node)
        if node.op == "EplParts":
            return self._parts(worker, node)
        if node.op in _LOOPS or node.op.startswith("Epl") or effects.kind_of(node.op) == effects.CALL:
            return self._unknown("'%s' is not followed" % node.op, worker, name)
        values, writes = self._values(worker, name), self._written_before(worker, name)
        if writes:
            holder = Value(values[0].term, None)
            effects_of = [self.effect(worker, write).term for write in writes]
            return Value(self._terms.number(AFTER, "", (holder.term,) + tuple(sorted(effects_of))), None)
        return self._computed(node, values[: len(self._inputs(worker, name))])

    def effect(self, worker, name):
        """The Value of what an operation does to its variable; all that it takes has to be known."""
        values = self._values(worker, name)
        shares = {value.share for value in values} - {None}
        share = shares.pop() if len(shares) == 1 else "several" if shares else None
        node, terms = self.graphs[worker].nodes[name], tuple(value.term for value in values)
        if node.op in effects.SETS and self._terms.kind(terms[effects.VALUE_INPUT]) == AFTER:
            # It gets what another copy of the variable has become.
            taken = self._terms.formulas[terms[effects.VALUE_INPUT]][2]
            if len(taken) == 2 and taken[0] == terms[0]:
                return Value(taken[1], share)
        return Value(self._terms.number(node.op, "", terms), share)

    def _written_before(self, worker, name):
        """The writes to a variable that have to be done before it is read, if this node reads one."""
        graph = self.graphs[worker]
        node, inputs = graph.nodes[name], graph.inputs[name]
        if node.op not in tensors.READS or effects.kind_of(graph.nodes[inputs[0].node].op) != effects.VARIABLE:
            return []
        holder, found, seen = inputs[0].node, [], set()
        stack = [each.node for each in inputs if each.index < 0]
        while stack:
            waited = stack.pop()
            if waited in seen:
                continue
            seen.add(waited)
            node = graph.nodes[waited]
            if node.op == "NoOp":
                stack.extend(each.node for each in graph.inputs[waited])
            elif effects.is_write(node.op) and graph.inputs[waited][0].node == holder:
                found.append(waited)
        return found

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

    def _joined(self, worker, node):
        takers = self._takers(worker, node.name)
        if len(takers) != tags.get_int(node, "workers"):
            reason = "%d workers take part in it, where %d should" % (len(takers), tags.get_int(node, "workers"))
            return self._unknown(reason, worker, node.name)
        how = {"EplAllReduce": self._all_reduced, "EplReduceScatter": self._reduce_scattered}
        return how.get(node.op, self._all_gathered)(worker, node, takers)

    def _spans(self, value):
        """The spans of a Value, of which a tensor is one; None where its number of elements is not known."""
        kind, what, _ = self._terms.formulas[value.term]
        if kind == VECTOR:
            return what
        count = self._count(value.term)
        return None if count is None else ((value, 0, count),)

    def _count(self, term):
        shape = self._shape(term)
        is_known = shape is not None and all(dim is not None and dim >= 0 for dim in shape)
        return int(np.prod(shape, dtype=np.int64)) if is_known else None

    def _shape(self, term):
        kind, what, inputs = self._terms.formulas[term]
        if term in self._shapes:
            return self._shapes[term]
        if kind == SUM:
            return self._shape(what[0][0].term)
        if kind == AFTER:
            return self._shape(inputs[0])
        if kind == VECTOR:
            return (length(what),)
        origin = self._terms.origin(term)
        return None if origin is None else self._shape_of(origin)

    def _reduce_scattered(self, worker, node, takers):
        way = tags.get_str(node, "reduce_op", "sum")
        if way not in ("sum", "mean"):
            return self._unknown("its '%s' is not followed" % way, worker, node.name)
        sizes = self._integers.get(self._values(worker, node.name)[-1].term)
        all_spans = [self._concatenated(self._values(*each)[:-1]) for each in takers]
        if sizes is None or None in all_spans or len({length(spans) for spans in all_spans}) > 1:
            return self._unknown("it is not known where parts begin", worker, node.name)
        total = length(all_spans[0])
        sizes = sizes or [total // len(takers)] * len(takers)
        if sum(sizes) != total:
            return self._unknown("the parts are of %d elements, of %d" % (sum(sizes), total), worker, node.name)
        place = takers.index((worker, node.name))
        begin = sum(sizes[:place])
        mine = [vector(self._terms, cut(spans, begin, begin + sizes[place])) for spans in all_spans]
        return self._summed_vectors(mine, Fraction(1, len(takers)) if way == "mean" else 1)

    def _added_spans(self, spans, factor):
        """The span of a sum of equal parts of tensors."""
        if all(value is None or self._terms.kind(value.term) == "Const" for value, _, _ in spans):
            return None, spans[0][1], spans[0][2]  # what fills up
        if any(value is None for value, _, _ in spans):
            return None
        if len({(begin, end) for _, begin, end in spans}) > 1:  # of other places, or what fills up among them
            parts = [vector(self._terms, (span,)) for span in spans if self._terms.kind(span[0].term) != "Const"]
            return self._terms.added(parts, factor), 0, spans[0][2] - spans[0][1]
        return (self._summed([value for value, _, _ in spans], factor),) + spans[0][1:]

    def _all_gathered(self, worker, node, takers):
        values = [value for each in takers for value in self._values(*each)]
        found = self._gathered(values)
        if found is not None:
            return found
        spans = self._concatenated(values)
        if spans is None:
            return self._unknown("it is not known where parts begin", worker, node.name)
        return vector(self._terms, spans)

    def _gathered(self, values, factor=1):
        """The rows of a sparse gradient, as what one device has of all shares where they are that; None for others."""
        parts = gathered(self._terms, values, self._sparse)
        if parts is None:
            return None
        found = rows(self._terms, parts, factor)
        term, factors = parts[0][0].term, {times * factor for _, times in parts}
        if are_of_all(parts, self.shares) and len(factors) == 1 and self._sparse[term](factors.pop(), len(parts)):
            self.whole_rows.add(term)
            return Value(term, None)
        return found

    def _concatenated(self, values):
        found = []
        for value in values:
            spans = self._spans(value)
            if spans is None:
                return None
            found.extend(spans)
        return tuple(found)

    def _parts(self, worker, node):
        value = self._values(worker, node.name)[0]
        spans = self._spans(value)
        if spans is None or self._terms.kind(value.term) == UNKNOWN:
            is_unknown = self._terms.kind(value.term) == UNKNOWN
            return value if is_unknown else self._unknown("it is not known where parts begin", worker, node.name)
        begins = list(node.attr["starts"].list.i)
        shapes = [tuple(dim.size for dim in shape.dim) for shape in node.attr["shapes"].list.shape]

        def part(index):
            count = int(np.prod(shapes[index], dtype=np.int64))
            return self._shaped(cut(spans, begins[index], begins[index] + count), shapes[index])

        return part

    def _shaped(self, spans, shape):
        """The Value of a tensor of some elements: the one that consists of them, if its shape is that."""
        if len(spans) == 1 and spans[0][0] is not None and self._shape(spans[0][0].term) == shape:
            return vector(self._terms, spans, length(spans))
        return vector(self._terms, spans)

    def _all_reduced(self, worker, node, takers):
        way = tags.get_str(node, "reduce_op", "sum")
        if way not in ("sum", "mean") or "wire_fp16" in node.attr and node.attr["wire_fp16"].b:
            return self._unknown("its '%s' is not followed" % way, worker, node.name)
        copies, count = tags.get_int(node, "R", 1), tags.get_int(node, "N")
        scale = near(node.attr["scale"].f) if "scale" in node.attr else 1
        factor = scale / (copies * len(takers)) if way == "mean" else scale
        taken = [self._values(*each) for each in takers]

        def reduced(index):
            return self._summed([each for values in taken for each in values[index::count]], factor)

        return reduced

    def _summed(self, values, factor=1):
        """A sum, as what one device has of all shares where it is that."""
        if any(self._terms.kind(value.term) == ROWS for value in values):
            known = self._gathered(values, factor) if len(values) == 1 else None
            return known or self._terms.unknown("it adds up rows of a sparse gradient", (-1, str(values)))
        if any(self._terms.kind(value.term) == VECTOR for value in values):
            return self._summed_vectors(values, factor)
        found = self._terms.added(values, factor)
        items = self._terms.items(found)
        terms, factors = {value.term for value in items}, set(items.values())
        if len(terms) == 1 and len(factors) == 1 and self.shares and {v.share for v in items} == self.shares:
            if self._whole(terms.copy().pop(), factors.copy().pop(), len(self.shares)):
                return Value(terms.pop(), None)
        return found

    def _summed_vectors(self, values, factor):
        all_spans = [self._spans(value) for value in values]
        if None in all_spans or len({length(spans) for spans in all_spans}) > 1:
            return self._terms.unknown("it adds up what does not lie alike", (-1, str(values)))
        found = [self._added_spans(together, factor) for together in aligned(all_spans)]
        if None in found:
            return self._terms.unknown("it adds up what does not lie alike", (-1, str(values)))
        return vector(self._terms, found)

    def _computed(self, node, values):
        if values and (node.op in _SAME or node.op == "Cast" and node.attr["SrcT"].type == node.attr["DstT"].type):
            return values[0]
        shares = {value.share for value in values} - {None}
        sums = [value for value in values if self._terms.kind(value.term) in (SUM, VECTOR, ROWS)]
        if not self._is_source:
            if node.op in tensors.SUMS and (sums or len(shares) > 1 or self._is_doubled(node, values)):
                return self._summed(values)
            if node.op in _PRODUCTS and len(values) == 2:
                scaled = self._scaled(node, values, bool(sums))
                if scaled is not None:
                    return scaled
            if node.op == "ConcatV2" and self._integers.get(values[-1].term) == 0:
                found = self._gathered(values[:-1])
                if found is not None and (sums or len(shares) > 1 or self._is_new(node, values)):
                    return found
        share = shares.pop() if len(shares) == 1 else None
        if shares:
            return self._unknown("it takes what belongs to several shares of the batch", -1, node.name)
        return self._operation(node, values, share)

    def addends(self, term):
        """dict of the terms to their factors whose sum a term of one device is: sums, and products with constants."""
        found, stack = collections.Counter(), [(term, Fraction(1))]
        while stack:
            term, factor = stack.pop()
            kind, _, inputs = self._terms.formulas[term]
            numbers = [self._numbers.get(each) for each in inputs]
            if kind in tensors.SUMS:
                stack.extend((each, factor) for each in inputs)
            elif kind == "Mul" and [each is None for each in numbers].count(True) == 1:
                times = next(each for each in numbers if each is not None)
                stack.append((inputs[numbers.index(None)], factor * times))
            else:
                found[term] += factor
        return found

    def _is_doubled(self, node, values):
        """Whether it adds something to itself, where one device does not."""
        return len(set(values)) < len(values) and self._is_new(node, values)

    def _is_new(self, node, values):
        """Whether one device does not compute that."""
        term = self._terms.number(node.op, (_asked(node), 0), tuple(value.term for value in values))
        return self._terms.origin(term) is None

    def _operation(self, node, values, share):
        what, inputs = _asked(node), tuple(value.term for value in values)
        if node.op == "Const":
            self._note_constant(self._terms.number("Const", (what, 0)), node.attr["value"].tensor)
        if node.op == "Empty" and not self._is_source and self._integers.get(inputs[0]) is not None:
            return vector(self._terms, ((None, 0, int(np.prod(self._integers[inputs[0]], dtype=np.int64))),))
        if node.op == "Reshape" and not self._is_source and self._integers.get(inputs[1]) == [-1]:
            spans = self._spans(values[0])
            if spans is not None and self._terms.origin(self._terms.number("Reshape", (what, 0), inputs)) is None:
                return Value(self._terms.number(VECTOR, spans), share)

        def output(index):
            term = self._terms.number(node.op, (what, index), inputs)
            if not self._is_source and self._terms.origin(term) is None and term not in self._shapes:
                self._shapes[term] = self._shape_of_copy(node, index)
            return self._noted(Value(term, share), format_input(node.name, index))

        return output

    def _shape_of_copy(self, node, index):
        """The shape of what is computed otherwise than on one device, so that what lies beside it is known."""
        original = original_name(node.name)[0]
        is_copy = original in self._source.nodes and self._source.nodes[original].op == node.op
        return self._shape_of(format_input(original, index)) if is_copy else None

    def _note_constant(self, term, tensor):
        if term not in self._shapes:
            self._numbers[term] = _number(tensor)
            self._shapes[term] = tuple(dim.size for dim in tensor.tensor_shape.dim)
            found = constant_value(tensor) if tensor.dtype in INDEX_TYPES and len(self._shapes[term]) <= 1 else None
            self._integers[term] = None if found is None else found.tolist()

    def _scaled(self, node, values, has_sum):
        """A Value times a constant; None where it is no such product, or one that one device has too."""
        factors = [self._numbers.get(value.term) for value in values]
        if node.op == "Mul" and factors[0] is not None:
            values, factors = values[::-1], factors[::-1]
        if factors[1] is None or not (node.op == "Mul" or factors[1]):
            return None
        if not has_sum and not self._is_new(node, values):
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
            return near(float(numbers[0])) if len(numbers) and np.isfinite(numbers[0]) else None
    return None


def _asked(node, but=frozenset()):
    """What a node's attributes ask for, as bytes."""
    return tuple(
        (key, node.attr[key].SerializeToString(deterministic=True))
        for key in sorted(node.attr)
        if not key.startswith(tags.PREFIX) and key not in _ASIDE and key not in but
    )
