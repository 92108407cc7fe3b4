"""The picture of what is divided over devices, read back as XML."""

import itertools
import os
import re
import xml.etree.ElementTree as ElementTree

import pytest
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.plan.report.placements_page import _room_for, blocks_of, placements_page, scope_of
from epl.session.estimated_program import estimate_exchanges
from epl.session.front_ends import preview
from tests.helpers import planning

COLOCATED = {"cluster__colocate_split_and_replicate": True}


def model(divided=True):
    rows = 8 if divided else None
    x, labels = tf.placeholder(tf.float32, [rows, 4]), tf.placeholder(tf.int32, [rows])
    with epl.replicate(2), tf.name_scope("first"):
        features = tf.tanh(tf.matmul(x, tf.get_variable("kernel", [4, 6])))
    with epl.split(2) if divided else epl.replicate(2), tf.name_scope("classifier"):
        logits = tf.matmul(features, tf.get_variable("classes", [6, 1000]))
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    planning.sgd(tf.reduce_mean(each, name="loss"))


def drawn(title="title"):
    with planning.capture() as graph:
        model()
    program = planning.compiled(graph, 1, 2, **COLOCATED)
    found = estimate_exchanges(program, 8)
    text = placements_page(program, found, title)
    return program, found, text, ElementTree.fromstring(re.search(r"<svg.*</svg>", text, re.DOTALL).group())


@pytest.mark.once
def test_blocks_bars_and_arcs():
    program, exchanges, _, svg = drawn()
    blocks = blocks_of(program)
    groups = [g for g in svg.iter("g") if g.get("class") == "block"]
    names = [g.find("title").text.split(": ")[0] for g in groups]
    assert names == list(blocks.kinds)
    assert any(name.startswith("first") for name in names) and any(name.startswith("classifier") for name in names)
    tops = []
    for group in groups:
        bars = [tuple(float(rect.get(key)) for key in ("x", "width", "y")) for rect in group.iter("rect")]
        assert sum(width for _, width, _ in bars) == pytest.approx(260, abs=0.1)
        for (left, width, _), (following, _, _) in zip(bars, bars[1:]):
            assert left + width == pytest.approx(following, abs=0.1)
        tops.append(bars[0][2])
    assert tops == sorted(set(tops)) and tops[-1] + 22 <= float(svg.get("height"))
    (divided,) = [g for g, name in zip(groups, names) if name == "classifier/MatMul"]
    assert [rect.get("fill") for rect in divided.iter("rect")] == ["#54a24b"]  # logits: parts of dimension 1
    arcs = [g for g in svg.iter("g") if g.get("class") == "arc"]
    told = "\n".join(arc.find("title").text for arc in arcs)
    assert len(told.splitlines()) == len(exchanges) == 5
    assert "all_gather, 96 bytes: 'first/Tanh' is made whole for 'classifier/MatMul' (MatMul)" in told
    assert "96 bytes" in [text.text for text in svg.iter("text") if text.get("class") == "label-on"]
    # The arc of the features begins at their block and ends at that of the product which wants them whole.
    (arc,) = [each for each in arcs if "all_gather" in each.find("title").text]
    numbers = [float(text) for text in re.findall(r"[\d.]+", arc.find("path").get("d"))]
    middles = {name: top + 11 for name, top in zip(names, tops)}
    assert numbers[1] == middles["first/Tanh"] and numbers[-1] == middles["classifier/MatMul"]


@pytest.mark.once
def test_the_legend_has_what_is_there_and_labels_cover_no_others():
    _, exchanges, text, _ = drawn()
    told = re.findall(r"</i>(.*?)</li>", text)
    assert "parts of dimension 1" in told and "parts of a further dimension" not in told
    assert [words for words in told if words.startswith("exchanged")] == ["exchanged, forward", "exchanged, backward"]
    ends = [(0, 0, "forward"), (0, 0, "backward"), (0, 1, "forward"), (1, 0, "backward"), (0, 0, "apply")]
    labels = []
    for each in ends:
        labels.append(_room_for(each, "108.0 KiB", labels))
    for one, other in itertools.combinations(labels, 2):
        assert abs(one.y - other.y) >= 14 or one.x + one.wide < other.x or other.x + other.wide < one.x


