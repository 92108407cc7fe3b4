"""What must be true of the zoo's runs."""

import numpy as np
import pytest

from tests.helpers import zoo
from tests.helpers.checks import assert_same
from tests.helpers.covering import covering
from tests.helpers.zoo_results import PLAIN, Layout

# Models take turns at these.
RARE = (Layout(1, 4), Layout(1, 2, 2), Layout(2, 2))


def cases(layout, rare, half):
    """Parameters (layout, case): in `layout` every model once and half of the other cases; each third model in `rare`.

    On both lines: each model, and each optimizer and each way of input in each layout.

    Args:
      layout: Layout.
      rare: list of Layouts, of `RARE`; a model is in one of those three.
      half: 0 or 1. Two calls with different ones have each case together.
    """
    wanted = [(layout, case) for case in list(zoo.CASES)[half::2] if case not in zoo.ONE_EACH]
    one_each = [case for case in zoo.CASES if case in zoo.ONE_EACH]
    wanted += [(layout, case) for case in one_each]
    wanted += [(RARE[turn % 3], case) for turn, case in enumerate(one_each) if RARE[turn % 3] in rare]
    both_lines = covering([_options(*each) for each in wanted], strength=1)
    for each in [layout] + rare:
        for case in zoo.CASES:
            marks = []
            if (each, case) not in wanted:
                marks.append(pytest.mark.exhaustive)
            elif _options(each, case) not in both_lines:
                marks.append(pytest.mark.once)
            yield pytest.param(each, case, marks=marks, id="%s-%s" % (case, each))


def _options(layout, name):
    case = zoo.CASES[name]
    optimizer = name[len(case.model.name) + 1 :].rpartition("-")[0]
    return case.model.name, (layout, optimizer), (layout, case.source)


def check_case(results, layout, name):
    """The assertions of the equality tests: losses and all variables at every step, on every worker and replica."""
    rtol, atol = zoo.CASES[name].model.rtol, zoo.CASES[name].atol(layout)
    want = _reference(results, name)
    workers = results.of(layout, name)
    assert len(workers) == layout.workers
    for index, got in enumerate(workers):
        assert {key for key in got if not key.startswith("replicas/")} == set(want)
        for key in sorted(want):
            assert_same(got[key], want[key], rtol, atol, "%s of worker %d" % (key, index))
        for key in sorted(key for key in want if key.startswith("variable/")):
            last = want[key][-1]
            replicas = got[key.replace("variable/", "replicas/", 1)]
            everywhere = np.broadcast_to(last, (int(np.prod(layout)),) + last.shape)
            assert_same(replicas, everywhere, rtol, atol, "%s in all replicas, seen by worker %d" % (key, index))


def _reference(results, name):
    """The arrays of the plain run, which did train: without this, two runs that do nothing would be equal."""
    (want,) = results.of(PLAIN, name)
    losses = [want[key] for key in want if key.startswith("loss/")]
    assert losses and all(len(set(loss.tolist())) == len(loss) >= 5 for loss in losses)
    assert all(np.all(np.isfinite(loss)) for loss in losses)
    names = [key[len("variable/") :] for key in want if key.startswith("variable/")]
    moved = [name for name in names if not np.array_equal(want["variable/" + name][-1], want["start/" + name])]
    assert len(moved) >= 3, moved
    assert int(want["variable/global_step"][-1]) == len(losses[0])
    return want
