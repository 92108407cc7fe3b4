"""io.equal_steps: workers with unequally much data make equally many steps; which rows, and what is trained."""

import numpy as np
import pytest

from tests.helpers.checks import assert_same

DATA = "tests.helpers.programs.data:"
REPEAT, DROP = {"io.equal_steps": "repeat"}, {"io.equal_steps": "drop"}


def expected(config, workers, count, batch):
    """(rows of each step, for each worker; the weight that they train)."""
    shares = [list(range(1 + worker, count + 1, workers)) for worker in range(workers)]
    batches = [[share[i : i + batch] for i in range(0, len(share), batch)] for share in shares]
    steps = (max if config is REPEAT else min)(map(len, batches))
    taken = [[own[step % len(own)] for step in range(steps)] for own in batches]
    weight = -sum(np.mean(np.concatenate([own[step] for own in taken])) for step in range(steps))
    return taken, weight


def check(jobs, workers, config, count, batch, **more):
    taken, weight = expected(config, workers, count, batch)
    epochs = more.get("epochs", 1)
    for worker, (rows, got) in enumerate(jobs[workers, 1](DATA + "unequal", config, count, batch, **more)):
        assert rows == [taken[worker]] * epochs, (config, workers, count, batch)
        assert_same(got, epochs * weight)


@pytest.mark.parametrize(
    "workers, count, batch, kind",
    [
        (2, 7, 1, "one_shot"),
        (2, 9, 2, "initializable"),
        (3, 7, 1, "generated"),
        pytest.param(2, 8, 1, "initializable", marks=pytest.mark.exhaustive),
        pytest.param(2, 7, 2, "generated", marks=pytest.mark.exhaustive),
        pytest.param(3, 8, 1, "one_shot", marks=pytest.mark.exhaustive),
        pytest.param(3, 9, 2, "initializable", marks=pytest.mark.exhaustive),
        pytest.param(3, 10, 2, "initializable", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("config", [REPEAT, DROP], ids=["repeat", "drop"])
def test_all_make_the_steps_of_one(jobs, config, workers, count, batch, kind):
    # Data that is begun anew for an epoch counts as not seen.
    epochs = 1 if kind == "one_shot" else 2
    check(jobs, workers, config, count, batch, kind=kind, epochs=epochs)


@pytest.mark.parametrize("config, steps", [(REPEAT, 4), (DROP, 3)], ids=["repeat", "drop"])
def test_estimators(two_workers, config, steps):
    want = expected(config, 2, 7, 1)[1]
    for got, weight in two_workers(DATA + "unequal_estimator", config, 7, 1):
        assert got == steps
        assert_same(weight, want)


def test_a_step_is_made_while_any_of_its_batches_is_new(jobs):
    """Five rows over two workers: three and two, and each step takes two of each."""
    for rows, got in jobs[2, 2](DATA + "unequal", REPEAT, 5, 1):
        assert len(rows[0]) == 2
        assert_same(got, -(np.mean([1, 3, 2, 4]) + np.mean([5, 1, 2, 4])))


def test_a_step_is_made_while_any_of_its_micro_batches_is_new(jobs):
    config = dict(REPEAT, **{"pipeline.num_micro_batch": 2})
    for rows, got in jobs[2, 1](DATA + "unequal", config, 5, 1):
        assert len(rows[0]) == 2
        assert_same(got, -(np.mean([1, 3, 2, 4]) + np.mean([5, 1, 2, 4])))


def test_files_need_not_divide(plain, two_workers, tmp_path):
    plain(DATA + "write", str(tmp_path))
    cases = [("tfrecord", dict(config, **{"io.slicing": True}), 3) for config in (REPEAT, DROP)]
    one, other = two_workers(DATA + "refusals", str(tmp_path), cases)
    assert one == [("read", [0, 1, 2, 6, 7, 8])] * 2
    assert other == [("read", [3, 4, 5, 3, 4, 5]), ("read", [3, 4, 5])]
