"""What examples/bert_squad does outside of TensorFlow: pieces of text, windows, answers, scores."""

import json
import os
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.once

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXAMPLE = os.path.join(ROOT, "examples", "bert_squad")
sys.path.insert(0, EXAMPLE)

import answers  # noqa: E402  found through the path above
import score  # noqa: E402
import squad  # noqa: E402
import wordpiece  # noqa: E402

PIECES = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the goat eats gr ##a ##ass ##ss zurich in , . ' o ##s s 中 un ##able where does"
).split()
VOCABULARY = {piece: number for number, piece in enumerate(PIECES)}
CUTTER = wordpiece.WordPiece(VOCABULARY)


def texts(pieces):
    return [piece.text for piece in pieces]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("The goat  eats\tgrass.", ["the", "goat", "eats", "gr", "##ass", "."]),  # the longest piece, not ##a ##ss
        ("Zürich,in Zu\u0308rich", ["zurich", ",", "in", "zurich"]),  # one character or two for the ü
        ("o's", ["o", "'", "s"]),
        ("goats grab", ["goat", "##s", "[UNK]"]),  # a word of which a part is unknown is unknown
        ("in中in", ["in", "中", "in"]),
        ("un\u200bable", ["un", "##able"]),  # what is not seen does not cut
        ("", []),
        ("g" * 201, ["[UNK]"]),
    ],
)
def test_pieces(text, expected):
    assert texts(CUTTER.pieces(text)) == expected


def test_pieces_know_their_place():
    text = "  The GOAT eats\u00a0Gra\u0301ss\u200b."
    places = [text[piece.begin : piece.end] for piece in CUTTER.pieces(text)]
    assert places == ["The", "GOAT", "eats", "Gr", "a\u0301ss", "."]


def test_capitals_are_kept_when_the_vocabulary_has_them():
    cased = wordpiece.WordPiece({"[UNK]": 0, "Ünder": 1, "under": 2}, lower_case=False)
    assert texts(cased.pieces("Ünder under UNDER")) == ["Ünder", "under", "[UNK]"]


