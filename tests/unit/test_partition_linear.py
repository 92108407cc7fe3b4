"""What rules say of sums against the operations themselves.

An operation is linear in some inputs if it gives, of sums that they are, the sum of what it gives of their terms. What
a rule calls linear is so in every case, and what it does not call linear is not so in some case: whichever entry of the
table is wrong, this finds it.
"""

import collections

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.capture.record import make_program
from epl.partition import table
from epl.partition.facts import Facts
from epl.rules import effects
from tests.helpers.planning import capture
from tests.unit.test_partition_rules import CHOICES, build
from tests.unit.test_partition_rules import RULES as MAKERS

pytestmark = pytest.mark.either_line

_CASES = 12  # of each maker, and three of each operation that it chooses from
# What the other makers have no case of.
_MORE = {
    "one_hot_of_values": lambda case: tf.one_hot(
        case.whole_numbers([3], 4), 4, on_value=case.x([]), off_value=case.x([])
    ),
}
# Linear as well, but sums are not passed on through them: there is little to win.
_UNSAID = {
    **{(op, 0): "a quotient, as RealDiv's" for op in "Div DivNoNan Xdivy".split()},
    **{(op, 0): "in the gradient that it takes" for op in table.RULES if op.startswith("FusedBatchNormGrad")},
    **{(op, 0): "only the shape matters" for op in "Rank Shape ShapeN Size ZerosLike".split()},
    ("ShapeN", 1): "only the shape matters",
    ("ShapeN", 0, 1): "only the shape matters",
    ("CheckNumerics", 0): "it would look at terms and not at sums",
    ("Fill", 1): "of one number",
    ("OneHot", 2, 3): "of two numbers",
    ("PadV2", 0, 2): "with what it pads, a constant",
    ("Xlogy", 0): "a factor, as Mul's",
}
Tried = collections.namedtuple("Tried", "node notation linear")  # `linear`: {group of inputs: whether it is so}


def values_of(graph, names):
    with tf.Session(graph=graph) as sess:
        sess.run(tf.variables_initializer(graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)))
        return dict(zip(names, sess.run(names)))


def terms_of(draw, value):
    """Two terms of a sum; of numbers with a point either may be below 0, and of others the first is above it."""
    if value.dtype.kind == "f":
        first = np.asarray(value * draw.uniform(-1, 2, value.shape) + draw.uniform(-1, 1, value.shape), value.dtype)
    else:
        first = np.asarray(value + 1, value.dtype)
    return first, np.asarray(value - first, value.dtype)


def groups_of(node, notation, inputs):
    """The groups of inputs to try: what the rule calls linear, each number with a point alone, all of them together."""
    numbers = tuple(place for place, value in enumerate(inputs) if value.dtype.kind == "f" and np.isfinite(value).all())
    whole_numbers = tuple(place for place, value in enumerate(inputs) if value.dtype.kind in "iu")
    singles = numbers + (whole_numbers if node.op in table.ELEMENT_BY_ELEMENT else ())
    said = {group for group in notation.linear if set(group) <= set(numbers + whole_numbers)}
    return sorted(said | {(place,) for place in singles} | ({numbers} - {()}))


def once(seen, node, notation, limit=10):
    """Whether a node is to be tried: the first ones of each type and rule."""
    seen[node.op, notation] += 1
    return seen[node.op, notation] <= limit


@pytest.fixture(scope="module")
def tried():
    """{operation type: [Tried]} of the cases of all makers."""
    with capture(1) as graph:
        build(dict(MAKERS, **_MORE), 0, lambda name: max(3 * CHOICES.get(name, 4), _CASES))
        program = make_program(graph)
    facts, seen, nodes = Facts(program.graph, program.spec_of), collections.Counter(), []
    for name, node in sorted(program.graph.nodes.items(), key=lambda pair: not pair[0].startswith(tuple(_MORE))):
        inputs = facts.inputs(name)
        pure = effects.kind_of(node.op) in (None, effects.PURE) and True
        notation = table.notation_of(node, inputs, facts) if pure and inputs and node.op in table.RULES else None
        if notation is not None and once(seen, node, notation):
            nodes.append((node, notation, ["%s:%d" % each for each in inputs]))
    names = sorted({name for _, _, inputs in nodes for name in inputs})
    values = values_of(graph, names)
    return computed(nodes, values)


