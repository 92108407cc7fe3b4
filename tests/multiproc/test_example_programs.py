"""The larger examples with small networks: several devices against the same program without EPL."""

import os
import re
import shutil

import pytest

from tests.helpers.checks import assert_same

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
pytestmark = pytest.mark.timeout(1200)  # several processes one after the other


@pytest.fixture(scope="session")
def launch(run):
    """launch(folder, workers, devices, example, *arguments): what all workers print of a job of an example's run.sh."""

    def launch_example(folder, workers, devices, example, *arguments):
        options = ["--num_workers", workers, "--gpu_per_worker", devices, "--device", "cpu", "--log_dir", "log"]
        script = os.path.join(ROOT, "examples", example, "run.sh")
        return run(folder, "-m", "epl.launch", "--verbose", *[str(each) for each in options], script, *arguments)

    return launch_example


def without_epl(example, folder):
    """Copies an example and takes the lines about EPL out of train.py; returns the path of train.py."""
    copy = os.path.join(str(folder), "plain_" + example)
    shutil.copytree(os.path.join(ROOT, "examples", example), copy)
    path = os.path.join(copy, "train.py")
    with open(path) as script:
        text, removed = re.subn(r"(?m)^ *(import epl|epl\..*)\n", "", script.read())
    assert removed >= 2
    text = text.replace("epl.Env.get().cluster.total_gpu_num", "1")
    text = re.sub(r"epl\.(replicate|split)\(devices\)", "contextlib.suppress()", text)
    text = text.replace("import argparse\n", "import argparse\nimport contextlib\n", 1)
    assert not re.search(r"\bepl\.", text)
    with open(path, "w") as script:
        script.write(text)
    return path


def losses(output):
    """dict of step to loss."""
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss ([0-9.e+-]+)", output)}


def assert_same_losses(got, want):
    assert sorted(got) == sorted(want)
    for step in sorted(want):
        assert_same(got[step], want[step], what="loss of step %d" % step)


# ---------------------------------------------------------------------------------------------------------------------
# resnet50

# Training with normalisation over small batches of such images magnifies differences in rounding about tenfold a step
# (plain TensorFlow with one kernel changed in its last bit does the same), hence few steps and a low learning rate.
CALM = ["--stop_at=6", "--shuffle=0", "--learning_rate=0.05", "--warmup_epochs=1"]


def resnet_options(data, model):
    return ["--small", "--data_dir", str(data), "--model_dir", str(model), "--train_images=256", "--seed=1"]


def evaluation(output):
    """What the last evaluation printed; the counts of right answers are in it."""
    return re.findall(r"evaluation at step .*", output)[-1]


@pytest.fixture(scope="module")
def resnet(run, launch, tmp_path_factory):
    """(folder, output): `folder`/model is what two workers left after a few steps on the images in `folder`/data."""
    folder = tmp_path_factory.mktemp("resnet50")
    made = run(folder, os.path.join(ROOT, "examples", "resnet50", "small_data.py"), "--images", "325")
    assert "Wrote 260 images to 4 files train-*." in made and "Wrote 65 images to 3 files validation-*." in made
    options = resnet_options(folder / "data", folder / "model") + CALM
    return folder, launch(folder, 2, 1, "resnet50", "--sync_batch_norm", "--print_every=1", *options)


@pytest.mark.once
def test_resnet_computes_as_one_device(run, resnet, tmp_path):
    folder, output = resnet
    program = without_epl("resnet50", tmp_path)
    options = resnet_options(folder / "data", tmp_path / "model") + CALM
    one = run(tmp_path, program, "--batch_size=32", "--print_every=1", *options)
    assert len(losses(one)) == 6
    assert_same_losses(losses(output), losses(one))


@pytest.mark.once
def test_resnet_counts_as_one_process(run, resnet, tmp_path):
    """The same checkpoint by one process without EPL: the same images are right. The 65 are in 3 files."""
    folder, output = resnet
    options = resnet_options(folder / "data", folder / "model")
    alone = run(tmp_path, os.path.join(ROOT, "examples", "resnet50", "evaluate.py"), *options)
    assert "of 65 images" in evaluation(alone) and evaluation(alone) == evaluation(output)