def test_vocabulary_is_numbered_by_line(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("[PAD]\r\n中\n##s\n".encode("utf-8"))
    assert list(wordpiece.read_vocabulary(str(path)).items()) == [("[PAD]", 0), ("中", 1), ("##s", 2)]


@pytest.mark.parametrize(
    "total, room, stride, expected",
    [
        (5, 8, 3, [(0, 5)]),
        (8, 8, 3, [(0, 8)]),
        (10, 8, 3, [(0, 8), (3, 7)]),
        (10, 4, 4, [(0, 4), (4, 4), (8, 2)]),
        (10, 4, 9, [(0, 4), (4, 4), (8, 2)]),  # nothing is left out between two windows
        (0, 8, 3, [(0, 0)]),
    ],
)
def test_windows_cover_the_text(total, room, stride, expected):
    assert squad.cut(total, room, stride) == expected


def test_a_piece_belongs_to_the_window_that_shows_most_around_it():
    parts = [(0, 6), (3, 6), (6, 4)]
    # Piece 4 has 1 piece after it in the first window, 1 before it in the second: the first of equals has it. Piece 7
    # has 1 after it in the second, 1 before it in the third, which is smaller.
    assert squad.owners(parts, 10) == [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]


@pytest.fixture
def write(tmp_path):
    def make(paragraphs):
        path = tmp_path / "file.json"
        path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
        return squad.SquadFile(str(path))

    return make


def paragraph(context, *questions):
    """questions: (id, text, answer or None for a question that has none)."""
    made = []
    for name, text, answer in questions:
        entry = {"id": name, "question": text, "answers": []}
        if answer is None:
            entry["is_impossible"] = True
        else:
            entry["answers"] = [{"text": answer, "answer_start": context.index(answer)}]
        made.append(entry)
    return {"context": context, "qas": made}


CONTEXT = "The goat eats grass in Zürich. The goat eats the unable goats, where the goat eats."


def test_windows_of_a_question(write):
    file = write([paragraph(CONTEXT, ("q", "Where does the goat eats", "Zürich"))])
    made = squad.Windows(file, [0], CUTTER, 16, 4, 3, training=True)
    assert texts(made.pieces[0])[:8] == ["the", "goat", "eats", "gr", "##ass", "in", "zurich", "."]
    first, second = made.list[:2]
    spelled = [PIECES[number] for number in first.tokens]
    assert spelled[:5] == ["[CLS]", "where", "does", "the", "[SEP]"]  # no more than three pieces of the question
    assert spelled[5:] == texts(made.pieces[0])[:10] + ["[SEP]"]
    assert first.segments == [0] * 5 + [1] * 11
    assert spelled[first.start : first.end + 1] == ["zurich"]
    assert (second.begin, second.start, second.end) == (4, 5 + 6 - 4, 5 + 6 - 4)
    assert [w.start for w in made.list[2:]] == [0] * (len(made.list) - 2)  # the answer is not there
    # Every piece belongs to exactly one window.
    owned = [w.begin + i for w in made.list for i, own in enumerate(w.owned) if own]
    assert sorted(owned) == list(range(len(made.pieces[0])))
    arrays = made.arrays()
    assert arrays["tokens"].shape == (len(made.list), 16) and arrays["tokens"].dtype == np.int32
    assert arrays["mask"].sum(axis=1).tolist() == [len(w.tokens) for w in made.list]
    assert arrays["tokens"][-1, len(made.list[-1].tokens) :].tolist() == [0] * (16 - len(made.list[-1].tokens))


def test_answers_that_are_not_where_they_should_be_are_not_learnt(write, caplog):
    wrong = paragraph(CONTEXT, ("q", "where", "Zürich"), ("r", "where", "grass"))
    wrong["qas"][0]["answers"][0]["answer_start"] += 3
    made = squad.Windows(write([wrong]), [0, 1], CUTTER, 40, 8, 4, training=True)
    assert {w.question for w in made.list} == {1}
    assert "question q" in caplog.text


def test_an_answer_inside_of_a_word_takes_the_pieces_that_it_touches():
    pieces = CUTTER.pieces("the goats eats")
    assert answers_of(pieces, "the goats eats", "goats eats") == ["goat", "##s", "eats"]
    assert answers_of(pieces, "the goats eats", "oat") == ["goat"]


def answers_of(pieces, context, text):
    first, last = squad.answer_pieces(context, pieces, text, context.index(text))
    return texts(pieces)[first : last + 1]


def test_no_room_for_text(write):
    file = write([paragraph(CONTEXT, ("q", "where", "grass"))])
    with pytest.raises(ValueError, match="max_seq_length=16 leaves no room"):
        squad.Windows(file, [0], CUTTER, 16, 4, 13, training=False)


def test_no_squad_file(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="no file in SQuAD format"):
        squad.SquadFile(str(path))


def one_window(write):
    """(window, pieces): [CLS] where [SEP] the goat eats gr ##ass [SEP]."""
    file = write([paragraph("The goat eats grass", ("q", "where", "grass"))])
    made = squad.Windows(file, [0], CUTTER, 12, 4, 4, training=False)
    return made.list[0], made.pieces[0]


def logits(size, **places):
    values = np.zeros(size, np.float32)
    for place, value in places.items():
        values[int(place[1:])] = value
    return values


def test_spans_are_valid(write):
    window, pieces = one_window(write)
    # Best beginnings: [CLS] (not in the text), eats, goat. Best ends: the question, goat, ##ass.
    starts = logits(12, _0=9, _5=5, _4=4)
    ends = logits(12, _1=9, _4=3, _7=2)
    spans = answers.window_spans(window, pieces, starts, ends, n_best=3, longest=3)
    found = {"The goat eats grass"[span.begin : span.end]: span.score for span in spans}
    assert found == {"eats grass": 7.0, "goat": 7.0}  # "goat eats gr ##ass" has four pieces
    window = window._replace(owned=[True, True, False, True, True])
    assert [s.begin for s in answers.window_spans(window, pieces, starts, ends, 3, 4)] == [4, 4]  # both begin at "goat"


def test_choice():
    context = "ab ab cd"
    spans = [answers.Span(2.0, 6, 8), answers.Span(3.0, 3, 5), answers.Span(1.0, 0, 2), answers.Span(1.5, 0, 8)]
    found = answers.choose(context, spans, None, n_best=2)
    assert found["answer"] == "ab"
    assert [(each["text"], each["score"]) for each in found["n_best"]] == [("ab", 3.0), ("cd", 2.0)]  # "ab" once
    assert found["n_best"][0]["probability"] == pytest.approx(np.e / (np.e + 1))
    assert answers.choose(context, [], None, 2) == {"answer": "", "n_best": []}


@pytest.mark.parametrize(
    "no_answer, threshold, expected", [(3.5, 0.0, ""), (3.5, 1.0, "ab"), (2.9, 0.0, "ab"), (2.9, -0.2, "")]
)
def test_choice_of_no_answer(no_answer, threshold, expected):
    found = answers.choose("ab", [answers.Span(3.0, 0, 2)], no_answer, 5, threshold)
    assert found["answer"] == expected
    assert sorted(each["text"] for each in found["n_best"]) == ["", "ab"]


def test_score_of_no_answer():
    assert answers.no_answer_score([1.5, 9], [2.0, 9]) == 3.5


@pytest.mark.parametrize(
    "text, expected",
    [
        ("The  Goat's grass!", "goats grass"),
        ("an apple, a THE pear", "apple pear"),
        ("theatre anna", "theatre anna"),
        ("a-b the-c", "ab thec"),  # punctuation goes first, then articles
        ("—The “x”", "— “x”"),  # no ASCII
        ("A", ""),
    ],
)
def test_normalisation(text, expected):
    assert score.normalise(text) == expected


@pytest.mark.parametrize(
    "prediction, gold, exact, f1",
    [
        ("the goat", "Goat!", 1, 1),
        ("old goat", "the goat", 0, 2 / 3),  # one of two, one of one
        ("goat goat", "goat", 0, 2 / 3),  # counted as often as both have it
        ("a b c d", "c d x y", 0, 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4)),  # "a" is an article
        ("sheep", "goat", 0, 0),
        ("", "goat", 0, 0),
    ],
)
@pytest.mark.parametrize("version_2", [False, True])
def test_scores_of_one_answer(prediction, gold, exact, f1, version_2):
    assert score.exact_match(prediction, gold) == exact
    assert score.f1(prediction, gold, version_2) == pytest.approx(f1)


