"""What a plan says: its table, and as JSON."""

import json

import tensorflow.compat.v1 as tf

import epl
from epl.plan.report.plan_table import plan_table
from tests.helpers import planning
from tests.helpers.planning import capture, plan_of, wide, wide_graph


def test_table_of_one_worker():
    with capture() as graph:
        planning.sgd(planning.layers())
    done = planning.compiled(graph, 1, 2)
    lines = plan_table(done.plan, done).splitlines()
    assert lines[0] == "Plan: 2 model replicas on 1 worker x 2 CPU"
    assert [line.split() for line in lines[3:5]] == [
        ["0", "CPU:0", "0", "all", "model"],
        ["0", "CPU:1", "1", "all", "model"],
    ]
    text = "\n".join(lines)
    assert "4 dense in 1 group, 0 sparse; mean over 2 instances" in text
    counts = len(plan_of(graph, 1, 2)[0].graph.nodes), len(done.graph.nodes)
    assert "%d in the model, %d in this worker's graph" % counts in text and "further devices" not in text


def test_table_of_64_workers():
    plan = plan_of(wide_graph(), 64, 8)[1]
    lines = plan_table(plan).splitlines()
    assert lines[0] == "Plan: 512 model replicas on 64 workers x 8 CPU"
    assert [line.split()[:3] for line in lines[3:11]] == [["0", "CPU:%d" % i, str(i)] for i in range(8)]
    assert lines[11].strip() == "... and 504 further devices, in the same way"
    assert "3.0 MiB" in lines[-1]  # 12 x 256 x 256 x 4 bytes
    assert len(plan_table(plan, max_rows=1000).splitlines()) == len(lines) - 1 + 504


def test_strategies_in_force():
    """Of 12 variables of 256 x 256 with momentum: half of the gradients' bytes, half of the optimizer's state."""
    with capture() as graph:
        tf.train.MomentumOptimizer(0.1, 0.9).minimize(wide())
    size = 12 * 256 * 256 * 4
    assert planning.compiled(graph, 2, 1).plan.strategies == ()
    options = {"zero__level": "v0", "communication__fp16": True, "execution__steps_per_run": 5}
    plan = planning.compiled(graph, 2, 1, **options).plan
    zero, half, repeated = plan.strategies
    assert (zero.key, zero.sent_bytes, zero.kept_bytes) == ("zero.level=v0", size // 2, -size // 2)
    assert (half.key, half.sent_bytes, half.kept_bytes) == ("communication.fp16=True", -size // 2, 0)
    assert (repeated.key, repeated.sent_bytes) == ("execution.steps_per_run=5", 0)
    assert plan.bytes_per_step() == size + zero.sent_bytes + half.sent_bytes
    rows = plan_table(plan).splitlines()[-3:]
    assert [row.split()[0] for row in rows] == [zero.key, half.key, repeated.key]
    assert "+1.5 MiB" in rows[0] and "-1.5 MiB" in rows[0] and "-1.5 MiB" in rows[1]
    assert json.loads(plan.to_json())["strategies"][0]["kept_bytes"] == -size // 2


def test_a_loss_scale_is_named():
    with capture() as graph:
        planning.sgd(planning.layers())
    options = {"amp__level": "O1", "amp__dtype": "float16", "amp__loss_scale": 128.0}
    plan = planning.compiled(graph, 2, 1, **options).plan
    assert [each.key for each in plan.strategies] == ["amp.level=O1", "amp.loss_scale=128.0"]
    assert "one of 4 gradients" in plan.strategies[1].effect
    words = [line.split()[:1] for line in plan_table(plan).splitlines()]
    assert words[words.index(["strategy"]) - 1] == []


def test_what_gradients_in_16_bits_save_is_named():
    with capture() as graph:
        tf.train.MomentumOptimizer(0.1, 0.9).minimize(wide())
    size = 12 * 256 * 256 * 4
    options = {"amp__level": "O2", "amp__dtype": "float16", "io__autotune": True}
    plan = planning.compiled(graph, 2, 1, **options).plan
    short, _, tuned = plan.strategies  # between them the scale of the loss
    assert (short.key, short.sent_bytes) == ("amp.level=O2", -size // 2)
    assert plan.bytes_per_step() == size + short.sent_bytes
    assert (tuned.key, tuned.sent_bytes) == ("io.autotune=True", 0)
    alone = planning.compiled(graph, 1, 2, amp__level="O2", amp__dtype="float16").plan.strategies[0]
    assert alone.sent_bytes == 0


def test_table_of_shares():
    with capture() as graph, epl.replicate(2, name="net"):
        planning.sgd(planning.layers())
    lines = plan_table(plan_of(graph, 2, 2)[1]).splitlines()
    assert lines[0].startswith("Plan: 2 model replicas")
    rows = [line.split() for line in lines[3:7]]
    assert [(row[0], row[2], row[3:6]) for row in rows] == [
        ("0", "0", ["1", "of", "2"]), ("0", "0", ["2", "of", "2"]),
        ("1", "1", ["1", "of", "2"]), ("1", "1", ["2", "of", "2"])]  # fmt: skip
    assert all(row[-1] == "net" for row in rows)


def test_json():
    facts = json.loads(plan_of(wide_graph(), 64, 8, 63)[1].to_json())
    assert facts["replicas"] == 512 and facts["bytes_per_step"] == 12 * 256 * 256 * 4
    assert [i["rank"] for i in facts["mesh"]["instances"]] == list(range(504, 512))
    assert len(facts["gradient_groups"]) == len(plan_of(wide_graph(), 64, 8, 63)[1].aggregation.groups)
