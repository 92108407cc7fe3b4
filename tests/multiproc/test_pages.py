"""The programs that stand on pages of docs/, as they stand there."""

import os
import re

import numpy as np
import pytest

from tests.helpers import processes
from tests.helpers.programs import fragments, pages

PAGE = "migrating.md"
PAGES = sorted(name for name in os.listdir(os.path.join(processes.REPOSITORY, "docs")) if name.endswith(".md"))
FRAGMENTS = [(page, i) for page in ["../README.md"] + PAGES for i in range(len(fragments.on(page)))]
# What needs another layout than one process with two devices, by a word of it.
LAYOUTS = {
    "epl.ops.send": (2, 1),
    "replicate(device_count=2, name=": (3, 1),
    "pipeline.num_stages": (1, 4),
    "with epl.split": (1, 4),
}


# Of the whole programs on other pages: who runs them.
ELSEWHERE = {
    "getting_started.md": ["local_model.py"],  # the quick start (tests/unit/test_docs.py, test_progress_workers.py)
    "pipelines.md": ["pipeline.py"],
    "troubleshooting.md": ["twice.py"],
}


def by_hand():
    """The weight after five steps of gradient descent on all rows."""
    rows = np.arange(24, dtype=np.float64).reshape(8, 3) / 24
    weight = np.ones([3, 1])
    for _ in range(5):
        weight -= 0.1 * 2 * np.mean((rows @ weight - 1) * rows, axis=0)[:, None]
    return weight


@pytest.mark.parametrize("layout", [(2, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("name", sorted(pages.on(PAGE)))
def test_programs_of_the_page(jobs, tmp_path, name, layout):
    first, *others = jobs[layout]("tests.helpers.programs.pages:run", PAGE, name, str(tmp_path))
    for weight in [first] + [other for other in others if other is not None]:
        np.testing.assert_allclose(weight, by_hand(), rtol=1e-5)


def test_two_runs_show_updates_that_race(plain, tmp_path):
    assert plain("tests.helpers.programs.pages:run", "troubleshooting.md", "twice.py", str(tmp_path)) == ["weight"]


def test_the_pipeline_learns(template, tmp_path):
    (tmp_path / "pipeline.py").write_text(pages.on("pipelines.md")["pipeline.py"])
    environ = processes.worker_environments(1, 2)[0]
    ended = template.python([str(tmp_path / "pipeline.py")], environ, tmp_path / "log").wait(120)
    losses = [float(text) for text in re.findall(r"step \d+, loss ([\d.]+)", ended.output)]
    assert ended.code == 0 and len(losses) == 5 and losses[-1] < losses[0], ended


def test_every_program_of_a_page_is_run():
    assert {page: sorted(pages.on(page)) for page in PAGES if page != PAGE and pages.on(page)} == ELSEWHERE


@pytest.mark.parametrize("page, number", FRAGMENTS, ids=str)
def test_fragments_of_pages(jobs, page, number):
    text = fragments.on(page)[number]
    layout = next((LAYOUTS[word] for word in LAYOUTS if word in text), (1, 2))
    for loss, variables in jobs[layout]("tests.helpers.programs.fragments:run", page, number):
        assert np.isfinite(loss) and variables
