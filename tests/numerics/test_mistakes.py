"""What a new user sees after a common mistake: the last lines say what was wrong, where, and how to mend it.

The programs run as workers do, and what they print goes through what the launcher's summary is made of.
"""

import json
import re
import socket

import pytest

from epl.launch import main
from epl.launch.errors_seen import ErrorsSeen
from tests.helpers import processes

LINES = 10
HEAD = "import numpy as np\nimport tensorflow.compat.v1 as tf\nimport epl\ntf.disable_v2_behavior()\n"
MODEL = """
x = tf.placeholder(tf.float32, [None, 3], name="x")
loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 1)))
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())
with tf.train.MonitoredTrainingSession() as session:
    session.run([loss, train], {x: np.ones([4, 3])})
"""
BIG = "tf.matmul(tf.tile(x, [1 << 17, 1]), tf.tile(tf.layers.dense(x, 3), [1 << 17, 1]), transpose_b=True)"
TRAINED = 'epl.init(epl.Config({"communication.max_splits": 3}))\nepl.set_default_strategy(epl.replicate(1))\n' + MODEL
INIT = "epl.init()\n"

# Name: (the program, what is wrong, how to mend it, the program's own line that is named).
PROGRAMS = {
    "forgotten init": (
        HEAD + "epl.Config()\n" + MODEL,
        r"comes before|before epl\.init\(\)|is opened before",
        r"epl\.init\(\)",
        None,
    ),
    "strategy before init": (
        HEAD + "epl.set_default_strategy(epl.replicate(1))\n" + INIT + MODEL,
        r"epl\.set_default_strategy at train\.py:5 comes before",
        r"epl\.init\(\)",
        "epl.set_default_strategy(epl.replicate(1))",
    ),
    "a second init": (
        HEAD + TRAINED + "epl.init()\n" + MODEL.replace('name="x"', 'name="z"'),
        "has parts of a model",
        r"tf\.reset_default_graph\(\)",
        None,
    ),
    "misspelt key": (
        HEAD + 'epl.init(epl.Config({"pipeline.num_microbatch": 4}))',
        "unknown configuration key 'pipeline.num_microbatch'",
        'Did you mean "pipeline.num_micro_batch"',
        'epl.init(epl.Config({"pipeline.num_microbatch": 4}))',
    ),
    "wrong type": (
        HEAD + 'epl.init(epl.Config({"pipeline.num_micro_batch": "four"}))',
        "pipeline.num_micro_batch='four' is not valid",
        "it must be an integer >= 1",
        'epl.init(epl.Config({"pipeline.num_micro_batch": "four"}))',
    ),
    "a dict for a Config": (
        HEAD + 'epl.init({"pipeline.num_micro_batch": 4})',
        "config must be an epl.Config",
        "such as epl.Config",
        'epl.init({"pipeline.num_micro_batch": 4})',
    ),
    "misspelt variable": (
        HEAD + "import os\nos.environ['EPL_NUM_MICRO_BATCH'] = '4'\n" + INIT,
        "environment variable EPL_NUM_MICRO_BATCH belongs to no configuration key",
        'Did you mean "EPL_PIPELINE_NUM_MICRO_BATCH"',
        "epl.init()",
    ),
    "a key without effect": (
        HEAD + 'epl.init(epl.Config({"io.drop_last_files": True}))',
        "io.drop_last_files=True has no effect while io.slicing=False",
        "Set io.slicing=True",
        'epl.init(epl.Config({"io.drop_last_files": True}))',
    ),
    "misspelt function": (
        HEAD + INIT + "with epl.replicat(1):\n    pass",
        "module 'epl' has no attribute 'replicat'",
        "Did you mean: 'replicate'",
        "with epl.replicat(1):",
    ),
    "a device count that is none": (
        HEAD + INIT + 'with epl.replicate("a"):\n    pass',
        r"epl\.replicate\(device_count='a'\) at train\.py:6",
        r"for example epl\.replicate\(1\)",
        'with epl.replicate("a"):',
    ),
    "nested scopes": (
        HEAD + INIT + "with epl.replicate(1):\n    with epl.split(2):\n        pass",
        "strategy scopes cannot be nested",
        "End the outer scope before the inner one begins",
        "with epl.split(2):",
    ),
    "eager execution": (
        HEAD.replace("tf.disable_v2_behavior()", "tf.enable_eager_execution()") + INIT,
        "eager execution is on",
        r"Call tf\.compat\.v1\.disable_eager_execution\(\)",
        "epl.init()",
    ),
    "too few devices": (
        HEAD + INIT + "epl.set_default_strategy(epl.replicate(3))\n" + MODEL,
        "one copy of the model needs 3 devices",
        "Use a number of devices that is a multiple of 3",
        "with tf.train.MonitoredTrainingSession() as session:",
    ),
    "an uneven batch": (
        HEAD + TRAINED.replace("communication.max_splits", "local_sgd.k_steps").replace("[4, 3]", "[7, 3]"),
        "'x:0' is fed a batch of 7, which cannot be divided evenly over the 2 copies",
        "Feed a multiple of 2",
        "session.run([loss, train], {x: np.ones([7, 3])})",
    ),
    "a batch of a wrong shape": (
        HEAD + TRAINED.replace("[4, 3]", "[4, 5]"),
        r"Cannot feed value of shape \(4, 5\) for Tensor '?x:0",
        r"which has shape '?\(\?, 3\)",
        "session.run([loss, train], {x: np.ones([4, 5])})",
    ),
    "a missing file": (
        HEAD + INIT + "open('/nowhere/train.csv')",
        "FileNotFoundError",
        "/nowhere/train.csv",
        "open('/nowhere/train.csv')",
    ),
    "a device that is out of memory": (
        HEAD + TRAINED.replace("tf.layers.dense(x, 1)", BIG),
        "EPL expects of a training step with 2 rows in a micro-batch",
        r"pipeline\.num_micro_batch=\d: .* instead of ",
        "session.run([loss, train], {x: np.ones([4, 3])})",
    ),
    "a server of TensorFlow's": (
        HEAD + INIT + "tf.train.Server.create_local_server()",
        r"tf\.train\.Server cannot be used with EPL",
        "Leave it and server.join",
        "tf.train.Server.create_local_server()",
    ),
    "a collection that there is not": (
        HEAD + INIT + 'epl.add_to_collection(tf.constant(1.0), "losses")',
        "'losses' is none of the collections of epl.GraphKeys",
        "these are: global_concat_objects",
        'epl.add_to_collection(tf.constant(1.0), "losses")',
    ),
}
ALONE = ("forgotten init",)  # importing epl is seen by an interpreter of its own