def computed(nodes, values):
    """{operation type: [Tried]}: each node again for each group, of the terms and of their sums."""
    draw, graph_def, wanted = np.random.RandomState(0), tf.GraphDef(), []

    def add(node, name, inputs):
        made = graph_def.node.add()
        made.CopyFrom(node)
        made.name = name
        del made.input[:]
        for key in [key for key in made.attr if key.startswith("_")]:
            del made.attr[key]
        for place, value in enumerate(inputs):
            constant = graph_def.node.add(name="%s/input_%d" % (name, place), op="Const")
            constant.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
            made.input.append(constant.name)

    for number, (node, notation, names) in enumerate(nodes):
        inputs = [values[name] for name in names]
        for group in groups_of(node, notation, inputs):
            terms = {place: terms_of(draw, inputs[place]) for place in group}
            name = "%d_%s" % (number, "_".join(map(str, group)))
            for which in (0, 1):
                mine = [terms[place][which] if place in terms else value for place, value in enumerate(inputs)]
                add(node, "%s_%d" % (name, which), mine)
            sums = [
                np.asarray(sum(terms[place]), value.dtype) if place in terms else value
                for place, value in enumerate(inputs)
            ]
            add(node, name + "_sum", sums)
            wanted.append((name, number, group))
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        outputs = {
            name: [graph.get_operation_by_name("%s_%s" % (name, end)).outputs for end in ("0", "1", "sum")]
            for name, _, _ in wanted
        }
        with tf.Session() as sess:
            got = sess.run(outputs)
    found, linear = collections.defaultdict(list), collections.defaultdict(dict)
    for name, number, group in wanted:
        linear[number][group] = is_sum(nodes[number][1], *got[name])
    for number, (node, notation, _) in enumerate(nodes):
        found[node.op].append(Tried(node, notation, linear[number]))
    return found


def is_sum(notation, ones, others, sums):
    """Whether outputs are what is left of sums: the sum of the outputs, or the same where they stay whole."""
    kept = notation.text.split("->")[1].split(",")
    for labels, one, other, both in zip(kept + kept[-1:] * len(sums), ones, others, sums):
        if both.dtype.kind not in "fiu":
            return False
        with np.errstate(all="ignore"):
            expected = one if labels == "*" else one + other
            size = np.max(np.abs([one, other]), initial=1.0)  # of what may be left of a difference
            if not np.allclose(expected, both, rtol=1e-4, atol=1e-5 * size):
                return False
    return True


def wrong_entries(cases):
    """Entries of `linear` that are not so in some case."""
    return sorted({group for each in cases for group in each.notation.linear if not each.linear.get(group, True)})


# What changes variables, or hands them on, takes no sums of which each device has a part.
_OF_VARIABLES = {op for op in table.RULES if effects.kind_of(op) in (effects.WRITE, effects.READ)}
_OF_VARIABLES |= {"IsVariableInitialized", "Merge", "RefMerge", "RefSwitch", table.ROWS_OF_COPY}
OPS = sorted(op for op in set(table.RULES) - _OF_VARIABLES if hasattr(tf.raw_ops, op))


@pytest.mark.parametrize("op", OPS)
def test_what_is_called_linear_is(tried, op):
    assert tried[op] and not wrong_entries(tried[op])


@pytest.mark.parametrize("op", OPS)
def test_what_is_not_called_linear_is_not(tried, op):
    """Each entry that might be added by mistake is refuted by a case."""
    unsaid = {group for each in tried[op] for group in each.linear if group not in each.notation.linear}
    cases = {group: [each for each in tried[op] if group not in each.notation.linear] for group in unsaid}
    refuted = {group for group, some in cases.items() if not all(each.linear.get(group, True) for each in some)}
    assert unsaid - refuted == {entry[1:] for entry in _UNSAID if entry[0] == op}


@pytest.mark.parametrize("op", sorted(_OF_VARIABLES - {"Merge", "RefMerge", "ResourceGather", table.ROWS_OF_COPY}))
def test_what_changes_variables_takes_no_sums(op):
    assert table.RULES[op].linear == ()