@pytest.mark.nightly
def test_resnet_goes_on_and_learns(launch, resnet, tmp_path):
    folder, output = resnet
    shutil.copytree(str(folder / "model"), str(tmp_path / "model"))
    options = resnet_options(folder / "data", tmp_path / "model")
    later = launch(tmp_path, 2, 1, "resnet50", "--epochs=6", "--evaluate_every=6", "--print_every=1", *options)
    found = losses(later)
    assert sorted(found) == list(range(7, 49))
    assert sum(found[step] for step in range(41, 49)) / 8 < losses(output)[1] - 0.4, found
    assert evaluation(later).startswith("evaluation at step 48:")


# ---------------------------------------------------------------------------------------------------------------------
# lstm_lm


def perplexities(output):
    """[training, validation] of each epoch."""
    return [
        [float(a), float(b)] for a, b in re.findall(r"perplexity ([0-9.]+), of the validation text ([0-9.]+)", output)
    ]


@pytest.mark.once
def test_lstm_remembers_as_one_device(run, launch, tmp_path):
    """Two epochs by one device against one by two workers and, from their checkpoint, one by two devices of a worker.

    A state that was lost, shared or mixed between the rows would give other losses from the second step on.
    """
    made = run(tmp_path, os.path.join(ROOT, "examples", "lstm_lm", "small_text.py"))
    assert "data/train.txt" in made and "data/valid.txt" in made
    with open(str(tmp_path / "data" / "train.txt"), encoding="utf-8") as file:
        lines = file.readlines()[:160]
    with open(str(tmp_path / "short.txt"), "w", encoding="utf-8") as file:
        file.writelines(lines)
    options = [
        "--small",
        "--text=short.txt",
        "--validation=data/valid.txt",
        "--dropout=0",
        "--seed=1",
        "--print_every=1",
    ]
    one = run(tmp_path, without_epl("lstm_lm", tmp_path), "--epochs=2", *options)
    want, steps = losses(one), int(re.search(r"(\d+) steps an epoch", one).group(1))
    assert steps > 10 and sorted(want) == list(range(1, 2 * steps + 1))

    options.append("--checkpoints=kept")
    workers = launch(tmp_path, 2, 1, "lstm_lm", "--epochs=1", *options)
    assert_same_losses(losses(workers), {step: loss for step, loss in want.items() if step <= steps})
    devices = launch(tmp_path, 1, 2, "lstm_lm", "--epochs=2", *options)
    assert "%d done" % steps in devices
    assert_same_losses(losses(devices), {step: loss for step, loss in want.items() if step > steps})

    got = perplexities(workers) + perplexities(devices)
    assert got == [pytest.approx(each, abs=0.011) for each in perplexities(one)]  # two digits are printed
    assert got[1][0] < 0.8 * got[0][0] and got[1][1] < got[0][1]


@pytest.mark.nightly
def test_lstm_with_dropout_learns(launch, tmp_path):
    text = os.path.join(ROOT, "LICENSE")
    options = ["--small", "--text", text, "--validation", text, "--batch_size=4", "--epochs=4", "--seed=1"]
    found = perplexities(launch(tmp_path, 2, 1, "lstm_lm", *options))
    assert len(found) == 4 and found[3][0] < 0.8 * found[0][0]


# ---------------------------------------------------------------------------------------------------------------------
# large_classifier, moe_transformer


@pytest.mark.once
@pytest.mark.parametrize(
    "example, workers, devices, options",
    [
        ("large_classifier", 2, 1, ["--classes=301", "--batch_size=64", "--steps=40"]),
        ("moe_transformer", 1, 2, ["--width=32", "--layers=1", "--experts=5", "--batch_size=16", "--steps=40"]),
    ],
)
def test_what_is_split_learns_as_one_device(run, launch, tmp_path, example, workers, devices, options):
    options = options + ["--print_every=4"]
    want = losses(run(tmp_path, without_epl(example, tmp_path), *options))
    output = launch(tmp_path, workers, devices, example, *options)
    assert "divided variables" in output and sorted(want) == list(range(4, 41, 4))
    assert_same_losses(losses(output), want)
    assert want[40] < want[4] - 0.8
