"""Each rule by itself, forward alone, of sums of which each shard has another part: what a rule passes on as partial
although the operation is not linear in it comes out wrong.

Gradients want most inputs whole, so that cases with gradients (test_partition_rules.py) see little of this.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.partition import table
from epl.partition.rule import Notation
from epl.program.placement import WHOLE, partial
from tests.helpers import shards
from tests.helpers.checks import pairs
from tests.helpers.planning import capture
from tests.unit.test_partition_rules import CHOICES, COUNTS, Case
from tests.unit.test_partition_rules import RULES as MAKERS

pytestmark = pytest.mark.either_line

_TERMS = 5  # more than shards, so that each of them adds up some
# Which of its inputs, by their places, are sums in the first case of an operation, in its second, and so on.
_WHICH = (lambda place: True, lambda place: place == 0, lambda place: place == 1, lambda place: place > 0)


class OfSums(Case):
    """Some of its inputs are sums of several terms, of which some are negative, the others are whole."""

    def __init__(self, draw, number, turn):
        super(OfSums, self).__init__(draw, number)
        self._is_sum = _WHICH[turn]
        self.sums = []

    def x(self, shape, positive=False, kinds=()):
        terms = self.draw.uniform(-0.8, 0.8, [_TERMS] + list(shape))
        if positive:
            terms[0] += self.draw.uniform(0.5, 2.0, shape) - terms.sum(axis=0)
        made, place = tf.reduce_sum(tf.constant(terms, tf.float32), 0), partial()
        if self._is_sum(len(self.inputs)):
            self.sums.append(made.name)
        else:
            made, place = tf.identity(made), WHOLE
        for count in COUNTS:
            self.marks[count][made.op.name] = place
        self.inputs.append(made)
        return made


def operations_of(name):
    """How many operations a maker has at the most, of which each has a case in its turn."""
    return max(CHOICES.get(name, 4), 4)


def check(makers, seed):
    """Compares cases of each maker in parts, for each number of shards, with the whole.

    Returns:
      How many of the outputs were left partial, by the number of shards.
    """
    draw, made, outputs = np.random.RandomState(seed), [], []
    with capture(1) as graph:
        for name in sorted(makers):
            for number in range(len(_WHICH) * operations_of(name)):
                case = OfSums(draw, number, number // operations_of(name))
                with tf.name_scope("%s_%d" % (name, number)):
                    out = makers[name](case)
                    outputs.append(("%s %d" % (name, number), out.name))
                    if out.dtype.is_floating:
                        # One number is left: it costs least to add up what the shards have of it.
                        weights = tf.constant(draw.uniform(0.5, 1.5, out.shape.as_list()), out.dtype)
                        outputs.append(("sum of %s %d" % (name, number), tf.reduce_sum(out * weights).name))
                made.append(case)
    names, sums = [name for _, name in outputs], [name for case in made for name in case.sums]
    left = {}
    for count in COUNTS:
        marks = {name: place for case in made for name, place in case.marks[count].items()}
        done = shards.partitioned(graph, count, tensors=marks)
        assert all(done.placements[name.split(":")[0]] == partial() for name in sums)
        left[count] = sum(str(done.placements.get(name.split(":")[0])) == "partial(sum)" for name in names)
        with shards.Shards(graph, done, wanted=names) as both:
            for (what, _), got, want in pairs(outputs, both.run(names), both.run_whole(names)):
                message = "%s, seed %d, %d shards" % (what, seed, count)
                np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=message)
    return left


@pytest.mark.timeout(900)  # it takes long beside other work
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_sums_of_which_each_shard_has_a_part(seed):
    left = check(MAKERS, seed)
    assert min(left.values()) > 100  # some operations take them as they are


def said_to_be_linear(monkeypatch, op, position):
    """Says of an operation that it is linear in one input more."""

    def more(notation):
        return notation and dataclasses.replace(notation, linear=notation.linear + ((position,),))

    rule = table.RULES[op]
    wrong = more(rule) if isinstance(rule, Notation) else lambda *args: more(rule(*args))
    monkeypatch.setitem(table.RULES, op, wrong)
    monkeypatch.setattr(table, "_FOUND", {})


@pytest.mark.parametrize(
    "op, position, maker",
    [
        ("Max", 0, "max"),
        ("Maximum", 0, "binary"),
        ("Relu", 0, "unary"),
        ("RealDiv", 1, "binary"),
        ("L2Loss", 0, "l2_loss"),
    ],
)
def test_a_rule_that_is_linear_by_mistake_is_found(monkeypatch, op, position, maker):
    said_to_be_linear(monkeypatch, op, position)
    with pytest.raises(AssertionError, match="%s [0-9]+, seed 0, 2 shards" % maker):
        check({maker: MAKERS[maker]}, 0)
