"""What `epl.verify` makes of what was recorded; two checkpoints."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl.verify
from epl import tf_compat
from epl.errors import VerifyError
from epl.verify import guesses
from epl.verify.command import main
from epl.verify.comparison import BY_DESIGN, DIFFERENT, EQUAL, ROUNDING, Comparison, Difference, compare_steps
from epl.verify.first_operation import FirstOperation, first_of_way
from epl.verify.joined import NotWhole, RecordedStep, part, read_steps, whole_batch
from epl.verify.report import first_difference, lines, to_dict
from epl.verify.verified_page import page

EPS = float(np.finfo(np.float32).eps)


def recorded(given=None, is_open=(), updates=None, after=None, **layout):
    return RecordedStep((), (), given or {}, frozenset(is_open), {}, updates or {}, {}, after or {}, (), layout)


def test_parts_of_a_batch_are_joined_in_the_order_of_replicas():
    x = {(1, 0): np.full((1, 2), 3.0), (0, 1): np.full((2, 2), 2.0), (0, 0): np.full((1, 2), 1.0)}
    rate = {place: np.float32(0.1) for place in x}
    step = recorded({"x": x, "rate": rate}, {"x"})
    whole = whole_batch(step)
    assert whole["x"][:, 0].tolist() == [1, 2, 2, 3] and whole["rate"] == np.float32(0.1)
    assert part(step, (0, 1))["x"].tolist() == [[2, 2], [2, 2]]


def test_parts_of_fixed_size_are_no_whole():
    step = recorded({"x": {(0, 0): np.zeros(2), (1, 0): np.ones(2)}})
    with pytest.raises(NotWhole, match="each copy of the model has its own 'x'"):
        whole_batch(step)


class Device(object):
    """In the place of one device: what it gives in its runs, by turns."""

    in_parts = None

    def __init__(self, exact, *moved):
        self._exact, self._moved = exact, moved

    def run(self, change=None, change_gradients=None):
        if change is None:
            return [self._exact.pop(0) if isinstance(self._exact, list) else self._exact]
        return [self._moved[-1 if change_gradients else 0]]


def variable(value):
    return {("variable", "v"): np.asarray(value, np.float32)}


@pytest.mark.parametrize("off, verdict", [(0, EQUAL), (8 * EPS, ROUNDING), (100 * EPS, DIFFERENT), (np.nan, DIFFERENT)])
def test_differences_are_told_in_units_of_rounding(off, verdict):
    device = Device(variable([1, 0]), variable([1 + EPS, 0]))
    step = recorded(after={"v": {(0, 0): np.float32([1, 0]), (1, 0): np.float32([1 + off, 0])}})
    comparison = compare_steps(device, [step])
    (found,) = comparison.steps[0]
    assert found.verdict == comparison.verdict == verdict
    if verdict == DIFFERENT:
        assert found.worker == 1 and found.worst[0][0] == [0] and first_difference(comparison) == (0, found)
    if verdict == ROUNDING:
        assert found.ratio == pytest.approx(4)  # one rounding that was seen, and one of the largest element


@pytest.mark.parametrize("off, verdict", [(8 * EPS, ROUNDING), (1e-2, BY_DESIGN), (0.5, DIFFERENT)])
def test_what_a_strategy_rounds_by_design_is_expected(off, verdict):
    device = Device(variable([1, 0]), variable([1 + EPS, 0]), variable([1 + 1e-3, 0]))
    step = recorded(after={"v": {(0, 0): np.float32([1 + off, 0])}}, rounded={"gradients": "float16"})
    comparison = compare_steps(device, [step])
    assert comparison.verdict == verdict
    assert comparison.steps[0][0].expected == pytest.approx(1e-3, rel=1e-2)


LOCAL = [np.float32([1, 5, 2, 6]), np.float32([4, -1, 3, 8])]
MEAN, TWICE = sum(LOCAL) / 2, LOCAL[0] * 2


@pytest.mark.parametrize(
    "way, named",
    [
        (
            [("reduced", "EplAllReduce", MEAN), ("doubled", "AddV2", 2 * MEAN), ("shape", "Reshape", 2 * MEAN)],
            "doubled",
        ),
        ([("sum", "AddN", TWICE), ("reduced", "EplAllReduce", TWICE / 2)], "sum"),
        ([("reduced", "EplAllReduce", 2 * MEAN), ("shape", "Reshape", 2 * MEAN)], "reduced"),
        ([("reduced", "EplAllReduce", np.float32([7, 7, 7, 7]))], "update"),
        ([("one", "Identity", LOCAL[1])], "update"),
        ([("reduced", "EplAllReduce", MEAN)], "update"),
        ([], "update"),
    ],
)
def test_the_operation_that_joins_gradients_wrongly_is_found(way, named):
    assert first_of_way("update", way, LOCAL)[0] == named


@pytest.mark.parametrize(
    "value, told",
    [
        (0 * MEAN, "no gradient comes to the update"),
        (2 * MEAN, "the sum over 2 copies and micro-batches where their mean belongs"),
        (MEAN / 2, "0.5 times what it should be"),
        (LOCAL[1], "not reduced: it is that of replica 1, micro-batch 0 alone"),
        (LOCAL[1] / 2, "of all copies replica 1, micro-batch 0 alone is added up"),
        (MEAN + LOCAL[0] / 2, "replica 0, micro-batch 0 counts twice"),
        (np.float32([9, 8, 7, 6]), "it is the gradient of w"),
        (1.7 * MEAN, "1.7 times what it should be"),
        (np.float32([-2, 1, 0, 0]), ""),
    ],
)
def test_guesses_about_gradients(value, told):
    key = "v", "update", 0
    step = recorded(updates={key: {(0, 0): value}, ("w", "other", 0): {(0, 0): np.float32([9, 8, 7, 6])}})
    guess = guesses.of_joining(
        step, Difference("gradient", "v", 1.0, EPS, key=("gradient", key)), dict(zip([(0, 0), (1, 0)], LOCAL))
    )
    assert told in guess and bool(told) == bool(guess)


class Updated(object):
    """In the place of one device: it subtracts 1."""

    def run(self):
        return [{("variable", "v"): np.float32([1, 2])}]


@pytest.mark.parametrize(
    "after, told",
    [
        ([2, 3], "it is not updated"),
        ([0, 1], "it is updated twice"),
        ([8, 9], "it has the value of w"),
        ([-1, 0], "it is 3 times what it should be"),
    ],
)
def test_guesses_about_updates(after, told):
    step = recorded(after={"v": {(0, 1): np.float32(after)}, "w": {(0, 1): np.float32([8, 9])}})
    step.before["v"] = {(0, 0): np.float32([2, 3])}
    assert (
        guesses.of_update(Updated(), step, Difference("variable", "v", 1, EPS, copy=1, key=("variable", "v"))) == told
    )


def test_lines_of_the_program_are_those_of_its_own_files():
    with tf.Graph().as_default():
        found = tf_compat.program_lines(tf.reduce_mean(tf.constant([1.0])).op)
    here = __file__.replace(".pyc", ".py")
    assert found[0].startswith(here + ":") and found[0].endswith(
        "in " + "test_lines_of_the_program_are_those_of_its_own_files"
    )
    assert not any("tensorflow" in line.split(":")[0].split("/")[-2:] for line in found)


def test_the_first_operation_is_told_in_the_table_the_page_and_json():
    apart = Difference("gradient", "gradient of v", 1.0, EPS, (([0], 1.0, 2.0),))
    made = ("train.py:7, in model",), ("aggregate_gradients",), (("'all_reduce'", "EplAllReduce"),)
    first = FirstOperation(1, "joining of gradients", "grad/<v>", "MatMul", *made, "worker 0, copy 1", apart, "a guess")
    comparison = Comparison([[], [apart]], ["variable r"], ["so it is"], first)
    text = "\n".join(lines(comparison))
    assert (
        "the first operation that differs: 'grad/<v>' (MatMul), joining of gradients of step 1, worker 0, copy 1"
        in text
    )
    assert "made at train.py:7, in model" in text and "perhaps a guess" in text and "'all_reduce': EplAllReduce" in text
    shown = page(comparison, "train.py")
    for word in ("train.py against one device", "grad/&lt;v&gt;", "a guess", "so it is", "variable r", "gradient of v"):
        assert word in shown
    assert to_dict(comparison)["first"]["operation"] == "grad/<v>"


def test_what_two_runs_on_one_device_differ_in_is_named_and_left_out():
    device = Device([variable([1]), variable([2])], variable([1]))
    comparison = compare_steps(device, [recorded(after={"v": {(0, 0): np.float32([7])}})])
    assert comparison.races == ["variable v"] and comparison.steps == [[]] and comparison.verdict == EQUAL
    assert any("differs between two runs on one device: variable v" in line for line in lines(comparison))


def test_sparse_gradients_are_compared_row_by_row():
    """Rows come in another order, and one of them in two parts."""
    values, indices = ("gradient", ("t", "update", 1)), ("gradient", ("t", "update", 2))
    one = {values: np.float32([[1], [2]]), indices: np.int32([5, 3])}
    job = {values[1]: {(0, 0): np.float32([[2], [0.25], [0.75]])}, indices[1]: {(0, 0): np.int32([3, 5, 5])}}
    comparison = compare_steps(Device(one, one), [recorded(updates=job)])
    assert comparison.verdict == EQUAL and len(comparison.steps[0]) == 1


def test_the_table_has_a_row_for_each_step():
    apart = Difference("gradient", "gradient of v", 1.0, EPS, (([0], 1.0, 2.0),))
    text = list(lines(Comparison([[], [apart]], [], ["so it is"])))
    assert text[1].split() == ["0", "-", "-", "-", "equal"] and text[2].split()[-1] == "different"
    assert "so it is" in text and "step 1 is the first that differs" in "\n".join(text)
    assert "  [0]: 1.0 on one device, 2.0 under the strategy" in text


def test_nothing_recorded(tmp_path):
    with pytest.raises(VerifyError, match="has taken no training step under the strategy"):
        read_steps(str(tmp_path), 1)


def test_wrong_arguments(tmp_path, capsys):
    assert main(["--steps", "2", str(tmp_path / "none.py")]) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "train.py").write_text("")
    assert main(["--machine_list", "10.0.0.1", str(tmp_path / "train.py")]) == 2
    assert "what workers record has to lie on this machine" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--steps", "0", "train.py"])
    assert "at least one training step" in capsys.readouterr().err


def save(folder, **values):
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.get_variable(name, initializer=tf.constant(value)) for name, value in values.items()]
        session.run(tf.global_variables_initializer())
        return tf.train.Saver(variables).save(session, str(folder / "model"))


def test_two_checkpoints(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = save(tmp_path / "a", v=[1.0, 2.0], n=3, gone=1.0, shape=[1.0])
    other = save(tmp_path / "b", v=[1.0, 2.0 + 4 * EPS], n=3, more=1.0, shape=[1.0, 1.0])
    found = epl.verify.compare(one, tmp_path / "b")
    assert found.only_first == ("gone",) and found.only_second == ("more",) and found.shapes == {"shape": ([1], [2])}
    assert found.differences == {"v": (4 * EPS, 2.0), "n": (0.0, 0.0)} and not found.equal
    assert "v: 4.8e-07 (2 roundings)" in str(found)
    assert epl.verify.compare(other, other).equal
    with pytest.raises(VerifyError, match="there is no checkpoint"):
        epl.verify.compare(one, tmp_path / "c")
