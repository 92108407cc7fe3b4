"""Programs for TensorFlow 1 on TensorFlow 2.15 (epl.tf1): the numbers and names that they have on TensorFlow 1.15.

What they told there is in tests/helpers/tf1_results.json; on the line tf1 the same programs are run and compared with
that file, so that it stays true. To write it anew, on that line: `python -m tests.multiproc.test_tf1_programs`.
"""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from epl import tf_compat
from tests.helpers import others, processes

RESULTS = os.path.join(processes.REPOSITORY, "tests", "helpers", "tf1_results.json")
LIMIT_S = 240
pytestmark = [pytest.mark.each_line, pytest.mark.timeout(2 * LIMIT_S)]

# Those that run by themselves, and those that need .venv/others. The quick ones run with every change.
OWN = (
    "contrib:cells",
    "contrib:attention",
    "contrib:models",
    "contrib:optimizers",
    "by_others:resnet",
    "by_others:gan",
)
PACKAGES = (
    "kinds:speech",
    "kinds:private",
    "kinds:ranking",
    "by_others:language_model",
)
QUICK = ("contrib:cells", "contrib:attention", "contrib:models", "contrib:optimizers", "kinds:speech", "kinds:private")


def told(program, path):
    """What a program tells in a process of its own."""
    served = ["-m", "epl.tf1"] if sys.version_info >= (3, 9) else []
    command = [sys.executable] + served + ["-m", "tests.helpers.tf1_run", program, path]
    done = subprocess.run(
        command,
        cwd=processes.REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=LIMIT_S,
        env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3"),
    )
    assert done.returncode == 0, done.stdout[-3000:]
    with open(path) as source:
        return json.load(source)


def marked(program):
    return pytest.param(program, marks=() if program in QUICK else pytest.mark.exhaustive)


def assert_told(program, folder):
    with open(RESULTS) as source:
        want = json.load(source)[program]
    got = told(program, str(folder / "told.json"))
    assert sorted(got) == sorted(want)
    for part, known in want.items():
        assert got[part]["names"] == known["names"], part
        assert len(got[part]["numbers"]) == len(known["numbers"]), part
        for (shape, numbers), (known_shape, known_numbers) in zip(got[part]["numbers"], known["numbers"]):
            assert shape == known_shape, part
            np.testing.assert_allclose(numbers, known_numbers, rtol=1e-4, atol=2e-5, err_msg=part)


@pytest.mark.parametrize("program", [marked(program) for program in OWN])
def test_programs_tell_what_they_tell_on_1_15(program, tmp_path):
    assert_told(program, tmp_path)


@pytest.mark.parametrize("program", [marked(program) for program in PACKAGES])
def test_packages_tell_what_they_tell_on_1_15(program, tmp_path):
    if not os.path.isdir(others.PACKAGES):
        pytest.skip("the packages are not installed: scripts/setup_others.sh")
    assert_told(program, tmp_path)


def write_results():
    """Writes what the programs tell on TensorFlow 1.15."""
    assert tf_compat.line() == "tf1", "the results are those of TensorFlow 1.15"
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for program in OWN + PACKAGES:
            found[program] = told(program, os.path.join(folder, "told.json"))
            print(program)
    with open(RESULTS, "w") as out:
        json.dump(found, out, sort_keys=True, indent=0, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    write_results()
