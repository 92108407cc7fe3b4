"""Questions of a file in SQuAD format, and the windows of text in which the model looks for their answers."""

import collections
import json
import logging

import numpy as np

_LOG = logging.getLogger(__name__)

# answers: list of (text, first character in the context); empty for a question without an answer. context: number of
# the paragraph in SquadFile.contexts.
Question = collections.namedtuple("Question", "id text context answers")


class SquadFile(object):
    """What a SQuAD file holds.

    Attributes:
      contexts: texts of the paragraphs.
      questions: Questions in the order of the file.
      version_2: whether there may be questions without an answer.
    """

    def __init__(self, path):
        with open(path, encoding="utf-8") as source:
            content = json.load(source)
        if "data" not in content:
            raise ValueError("%s is no file in SQuAD format: it has no 'data'" % path)
        self.contexts, self.questions = [], []
        self.version_2 = False
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                self.contexts.append(paragraph["context"])
                for entry in paragraph["qas"]:
                    self._add(entry)

    def _add(self, entry):
        self.version_2 = self.version_2 or "is_impossible" in entry
        answers = [(a["text"], a["answer_start"]) for a in entry.get("answers", ())]
        if entry.get("is_impossible"):
            answers = []
        self.questions.append(Question(entry["id"], entry["question"], len(self.contexts) - 1, answers))


# One window over the paragraph of a question.
#   question: its number; begin: the window's first piece of the paragraph; lead: inputs before that piece.
#   tokens: numbers of the pieces; segments: 0 for question, 1 for text.
#   start, end: places of the answer in `tokens`, 0 (the [CLS]) when it is not in this window; training only.
#   owned: for each of the window's pieces whether this window, of all windows that have it, shows most around it.
Window = collections.namedtuple("Window", "question begin lead tokens segments start end owned")


class Windows(object):
    """The windows of some questions.

    Args:
      file: a SquadFile.
      numbers: which of its questions.
      cutter: a WordPiece.
      length: inputs of a window, special ones included.
      stride: pieces between the beginnings of two windows.
      longest_question: pieces of a question that are used.
      training: place the answers; questions whose answer does not stand where the file says are left out.

    Attributes:
      list: the Windows.
      pieces: dict of context number to the Pieces of that paragraph.
    """

    def __init__(self, file, numbers, cutter, length, stride, longest_question, training):
        if length - 3 - longest_question < 1 or stride < 1:
            raise ValueError(
                "max_seq_length=%d leaves no room for text beside a question of max_query_length=%d pieces and 3 "
                "special ones, or doc_stride=%d is not positive" % (length, longest_question, stride)
            )
        self.list, self.pieces = [], {}
        self._cutter, self._length, self._stride, self._longest = cutter, length, stride, longest_question
        for number in numbers:
            question = file.questions[number]
            context = file.contexts[question.context]
            if question.context not in self.pieces:
                self.pieces[question.context] = cutter.pieces(context)
            span = None
            if training and question.answers:
                span = answer_pieces(context, self.pieces[question.context], *question.answers[0])
                if span is None:
                    _LOG.warning("question %s: '%s' does not stand where it should", question.id, question.answers[0])
                    continue
            self._add(number, question, span)

    def _add(self, number, question, span):
        text = self.pieces[question.context]
        asked = [piece.text for piece in self._cutter.pieces(question.text)[: self._longest]]
        head = ["[CLS]"] + asked + ["[SEP]"]
        parts = cut(len(text), self._length - len(head) - 1, self._stride)
        owner = owners(parts, len(text))
        for part, (begin, size) in enumerate(parts):
            tokens = head + [piece.text for piece in text[begin : begin + size]] + ["[SEP]"]
            start = end = 0
            if span is not None and begin <= span[0] and span[1] < begin + size:
                start, end = (len(head) + place - begin for place in span)
            self.list.append(
                Window(
                    question=number,
                    begin=begin,
                    lead=len(head),
                    tokens=self._cutter.numbers(tokens),
                    segments=[0] * len(head) + [1] * (size + 1),
                    start=start,
                    end=end,
                    owned=[owner[place] == part for place in range(begin, begin + size)],
                )
            )

    def arrays(self):
        """What the model is given, a row for each window.

        Returns:
          dict of int32 arrays: "tokens", "mask" (1 where there is a token) and "segments" of [windows, length],
          "row" (0, 1, ...), "start" and "end" of [windows].
        """
        size = (len(self.list), self._length)
        found = {name: np.zeros(size, np.int32) for name in ("tokens", "mask", "segments")}
        for row, window in enumerate(self.list):
            found["tokens"][row, : len(window.tokens)] = window.tokens
            found["segments"][row, : len(window.segments)] = window.segments
            found["mask"][row, : len(window.tokens)] = 1
        found["row"] = np.arange(len(self.list), dtype=np.int32)
        for name in ("start", "end"):
            found[name] = np.array([getattr(window, name) for window in self.list], np.int32)
        return found


def answer_pieces(context, pieces, text, start):
    """(first, last) piece of an answer that begins at the character `start`; None if it does not stand there."""
    if " ".join(context[start : start + len(text)].split()) != " ".join(text.split()):
        return None
    touched = [i for i, piece in enumerate(pieces) if piece.end > start and piece.begin < start + len(text)]
    return (touched[0], touched[-1]) if touched else None


def cut(total, room, stride):
    """(begin, size) of the windows over `total` pieces, each of at most `room`; at least one."""
    begin, found = 0, []
    while True:
        size = min(room, total - begin)
        found.append((begin, size))
        if begin + size >= total:
            return found
        begin += min(size, stride)


def owners(parts, total):
    """For each piece the number of the window that shows most on the side where it shows less.

    Of equals the larger window has it, then the first.
    """
    best = [(-1, 0)] * total
    owner = [0] * total
    for number, (begin, size) in enumerate(parts):
        for place in range(begin, begin + size):
            shown = (min(place - begin, begin + size - 1 - place), size)
            if shown > best[place]:
                best[place], owner[place] = shown, number
    return owner