@pytest.mark.once
def test_text_is_escaped_and_nothing_is_loaded():
    _, exchanges, text, _ = drawn("a < b & c")
    assert "<h1>a &lt; b &amp; c</h1>" in text and "a < b" not in text
    assert not re.search(r"(?i)https?:|<script|<link|<img|@import|url\(", text)
    assert len(re.findall("<tr><td>", text)) == len(exchanges)


@pytest.mark.parametrize(
    "name, depth, scope",
    [
        ("a/b/c", 1, "a"),
        ("a/b/c", 2, "a/b"),
        ("gradients/a/b_grad/MatMul", 2, "a/b"),
        ("training/gradients_1/a/b_grad/MatMul", 3, "a/b"),
    ],
)
@pytest.mark.once
def test_gradients_belong_to_the_block_of_what_they_are_of(name, depth, scope):
    assert scope_of(name, depth) == scope


def shown(divided, path, monkeypatch):
    with planning.capture() as graph:
        model(divided)
    monkeypatch.setenv("EPL_GPU_PER_WORKER", "2")
    monkeypatch.setenv("EPL_DEVICE", "gpu")
    Env.get().reset(epl.Config({"cluster.colocate_split_and_replicate": True}))
    return preview.show(graph, preview.parser().parse_args(["--placements", str(path), "some/train.py"]))


@pytest.mark.once
def test_the_command_writes_all_or_nothing(tmp_path, capsys, monkeypatch):
    page = tmp_path / "out.html"
    assert shown(True, page, monkeypatch) == 0
    before = page.read_text(encoding="utf-8")
    assert "What is divided in train.py over 2 devices" in before
    monkeypatch.setattr(
        preview.placements_page, "placements_page", lambda *_: "half a page \udcff"
    )  # which no encoding can write
    with pytest.raises(UnicodeEncodeError):
        shown(True, page, monkeypatch)
    assert page.read_text(encoding="utf-8") == before and os.listdir(str(tmp_path)) == ["out.html"]
    capsys.readouterr()
    assert shown(True, tmp_path / "missing" / "out.html", monkeypatch) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.once
def test_a_program_that_divides_nothing(tmp_path, capsys, monkeypatch):
    assert shown(False, tmp_path / "out.html", monkeypatch) == 2
    assert "no tensor of this program is divided over devices; use epl.split" in capsys.readouterr().err
    assert not os.listdir(str(tmp_path))


@pytest.mark.once
def test_one_page_has_all_parts(tmp_path, monkeypatch, capsys):
    with planning.capture() as graph:
        model()
    monkeypatch.setenv("EPL_GPU_PER_WORKER", "2")
    monkeypatch.setenv("EPL_DEVICE", "gpu")
    Env.get().reset(epl.Config({"cluster.colocate_split_and_replicate": True}))
    path = tmp_path / "report.html"
    assert (
        preview.show(graph, preview.parser().parse_args(["--report", str(path), "--machine", "V100", "some/train.py"]))
        == 0
    )
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r'<h2 class="part">(.*?)</h2>', text)
    assert [each.split(":")[0] for each in headings] == [
        "Plan",
        "Schedule",
        "Memory",
        "What is divided, and what is exchanged",
    ]
    assert re.findall(r'<a href="#(.*?)">', text) == re.findall(r'<section class="part" id="(.*?)">', text)
    for words in (
        "1 model replica on 1 worker x 2 GPU",
        "Estimated for V100",
        "Each device has ",
        "idle (bubble)",
        "estimated: peak",
        "is made whole for",
    ):
        assert words in text
    assert not re.search(r"(?i)https?:|<link|<img|@import|url\(", text)
