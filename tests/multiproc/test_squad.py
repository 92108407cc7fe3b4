"""The example bert_squad over two workers, against plain TensorFlow on one device: losses, answers, scores."""

import json
import os
import re
import shutil

import numpy as np
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXAMPLE = os.path.join(ROOT, "examples", "bert_squad")
QUESTIONS = os.path.join(EXAMPLE, "small", "train.json")
ROWS = 4  # of a worker's batch
COMPARED = 20  # steps; far on, small differences in rounding have grown in any training
pytestmark = pytest.mark.once  # a whole training; other examples and BERTs are trained on both lines

# Saves a BERT in the layout of published checkpoints: its own first values, and a variable that answers do without.
PRETRAIN = """
import os, sys
import tensorflow.compat.v1 as tf
import bert
tf.disable_v2_behavior()
tf.set_random_seed(5)
tokens = tf.placeholder(tf.int32, [None, 8])
bert.Bert(bert.read_config(os.path.join("small", "bert_config.json")), False)(tokens, tokens, tokens)
tf.get_variable("bert/pooler/dense/bias", [4])
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    tf.train.Saver().save(session, sys.argv[1], write_meta_graph=False)
"""

LOSSES = """
import glob, json, sys
import tensorflow.compat.v1 as tf
found = []
for folder in sys.argv[1:]:
    values = {}
    for path in glob.glob(folder + "/events*"):
        for event in tf.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == "loss":
                    values[event.step] = value.simple_value
    found.append([values[step] for step in sorted(values)])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A copy of the example without EPL."""
    folder = tmp_path_factory.mktemp("plain")
    for name in os.listdir(EXAMPLE):
        if name.endswith(".py"):
            shutil.copy(os.path.join(EXAMPLE, name), str(folder))
    shutil.copytree(os.path.join(EXAMPLE, "small"), str(folder / "small"))
    text, removed = re.subn(r"(?m)^ *(import epl|epl\..*)\n", "", (folder / "finetune.py").read_text())
    assert removed == 3 and not re.search(r"\bepl\b", text.replace(text.split('"""')[1], ""))
    (folder / "finetune.py").write_text(text)
    (folder / "workers.py").write_text("def place():\n    return 0, 1, 1\n\n\ndef merged(own):\n    return own\n")
    return folder


@pytest.fixture(scope="module")
def pretrained(run, plain, tmp_path_factory):
    path = tmp_path_factory.mktemp("pretrained") / "bert_model.ckpt"
    run(plain, "-c", PRETRAIN, path)
    return path


def train(run, pretrained, folder, *options):
    """The output of a training by two workers that then answer the questions that they have learnt."""
    launch = ["-m", "epl.launch", "--num_workers", "2", "--gpu_per_worker", "1", "--device", "cpu", "--verbose"]
    options = ["--output_dir", folder, "--predict_file", QUESTIONS, "--log_steps", 1] + list(options)
    options += ["--train_batch_size", ROWS, "--init_checkpoint", pretrained]
    return run(folder.parent, *(launch + [os.path.join(EXAMPLE, "run.sh")] + options))


@pytest.fixture(scope="module")
def trained(run, pretrained, tmp_path_factory):
    """(folder, output) of the first steps of a training, and of answers."""
    folder = tmp_path_factory.mktemp("trained") / "out"
    return folder, train(run, pretrained, folder, "--stop_at_step", COMPARED)


def content(folder, name):
    with open(os.path.join(str(folder), name), encoding="utf-8") as source:
        return json.load(source)


@pytest.mark.nightly
def test_training_learns_the_questions(run, pretrained, tmp_path):
    folder = tmp_path / "out"
    output = train(run, pretrained, folder)
    losses = [float(text) for text in re.findall(r"loss ([0-9.]+)", output)]
    assert losses[0] > 3 and np.mean(losses[-10:]) < 0.1 * losses[0]
    scores = content(folder, "scores.json")
    assert scores["total"] == 21 and scores["missing"] == 0
    assert scores["exact_match"] >= 85 and scores["f1"] >= scores["exact_match"]
    assert "exact match %.2f %%" % scores["exact_match"] in output


def test_losses_are_those_of_one_device(run, plain, pretrained, trained, tmp_path):
    options = ["--output_dir", tmp_path, "--train_batch_size", 2 * ROWS, "--log_steps", 1, "--predict_file", ""]
    output = run(plain, "finetune.py", "--stop_at_step", COMPARED, "--init_checkpoint", pretrained, *options)
    assert "21 of 23 variables" in output and "21 of 23 variables" in trained[1]
    scores = content(trained[0], "scores.json")
    assert scores["total"] == 21 and scores["missing"] == 0
    got, want = json.loads(run(plain, "-c", LOSSES, trained[0], tmp_path).splitlines()[-1])
    assert len(want) == len(got) == COMPARED
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_one_process_gives_the_same_answers(run, plain, trained, tmp_path):
    """With the checkpoint of the two workers, on plain TensorFlow; and score.py says the same of them."""
    shutil.copytree(str(trained[0]), str(tmp_path / "out"))
    for name in ("scores", "predictions", "nbest_predictions"):
        os.remove(str(tmp_path / "out" / (name + ".json")))
    run(plain, "finetune.py", "--train_file", "", "--predict_file", QUESTIONS, "--output_dir", tmp_path / "out")
    for name in ("scores.json", "predictions.json"):
        assert content(trained[0], name) == content(tmp_path / "out", name)
    ours, theirs = (content(folder, "nbest_predictions.json") for folder in (trained[0], tmp_path / "out"))
    for question, ranked in theirs.items():
        got, want = ([each["score"] for each in found] for found in (ours[question], ranked))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    scored = run(plain, "score.py", QUESTIONS, trained[0] / "predictions.json")
    assert json.loads(scored) == content(trained[0], "scores.json")
