"""The picture of a schedule, read back as XML."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from epl.capture.record import make_program
from epl.capture.strategy import replicate
from epl.env import Env
from epl.plan.cost.cost import forward_costs
from epl.plan.facts.analysis import analyse
from epl.plan.pipeline.schedules import Action, schedule
from epl.plan.pipeline.simulate import Slot, simulate, timeline_of
from epl.plan.report import web
from epl.plan.report.timeline_page import estimated_timeline, part, seconds
from epl.session.front_ends import preview
from tests.helpers.checks import pairs
from tests.helpers.machines import simple_machine
from tests.helpers.planning import batch, capture, sgd, variable


def line_of(strategy="PreferBackward", devices=2, batches=3, chunks=1):
    sizes = [1024] * (devices * chunks)
    return simulate(schedule(strategy, devices, batches, chunks), {"F": 1e-3, "B": 2e-3, "W": 1e-3}, 0, sizes)


def page(line, title, *args, **kwargs):
    return web.document(title, part(line, *args, **kwargs))


def pictures(text):
    """The large SVGs of a page, parsed."""
    found = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    return [svg for svg in found if svg.get("role") == "img"]


def boxes(svg):
    """(class, left, width, top, text, title) of each action."""
    found = []
    for group in svg.iter("g"):
        rect, text = group.find("rect"), group.find("text")
        place = tuple(float(rect.get(key)) for key in ("x", "width", "y"))
        number = text.text if text is not None else None
        found.append((rect.get("class"), place[0], place[1], place[2], number, group.find("title").text))
    return found


@pytest.mark.parametrize("strategy", ["PreferForward", "PreferBackward", "ZeroBubble"])
def test_each_action_has_a_box(strategy):
    line = line_of(strategy)
    (svg,) = pictures(page(line, "title"))
    found = boxes(svg)
    wanted = [slot for slots in line.slots for slot in slots]
    assert [box[0] for box in found] == [slot.action.kind for slot in wanted]
    assert [box[4] for box in found] == [str(slot.action.micro_batch) for slot in wanted]
    scale = found[0][2] / 1e-3
    for box, slot in pairs(found, wanted):
        assert box[1] - found[0][1] == pytest.approx(slot.start * scale, abs=0.1)
        assert box[2] == pytest.approx((slot.end - slot.start) * scale, abs=0.1)
    assert len({box[3] for box in found}) == 2  # a row per device


def test_text():
    text = page(line_of(), "a < b", ["first & only", "second"], notes=["1 < 2"])
    assert "<h1>a &lt; b</h1>" in text and "first &amp; only" in text and "<p>1 &lt; 2</p>" in text
    assert "<h2>Estimated: 12 ms, bubble 25.0 %</h2>" in text
    rows = re.findall(r"<tr>(.*?)</tr>", text)
    cells = [re.findall(r"<td>(.*?)</td>", row) for row in rows]
    assert cells[1] == ["0", "first &amp; only", "0", "1 ms", "2 ms", "25.0 %", "2", "2.0 KiB"]
    assert cells[2] == ["1", "second", "1", "1 ms", "2 ms", "25.0 %", "1", "1.0 KiB"]
    (svg,) = pictures(text)
    assert "forward, stage 1, micro-batch 0: 1 ms to 2 ms" in [box[5] for box in boxes(svg)]
    assert [t.text for t in svg.iter("text") if t.get("class") == "label"] == ["stage 0", "stage 1"]
    ticks = [t.text for t in svg.iter("text") if t.get("class") == "tick"]
    assert ticks[:3] == ["0 s", "2 ms", "4 ms"] and ticks[-1] == "12 ms"


def test_nothing_is_loaded_and_both_colour_schemes():
    text = page(line_of(), "title")
    assert not re.search(r"(?i)https?:|<script|<link|<img|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text


def test_legend_has_what_the_picture_has():
    assert "gradients of weights" in page(line_of("ZeroBubble"), "title")
    assert "gradients of weights" not in page(line_of("PreferForward"), "title")
    assert "idle (bubble)" in page(line_of(), "title")


def test_chunks_share_a_row():
    (svg,) = pictures(page(line_of("Interleaved", 2, 4, 2), "title"))
    assert [t.text for t in svg.iter("text") if t.get("class") == "label"] == ["stages 0, 2", "stages 1, 3"]
    shades = {rect.get("fill-opacity") for rect in svg.iter("rect") if rect.get("class") == "F"}
    assert len(shades) == 2


def test_measured_track():
    measured = timeline_of(
        [[Slot(Action("F", 0, 0), 7.0, 8.0), Slot(Action("B", 0, 0), 10.0, 11.0)], [Slot(Action("F", 1, 0), 8.0, 9.0)]],
        2,
    )
    text = page(line_of(), "title", measured=measured)
    assert "<h2>Measured: 4 s, bubble 62.5 %</h2>" in text
    first, second = pictures(text)
    assert len(boxes(first)) == 12 and len(boxes(second)) == 3
    assert boxes(second)[0][1] == boxes(first)[0][1]  # times count from the first action
    assert boxes(second)[0][5] == "forward, stage 0, micro-batch 0: 0 s to 1 s"
    assert "have a scale each" in text


def test_what_was_measured_has_the_scale_of_what_was_estimated():
    measured = timeline_of([[Slot(Action("F", 0, 0), 0.0, 3e-3)], [Slot(Action("F", 1, 0), 3e-3, 18e-3)]], 2)
    text = page(line_of(), "title", measured=measured)
    first, second = (boxes(svg) for svg in pictures(text))
    assert first[0][2] == pytest.approx(second[0][2] / 3, abs=0.1) and "have a scale each" not in text


def test_many_actions_stay_readable_or_lose_their_numbers():
    (wide,) = pictures(page(line_of(batches=60), "title"))
    assert all(box[4] is not None for box in boxes(wide)) and float(wide.get("width")) > 1100
    (capped,) = pictures(page(line_of(batches=900), "title"))
    assert float(capped.get("width")) < 13000
    assert any(box[4] is None for box in boxes(capped))


@pytest.mark.parametrize(
    "value, text", [(0, "0 s"), (2.5, "2.5 s"), (0.0125, "12.5 ms"), (3e-6, "3 µs"), (4e-8, "40 ns")]
)
def test_seconds(value, text):
    assert seconds(value) == text


def test_page_of_a_plan(tmp_path, capsys, monkeypatch):
    with capture() as graph:
        with replicate(1, name="bottom"):
            h = tf.tanh(tf.matmul(batch(8, 4), variable("w0", (4, 16))))
        with replicate(1, name="top"):
            sgd(tf.reduce_sum(tf.tanh(tf.matmul(h, variable("w1", (16, 2))))))
    monkeypatch.setenv("EPL_GPU_PER_WORKER", "4")
    monkeypatch.setenv("EPL_DEVICE", "gpu")
    Env.get().reset()
    path = str(tmp_path / "out.html")
    assert preview.show(graph, preview.parser().parse_args(["--timeline", path, "some/train.py"])) == 0
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert "<h1>train.py: PreferBackward, 2 stages, 1 micro-batch</h1>" in text
    (svg,) = pictures(text)
    assert [box[0] for box in boxes(svg)] == ["F", "B", "F", "B"]
    assert "2 model replicas" in capsys.readouterr().out
    missing = str(tmp_path / "missing" / "out.html")
    assert preview.show(graph, preview.parser().parse_args(["--timeline", missing, "train.py"])) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "rows, options, counted", [(None, [], 32), (24, [], 24), (24, ["--batch", "7"], 7), (None, ["--batch", "7"], 7)]
)
def test_the_batch_of_a_page(tmp_path, monkeypatch, rows, options, counted):
    with capture() as graph:
        x = tf.placeholder(tf.float32, [None, 4])
        if rows:
            data = tf.data.Dataset.from_tensor_slices(np.ones([50, 4], np.float32)).batch(rows)
            x = tf.data.make_one_shot_iterator(data).get_next()
        sgd(tf.reduce_sum(tf.tanh(tf.matmul(x, variable("w", (4, 16))))))
    monkeypatch.setenv("EPL_DEVICE", "cpu")
    Env.get().reset()
    path = tmp_path / "out.html"
    assert preview.show(graph, preview.parser().parse_args(["--timeline", str(path)] + options + ["train.py"])) == 0
    assert "an unknown batch counted as %d;" % counted in path.read_text(encoding="utf-8")


def test_times_come_from_the_model():
    with capture() as graph:
        h = tf.matmul(batch(8, 4), variable("w0", (4, 16)), name="first")
        y = tf.matmul(h, variable("w1", (16, 2)), name="second")
        sgd(tf.reduce_sum(tf.tanh(y, name="tanh"), name="loss"))
    model = make_program(graph)
    machine = simple_machine(flops=1.0, memory=1e30, link=4.0, start=0.0)
    costs = forward_costs(model.graph, analyse(model).cloned, model.spec_of, machine)
    line = estimated_timeline(model.graph, costs, {"second": 1, "tanh": 1}, 2, "PreferBackward", 2)
    assert [slot.end - slot.start for slot in line.slots[0][:2]] == [1024, 1024]
    assert line.slot(Action("F", 1, 0))[1:] == (1024 + 8 * 16, 1024 + 8 * 16 + 512)
    assert line.slot(Action("B", 1, 0)).end - line.slot(Action("B", 1, 0)).start == 1024
    assert line.slot(Action("B", 0, 0)).end - line.slot(Action("B", 0, 0)).start == 1024
    split = estimated_timeline(model.graph, costs, {"second": 1, "tanh": 1}, 2, "ZeroBubble", 2)
    assert split.slot(Action("W", 1, 0)).end - split.slot(Action("W", 1, 0)).start == 512
    assert split.slot(Action("B", 1, 0)).end - split.slot(Action("B", 1, 0)).start == 512
    # A micro-batch keeps the batch and h in the first stage (two are alive), tanh's result in the second.
    assert line.peak_bytes == (2 * (8 * 4 * 4 + 8 * 16 * 4), 8 * 2 * 4)
