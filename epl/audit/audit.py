"""Whether each variable of a compiled program is updated as one device would: proven, wrong or not shown."""

import collections
import functools
from dataclasses import dataclass, replace
from fractions import Fraction

from epl.audit.compared_values import AFTER, SUM, UNKNOWN, UNORDERED, VECTOR, Terms, Value
from epl.audit.gathered_rows import ROWS
from epl.audit.walk import Walk, original_name
from epl.graph import tags
from epl.graph.index import format_input, node_of, parse_input
from epl.plan.facts.analysis import analyse
from epl.plan.sync.loss_terms import plan_losses
from epl.rules import effects

PROVEN, WRONG, NOT_SHOWN = "proven", "wrong", "not shown"
_AS_MEANS = frozenset(["mean", "same"])


@dataclass(frozen=True)
class Finding:
    """What is found of one variable.

    Attributes:
      variable: its name.
      verdict: PROVEN, WRONG or NOT_SHOWN.
      node: of the compiled graph, at which it is seen; "" where it is proven.
      worker: whose graph that is.
      reason: in words; "" where it is proven.
    """

    variable: str
    verdict: str
    node: str = ""
    worker: int = 0
    reason: str = ""


def audit(source, graphs, by_design=""):
    """Compares what compiled graphs do to variables with what one device does.

    Args:
      source: the captured Program, of one device.
      graphs: dict of each worker's index to its compiled Graph.
      by_design: why the configuration asks for other numbers than one device's; then nothing is called wrong.

    Returns:
      A Finding for each variable that training changes, in the order of the source.
    """
    found = _Audit(source, graphs).findings()
    reason = by_design or _divided(source)
    if reason:
        return [
            Finding(f.variable, NOT_SHOWN, f.node, f.worker, "%s (%s)" % (f.reason, reason))
            if f.verdict == WRONG
            else f
            for f in found
        ]
    return found


def _divided(source):
    """Why it is not known which devices have a share of the batch of their own; "" where each copy has."""
    several = [each.name for each in source.taskgraphs if each.kind == "split" or (each.device_count or 1) > 1]
    return "what is divided over devices, such as '%s', is not followed" % several[0] if several else ""