def test_nothing_against_nothing():
    assert score.exact_match("the", "") == 1
    assert score.f1("", "", version_2=True) == 1
    assert score.f1("", "", version_2=False) == 0


def test_scores_of_a_file(write):
    questions = [("a", "?", "goat"), ("b", "?", "grass"), ("c", "?", "Zürich"), ("d", "?", "goats")]
    content = paragraph(CONTEXT, *questions)
    content["qas"][1]["answers"].append({"text": "the goat eats grass", "answer_start": 0})
    found = score.score(write([content]), {"a": "a goat", "b": "eats grass", "c": "in Zürich now"})
    # The best over gold answers: "eats grass" against "grass" has 2/3, against the other 2 * 2 / (2 + 3).
    assert found == {
        "exact_match": 25.0,
        "f1": pytest.approx(100 * (1 + 4 / 5 + 2 / 4) / 4),
        "total": 4,
        "missing": 1,
    }


def test_scores_with_questions_without_an_answer(write):
    file = write([paragraph(CONTEXT, ("a", "?", "goat"), ("b", "?", None), ("c", "?", None), ("d", "?", "grass"))])
    assert file.version_2
    found = score.score(file, {"a": "goat", "b": "", "c": "goat", "d": ""})
    assert (found["exact_match"], found["f1"]) == (50.0, 50.0)


def test_nothing_to_score_against(write):
    content = paragraph(CONTEXT, ("a", "?", "goat"))
    content["qas"][0]["answers"] = []
    with pytest.raises(ValueError, match="question a has no gold answer"):
        score.score(write([content]), {"a": "goat"})