def last_lines(output):
    """What the launcher shows of a worker that failed: its error, and where the program was."""
    seen = ErrorsSeen()
    for line in output.splitlines():
        seen.take(line)
    return seen.message + seen.place


@pytest.mark.parametrize("mistake", sorted(PROGRAMS))
def test_mistakes_in_programs(template, tmp_path, mistake):
    program, what, mend, where = PROGRAMS[mistake]
    (tmp_path / "train.py").write_text(program)
    environ = processes.worker_environments(1, 2)[0]
    python = template.python
    if mistake in ALONE:
        (tmp_path / "note").write_text("")
        environ["EPL_LAUNCH_NOTE"] = str(tmp_path / "note")
        python = processes.python
    ended = python([str(tmp_path / "train.py")], environ, tmp_path / "log").wait(60)
    lines = last_lines(ended.output)
    text = "\n".join(lines[-LINES:])
    assert ended.code == 1 and re.search(what, "\n".join(lines)) and re.search(mend, text), ended
    assert "train.py" in text and (where is None or lines[-1] == where), text


COMMANDS = {
    "no script": (["--num_workers", "2"], "no script is given. Usage: epl-launch --num_workers N"),
    "a script that is not there": (["tran.py"], r"script tran\.py does not exist\. Did you mean train\.py"),
    "a script of another kind": (["notes.txt"], r"must be a shell script \(\.sh\) or a Python program \(\.py\)"),
    "misspelt option": (["--num_worker", "2", "train.py"], "--num_worker.*--num_workers"),
    "no GPUs": (["--device", "gpu", "train.py"], "Start fewer, or use --device cpu"),
    "a list of machines that is not there": (
        ["--machine_list", "machines.txt", "train.py"],
        "there is no file of that name, and no machine either",
    ),
    "a wrong configuration": (["--config", "run.yaml", "train.py"], 'run.yaml, line 1.*Did you mean "zero.level"'),
}


@pytest.mark.once
@pytest.mark.parametrize("mistake", sorted(COMMANDS))
def test_mistakes_in_commands(tmp_path, monkeypatch, capsys, mistake):
    arguments, words = COMMANDS[mistake]
    for name, text in (("train.py", ""), ("notes.txt", ""), ("run.yaml", "zero.levle: v1\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main.main(arguments) == main.USAGE_STATUS
    said = capsys.readouterr().err
    assert re.search(words, said) and len(said.splitlines()) <= LINES, said


def test_a_port_in_use(template, tmp_path):
    environ = processes.worker_environments(2, 1)[0]
    address = json.loads(environ["TF_CONFIG"])["cluster"]["worker"][0]
    with socket.socket() as other:
        other.bind((address.split(":")[0], int(address.split(":")[1])))
        other.listen(1)
        (tmp_path / "train.py").write_text(HEAD + INIT)
        ended = template.python([str(tmp_path / "train.py")], environ, tmp_path / "log").wait(60)
    lines = last_lines(ended.output)
    assert ended.code == 1 and "Worker 0 cannot listen at %s: the port is taken" % address in lines[0], ended
    assert "--machine_list" in lines[0] and lines[-1] == "epl.init()"
