"""The examples: digits, an ordinary TensorFlow script without its EPL lines, and its data; BERT as a pipeline."""

import os
import re
import shutil

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXAMPLE = os.path.join(ROOT, "examples", "digits")


@pytest.fixture
def example(tmp_path):
    """A copy of the example in which train.py has lost every line about EPL."""
    for name in ("convert.py", "model.py", "evaluate.py", "train.py"):
        shutil.copy(os.path.join(EXAMPLE, name), str(tmp_path))
    with open(os.path.join(EXAMPLE, "train.py")) as script:
        text = script.read()
    plain, removed = re.subn(r"(?m)^(import epl|epl\..*)\n", "", text)
    assert removed == 3 and not re.search(r"\bepl\b", plain)
    (tmp_path / "train.py").write_text(plain)
    return tmp_path


def accuracy(output):
    return re.search(r"test accuracy: ([0-9.]+) %", output).group(1)


@pytest.mark.once
def test_plain_training_and_evaluation_agree(run, example):
    assert "Wrote 1438 images" in run(example, "convert.py")
    assert "already" in run(example, "convert.py")
    assert sorted(os.listdir(str(example / "data"))) == ["test.tfrecord", "train.tfrecord"]
    trained = accuracy(run(example, "train.py", "--steps", "150"))
    assert float(trained) > 85
    assert accuracy(run(example, "evaluate.py")) == trained
    continued = run(example, "train.py", "--steps", "200")
    assert "step  200 of 200" in continued and "step  150" not in continued


def test_evaluation_never_imports_epl():
    for name in ("evaluate.py", "model.py", "convert.py"):
        with open(os.path.join(EXAMPLE, name)) as script:
            assert not re.search(r"^\s*(import|from)\s+epl\b", script.read(), re.MULTILINE)


@pytest.mark.once
@pytest.mark.parametrize("workers, devices", [pytest.param(1, 2, marks=pytest.mark.exhaustive), (2, 1)])
@pytest.mark.parametrize("steps, gain", [(9, 0.0), pytest.param(30, 0.5, marks=pytest.mark.nightly)])
def test_bert_in_two_stages_learns(run, tmp_path, workers, devices, steps, gain):
    folder = os.path.join(ROOT, "examples", "bert_pipeline")
    sizes = {"layers": 2, "steps": steps, "batch": 8, "micro_batches": 3, "width": 32, "length": 16}
    script = [os.path.join(folder, "run.sh")] + ["--%s=%d" % item for item in sorted(sizes.items())]
    script += ["--checkpoints", str(tmp_path / "kept")]
    launch = [
        "-m",
        "epl.launch",
        "--num_workers",
        str(workers),
        "--gpu_per_worker",
        str(devices),
        "--device",
        "cpu",
        "--verbose",
    ]
    output = run(tmp_path, *(launch + ["--log_dir", str(tmp_path)] + script))
    chief = "\n".join(line for line in output.splitlines() if line.startswith("[worker 0]"))
    losses = [float(text) for text in re.findall(r"loss ([0-9.]+)", chief)]
    assert len(losses) == min(10, steps) and losses[-1] < losses[0] - gain, output
    assert "taskgraph_1" in output and "Train Finished." in output
    assert "model.ckpt-%d.index" % steps in os.listdir(str(tmp_path / "kept"))
    assert not [name for name in os.listdir(str(tmp_path / "kept")) if "epl_part" in name]