class _Audit(object):
    def __init__(self, source, graphs):
        self._program, self._graph, self._graphs = source, source.graph, graphs
        self._analysis = analyse(source)
        self._terms = Terms()
        self._one = Walk(self._terms, source.graph, self._analysis.varying, self._shape_of)
        self._gradients, self._sparse, self._partners = {}, {}, {}
        self._find_gradients()
        sparse = {term: functools.partial(self._are_whole, term) for term in self._partners}
        self._walk = Walk(
            self._terms, source.graph, self._analysis.varying, self._shape_of, graphs, self._is_whole, sparse
        )
        self._initial = {name for variable in source.variables.values() for name in variable.initializers}

    def _shape_of(self, tensor):
        spec = self._program.spec_of(tensor)
        return None if spec is None or spec.shape is None else tuple(spec.shape)

    def findings(self):
        expected = self._updates(self._one, {0: self._graph}).get(0, {})
        found = self._updates(self._walk, self._graphs)
        names = [name for name in self._program.variables if expected.get((name, 0))]
        trained = {variable for call in self._program.apply_calls for _, variable in call.gradients}
        all_found = [self._finding(name, expected[(name, 0)], found) for name in names]
        # Other state may change with each micro-batch.
        return [
            each if each.verdict != WRONG or each.variable in trained else replace(each, verdict=NOT_SHOWN)
            for each in all_found
        ]

    def _find_gradients(self):
        """Notes of the term of each gradient "mean" where that of one device is the mean of those of the shares, else
        why that is not known: of sparse ones of the values; and which values and indices belong together."""
        kinds = {}
        for loss in plan_losses(self._program, self._analysis):
            others = [term for term in loss.terms if term.kind not in _AS_MEANS]
            why = "the loss '%s' has a term that is no mean over the rows: '%s'"
            kinds[loss.tensor] = why % (loss.tensor, others[0].tensor) if others else "mean"
        for gradient, _ in self._program.computed:
            if gradient.values is None:
                continue
            seeds = self._seeds(node_of(gradient.values))
            told = {kinds.get(loss, "the loss '%s' is not known" % loss) for loss in seeds}
            term = self._one.value(0, parse_input(gradient.values)).term
            reason = "mean" if told == {"mean"} else " ".join(sorted(told - {"mean"}) or ["its loss is not known"])
            if gradient.indices is None:
                self._gradients[term] = reason
                continue
            self._sparse[term] = reason
            indices = self._one.value(0, parse_input(gradient.indices)).term
            self._partners.setdefault(term, set()).add(indices)
            self._partners.setdefault(indices, set()).add(term)

    def _seeds(self, name):
        nodes = self._graph.nodes
        starts = [each for each in self._graph.ancestors([name], data_only=True) if tags.SEED in nodes[each].attr]
        return {format_input(*parse_input(tags.get_str(nodes[each], tags.SEED))) for each in starts}

    def _is_whole(self, term, factor, shares):
        return self._gradients.get(term) == "mean" and factor * shares == 1

    def _are_whole(self, term, factor, shares):
        return factor == 1 if term not in self._sparse else self._sparse[term] == "mean" and factor * shares == 1

    def _updates(self, walk, graphs):
        """{worker: {(variable, number of its copy): [(Value, node)]}} of what training writes: no first values, nothing
        of a checkpoint, and not what a copy gets of another."""
        found = {}
        for worker, graph in graphs.items():
            for name in graph.find(effects.is_write):
                taken = [each for each in graph.inputs[name] if each.index >= 0]
                holders = [self._holder(graph, each) for each in taken]
                if holders[0] is None or self._is_first(name):
                    continue
                variable, copy, _ = original_name(holders[0])
                values = [walk.value(worker, each) for each in taken]
                if graph.nodes[name].op in effects.SETS and values[0] == values[effects.VALUE_INPUT]:
                    continue
                value = self._written(walk, worker, graph.nodes[name], holders)
                found.setdefault(worker, {}).setdefault((variable, copy), []).append((value, name))
        return found

    def _writers(self, worker, variable):
        """The operations of a worker that change a variable in training. A copy of the model may use a variable that is
        named for another one, if it is the only one that does."""
        graph = self._graphs[worker]
        takers = {name for name, _ in graph.consumers[variable]}
        return [name for name in takers if effects.is_write(graph.nodes[name].op) and not self._is_first(name)]

    def _is_first(self, name):
        node = self._graph.nodes.get(original_name(name)[0])
        return node is not None and (node.name in self._initial or tags.phase(node) == tags.SAVE)

    def _holder(self, graph, tensor):
        """The variable that an operation gets as such; None where it gets a tensor."""
        node = graph.nodes[tensor.node]
        return node.name if effects.kind_of(node.op) == effects.VARIABLE else None

    def _written(self, walk, worker, node, holders):
        copy = original_name(holders[0])[1]
        others = [each for each in holders if each is not None and original_name(each)[1] != copy]
        if any(len(self._writers(worker, each)) > 1 for each in others):
            return self._terms.unknown("it changes variables of several copies of the model", (-1, node.name))
        return walk.effect(worker, node.name)

    def _finding(self, name, expected, found):
        wanted = collections.Counter(value.term for value, _ in expected)
        copies, unseen = 0, None
        for worker, of_worker in found.items():
            for (variable, copy), writes in of_worker.items():
                if variable == name:
                    copies += 1
                    problem = self._problem(name, worker, wanted, expected, writes)
                    if problem is not None and (problem.verdict == WRONG or unseen is None):
                        unseen = problem
                    if problem is not None and problem.verdict == WRONG:
                        return problem
        held = self._copies(name)
        missing = [(worker, node) for worker, copy, node in held if (name, copy) not in found.get(worker, {})]
        if missing or held and not copies:
            worker, node = missing[0] if missing else (0, name)
            return Finding(name, WRONG, node, worker, "nothing updates this copy of the variable")
        if not held:
            return Finding(name, NOT_SHOWN, reason="no worker has it as one device does: its parts are not followed")
        return unseen or Finding(name, PROVEN)

    def _copies(self, name):
        """(worker, number of the copy, node) of all copies of a variable."""
        found = []
        for worker, graph in self._graphs.items():
            for node in graph.find(lambda op: effects.kind_of(op) == effects.VARIABLE):
                variable, copy, _ = original_name(node)
                if variable == name:
                    found.append((worker, copy, node))
        return found

    def _problem(self, name, worker, wanted, expected, writes):
        left = collections.Counter(wanted)
        for _, node in writes if len(expected) > 1 else ():
            if self._graphs[worker].nodes[node].op in effects.SETS and original_name(node)[0] not in self._graph.nodes:
                reason = "it is set to what %d updates have made of another copy" % len(expected)
                return Finding(name, NOT_SHOWN, node, worker, reason)
        for value, node in writes:
            varies = value.share is not None and len(self._walk.shares) > 1
            if left[value.term] and not varies:
                left[value.term] -= 1
            elif varies and value.term in wanted:
                reason = "what is written is of %s only, and not of all %d copies and micro-batches of the batch"
                told = _share_told(value.share)
                return Finding(name, WRONG, node, worker, reason % (told, len(self._walk.shares)))
            elif value.term in wanted:
                return Finding(name, WRONG, node, worker, "the same update is made %d times" % (wanted[value.term] + 1))
            else:
                nearest = self._nearest(value.term, [each.term for each, _ in expected])
                verdict, reason = self._difference(value.term, nearest)
                return Finding(name, verdict, node, worker, reason)
        if any(left.values()):
            return Finding(name, WRONG, writes[0][1], worker, "an update of one device's is missing")
        return None

    def _nearest(self, term, others):
        kind = self._terms.kind(term)
        return next((each for each in others if self._terms.kind(each) == kind), others[0])

    def _difference(self, term, wanted):
        """(verdict, reason) of a term that is not the wanted one, where they part first; what is wrong comes before
        what is not shown."""
        stack, seen, unseen = [(term, wanted)], set(), None
        while stack:
            pair = stack.pop()
            if pair in seen:
                continue
            seen.add(pair)
            found, pairs = self._step(*pair)
            if found is not None and found[0] == WRONG:
                return found
            unseen = unseen or found
            stack.extend(reversed(pairs))
        return unseen or (NOT_SHOWN, "it is not followed")

    def _step(self, term, wanted):
        """((verdict, reason) of two terms, or None; the pairs of their inputs that differ)"""
        (kind, what, inputs), (kind_wanted, what_wanted, inputs_wanted) = (
            self._terms.formulas[each] for each in (term, wanted)
        )
        tensor, origin = self._terms.origin(wanted), self._terms.origin(term)
        expected = "'%s'" % tensor if tensor else "one device's '%s'" % kind_wanted
        if kind == SUM:
            pairs = self._addends(what, wanted)
            return (None, pairs) if pairs else (self._of_sum(what, wanted, expected), [])
        if kind == VECTOR:
            return self._of_vector(what, wanted, expected), []
        if kind == ROWS:
            return self._of_rows(what, wanted, expected), []
        if kind in effects.SETS and self._terms.kind(inputs[effects.VALUE_INPUT]) in (AFTER, VECTOR):
            taken = inputs[effects.VALUE_INPUT]
            spans = self._terms.formulas[taken][1] or ((Value(taken, None), 0, 0),)
            return self._of_vector(spans, wanted, "the update of '%s'" % self._terms.origin(inputs[0])), []
        if kind == UNKNOWN:
            where = "'%s'%s" % (what[1][1], " of worker %d" % what[1][0] if what[1][0] >= 0 else "")
            return (NOT_SHOWN, "where %s is expected stands %s: %s" % (expected, where, what[0])), []
        alike = kind == kind_wanted or (term in self._gradients and wanted in self._gradients)
        if origin is not None and tensor is not None and alike:
            return (WRONG, "where %s is expected stands '%s'" % (expected, origin)), []
        if kind != kind_wanted or len(inputs) != len(inputs_wanted):
            told = "where %s is expected stands a '%s' that one device does not have"
            return (NOT_SHOWN, told % (expected, kind)), []
        if what != what_wanted:
            return (NOT_SHOWN, "the attributes of %s differ" % expected), []
        if kind in UNORDERED:
            inputs, inputs_wanted = self._only(inputs, inputs_wanted), self._only(inputs_wanted, inputs)
            if len(inputs) > 1 and self._is_unclear(inputs):
                told = "of what %s takes %d tensors are not those of one device, and not all of them are followed"
                return (NOT_SHOWN, told % (expected, len(inputs))), []
        return None, [(one, other) for one, other in zip(inputs, inputs_wanted) if one != other]

    def _is_unclear(self, terms):
        """Whether it is not known which of some terms stands for which of one device's."""
        known = {self._terms.origin(each) is not None for each in terms}
        return len(known) > 1 or any(self._terms.kind(each) == UNKNOWN for each in self._terms.below(terms))

    def _of_rows(self, parts, wanted, expected):
        """Of rows of a sparse gradient that are not just those that are wanted."""
        shares, term = self._walk.shares, parts[0][0].term
        if term != wanted:
            return self._difference(term, wanted)
        told = self._sparse.get(term, "mean")
        if told != "mean":
            return NOT_SHOWN, "%s is gathered from all copies, and %s" % (expected, told)
        total, found = collections.Counter(), [value.share for value, _ in parts]
        for value, factor in parts:
            total[value.share] += factor
        if set(found) == {None}:
            return NOT_SHOWN, "%s is gathered %d times, and does not depend on data" % (expected, len(parts))
        missing = sorted(shares - set(found))
        if missing:
            text = "%s is gathered from %d of %d copies and micro-batches: that of %s is missing"
            return WRONG, text % (expected, len(total), len(shares), _share_told(missing[0]))
        wrong = sorted(share for share in total if total[share] * len(shares) != 1) if term in self._sparse else []
        if wrong:
            text = "%s of %s counts %s times what it does in the mean over all copies and micro-batches"
            return WRONG, text % (expected, _share_told(wrong[0]), total[wrong[0]] * len(shares))
        if len(found) == len(shares) and self._partners[term] <= self._walk.whole_rows:
            return WRONG, "%s is in another order than what it belongs to, '%s'" % (
                expected,
                self._terms.origin(min(self._partners[term])),
            )
        return NOT_SHOWN, "%s is gathered in an order of its own" % expected

    def _of_vector(self, spans, wanted, expected):
        """Of elements that are not just those that are wanted."""
        leaves = [self._leaves(value) for value, _, _ in spans]
        if None in leaves or any(self._terms.origin(leaf.term) is None for found in leaves for leaf in found):
            return NOT_SHOWN, "where %s is expected stand elements that are not followed" % expected
        terms = [sorted({leaf.term for leaf in found}) for found in leaves]
        others = {term for found in terms for term in found} - {wanted}
        if not others or len(terms) > 1 and all(found == terms[0] for found in terms):
            return NOT_SHOWN, "where %s is expected stand those of several copies, one after the other" % expected
        told = " and ".join("'%s'" % self._terms.origin(each) for each in sorted(others))
        return WRONG, "where %s is expected stand elements of %s" % (expected, told)

    def _leaves(self, value):
        """The tensors of one device of which a Value is a sum, elements or what comes after an update, without what
        fills up; None where nothing is known."""
        kind, what, inputs = self._terms.formulas[value.term] if value is not None else (None, (), ())
        if kind == AFTER:
            return [Value(inputs[0], None)]
        if kind not in (SUM, VECTOR):
            return [] if kind == "Const" else None if value is None else [value]
        found = [self._leaves(each[0]) for each in what]
        return None if None in found else [leaf for leaves in found for leaf in leaves]

    def _addends(self, items, wanted):
        """The pairs of what is added up in the place of what one device adds up, where each has one other addend; None
        where it is not known which stands for which."""
        expected = self._one.addends(wanted)
        if any(value.share is not None for value, _ in items) or wanted in expected:
            return None
        found = {value.term: factor for value, factor in items}
        pairs = []
        for factor, kind in sorted({(factor, self._terms.kind(term)) for term, factor in found.items()}):
            one, other = (
                [term for term, times in addends.items() if (times, self._terms.kind(term)) == (factor, kind)]
                for addends in (found, expected)
            )
            differ = sorted(set(one) - set(other)), sorted(set(other) - set(one))
            if [len(each) for each in differ] not in ([0, 0], [1, 1]):
                return None
            pairs.extend(zip(*differ))
        return pairs if len(found) == len(expected) else None

    def _only(self, terms, others):
        """What of some terms is not among others, those of a kind together."""
        left = collections.Counter(terms) - collections.Counter(others)
        return sorted(left.elements(), key=lambda each: (self._terms.kind(each), each))

    def _of_sum(self, items, wanted, expected):
        shares, terms = self._walk.shares, {value.term for value, _ in items}
        others = sorted(terms - {wanted})
        if len(others) > 1 and self._is_unclear(others):
            return NOT_SHOWN, "where %s is expected stands a sum, and not all of it is followed" % expected
        if others:
            return self._difference(others[0], wanted)
        factors = {value.share: factor for value, factor in items}
        if wanted not in self._gradients:
            return NOT_SHOWN, "%s is merged from %d copies and micro-batches, and is no gradient" % (
                expected,
                len(items),
            )
        if None in factors:
            times = " and ".join("%s times" % factor for factor in sorted(set(factors.values())))
            return WRONG, "%s counts %s" % (expected, times)
        missing = sorted(shares - set(factors))
        if missing:
            text = "%s is added up of %d of %d copies and micro-batches: that of %s is missing"
            return WRONG, text % (expected, len(factors), len(shares), _share_told(missing[0]))
        if len(set(factors.values())) > 1:
            most = max(factors, key=lambda share: (factors[share], str(share)))
            return WRONG, "%s of %s counts %s times that of others" % (
                expected,
                _share_told(most),
                factors[most] / min(factors.values()),
            )
        factor = factors.popitem()[1] * len(shares)
        told = self._gradients[wanted]
        if told == "mean":
            return WRONG, "%s is %s times the mean over all copies and micro-batches" % (expected, factor)
        if factor not in (Fraction(1), Fraction(len(shares))):
            return WRONG, "%s is %s times the mean over all copies and micro-batches" % (expected, factor)
        return NOT_SHOWN, "%s is merged from all copies, and %s" % (expected, told)


def _share_told(share):
    if not isinstance(share, tuple):
        return "several copies"
    return "worker %d's copy %d, micro-batch %d" % share
