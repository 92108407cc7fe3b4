"""The pass that swaps the operands of einsums."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given
from hypothesis import strategies as st

import epl
from epl.capture.record import make_program
from epl.passes.model.order_products import order_products
from epl.plan.layout.products import plan_products, swapped
from tests.helpers.planning import capture

pytestmark = pytest.mark.either_line


@st.composite
def equations(draw):
    """Of two operands: labels that both have and the output has or has not, and labels of one of them."""
    labels = draw(st.permutations("abcdefg"))
    kinds = [draw(st.sampled_from(["both", "summed", "left", "right"])) for _ in labels]

    def term(*wanted):
        return "".join(draw(st.permutations([label for label, kind in zip(labels, kinds) if kind in wanted])))

    return "%s,%s->%s" % (
        term("both", "summed", "left"),
        term("both", "summed", "right"),
        term("both", "left", "right"),
    )


@given(equations())
def test_swapped_einsums_give_the_same(equation):
    other = swapped(equation)
    left, right = equation.split("->")[0].split(",")
    if other is None:
        return
    x, y = [np.arange(2.0 ** len(term)).reshape([2] * len(term)) for term in (left, right)]
    np.testing.assert_array_equal(np.einsum(other, y, x), np.einsum(equation, x, y))
    assert swapped(other) is None


@pytest.mark.parametrize(
    "equation, expected",
    [
        ("egch,egcm->emh", "egcm,egch->emh"),
        ("blf, blw -> wf", "blw,blf->wf"),
        ("egch,egcm->ehm", None),  # what is the left one's comes first
        ("blw,whd->bhld", None),  # turned either way
        ("ab,b->a", None),
        ("...a,ab->b...", None),
        ("ab->ba", None),
    ],
)
def test_only_where_it_spares_something(equation, expected):
    assert swapped(equation) == expected


def _equations(split):
    with capture() as graph:
        x = tf.placeholder(tf.float32, [4, 3, 2], "x")
        with epl.split(2) if split else epl.replicate(1):
            w = tf.get_variable("w", [2, 6])
            loss = tf.reduce_mean(tf.square(tf.einsum("blw,wf->blf", x, w)))
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    program = make_program(graph)
    equations = plan_products(program, None)
    found = order_products(program, equations).graph if equations else program.graph
    return [
        (found.nodes[n].attr["equation"].s, list(found.nodes[n].input)) for n in program.graph.find("Einsum".__eq__)
    ]


def test_gradients_of_what_is_divided_are_swapped():
    plain, divided = _equations(False), _equations(True)
    if not plain:
        pytest.skip("this TensorFlow makes other operations of tf.einsum")
    assert [equation for equation, _ in plain] == [b"blw,wf->blf", b"blf,wf->blw", b"blf,blw->wf"]
    assert [equation for equation, _ in divided] == [b"blw,wf->blf", b"blf,wf->blw", b"blw,blf->wf"]
    assert divided[2][1] == plain[2][1][::-1]
