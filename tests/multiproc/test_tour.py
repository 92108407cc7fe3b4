"""The notebook: every cell runs, the first training twice, and shows what its text says."""

import os
import re
import subprocess
import sys

import pytest

from tests.helpers.notebook import code_cells
from tests.helpers.processes import clean_environment

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOUR = os.path.join(ROOT, "examples", "tour.ipynb")


@pytest.mark.either_line
def test_the_tour(tmp_path):
    environ = clean_environment(TMPDIR=str(tmp_path), EPL_DEVICE="cpu")
    environ["PYTHONPATH"] = os.pathsep.join([ROOT] + [environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.helpers.notebook", TOUR, "1"]
    ended = subprocess.run(
        command, cwd=str(tmp_path), env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300
    )
    output = ended.stdout.decode()
    assert ended.returncode == 0, output
    _, *cells = re.split(r"(?m)^In \[\d\]\n", output)
    digits, pipeline, divided, memory, fails, again = cells[1:]
    for text in (digits, again):
        assert "Plan: 2 model replicas on 2 workers" in text
        assert int(re.search(r"right: (\d+) %", text).group(1)) > 80, text
    for text in (pipeline, divided):
        first, last = re.search(r"loss: ([\d.]+) at first, ([\d.]+) at the end", text).groups()
        assert float(last) < float(first), text
    assert "Plan: 8 model replicas on 4 workers" in memory and "worker 3 CPU:1  16.3" in memory, memory
    assert fails.rstrip().endswith("raised: no such luck in worker 0"), fails


@pytest.mark.once
def test_it_is_kept_without_outputs():
    with open(TOUR, encoding="utf-8") as stream:
        text = stream.read()
    assert '"outputs": [' in text and not re.search(r'"outputs": \[\s*\{', text)
    assert all(cell.strip() for cell in code_cells(TOUR))
