"""What `epl.verify` makes of what was recorded; two checkpoints."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import epl.verify
from epl.errors import VerifyError
from epl.verify.command import main
from epl.verify.comparison import DIFFERENT, EQUAL, ROUNDING, Comparison, Difference, compare_steps
from epl.verify.joined import NotWhole, RecordedStep, part, read_steps, whole_batch
from epl.verify.report import first_difference, lines

EPS = float(np.finfo(np.float32).eps)


def recorded(given=None, is_open=(), updates=None, after=None):
    return RecordedStep((), (), given or {}, frozenset(is_open), {}, updates or {}, {}, after or {}, (), {})


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

    def run(self, change=None):
        if change is None:
            return [self._exact.pop(0) if isinstance(self._exact, list) else self._exact]
        return [self._moved[0]]


def variable(value):
    return {("variable", "v"): np.asarray(value, np.float32)}


@pytest.mark.parametrize("off, verdict", [(0, EQUAL), (8 * EPS, ROUNDING), (100 * EPS, DIFFERENT), (np.nan, DIFFERENT)])
def test_differences_are_told_in_units_of_rounding(off, verdict):
    device = Device(variable([1, 0]), variable([1 + EPS, 0]))
    step = recorded(after={"v": {0: np.float32([1, 0]), 1: np.float32([1 + off, 0])}})
    comparison = compare_steps(device, [step])
    (found,) = comparison.steps[0]
    assert found.verdict == comparison.verdict == verdict
    if verdict == DIFFERENT:
        assert found.worker == 1 and found.worst[0][0] == [0] and first_difference(comparison) == (0, found)
    if verdict == ROUNDING:
        assert found.ratio == pytest.approx(4)  # one rounding that was seen, and one of the largest element


def test_what_two_runs_on_one_device_differ_in_is_named_and_left_out():
    device = Device([variable([1]), variable([2])], variable([1]))
    comparison = compare_steps(device, [recorded(after={"v": {0: np.float32([7])}})])
    assert comparison.races == ["variable v"] and comparison.steps == [[]] and comparison.verdict == EQUAL
    assert any("differs between two runs on one device: variable v" in line for line in lines(comparison))


def test_sparse_gradients_are_compared_row_by_row():
    """Rows come in another order, and one of them in two parts."""
    values, indices = ("gradient", ("t", "update", 1)), ("gradient", ("t", "update", 2))
    one = {values: np.float32([[1], [2]]), indices: np.int32([5, 3])}
    job = {values[1]: {0: np.float32([[2], [0.25], [0.75]])}, indices[1]: {0: np.int32([3, 5, 5])}}
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
