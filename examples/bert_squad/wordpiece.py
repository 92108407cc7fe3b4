"""WordPiece: text to pieces of a vocabulary, each with the place in the text that it came from."""

import collections
import functools
import unicodedata

# text: as the vocabulary has it, with "##" inside of a word; begin, end: characters of the original text.
Piece = collections.namedtuple("Piece", "text begin end")

UNKNOWN = "[UNK]"
_LONGEST_WORD = 200  # longer ones are unknown
# Blocks of Chinese characters, each of which is a word by itself.
_IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


def read_vocabulary(path):
    """A vocab.txt, one piece a line, as an ordered dict of piece to number."""
    with open(path, encoding="utf-8") as lines:
        return collections.OrderedDict((line.rstrip("\r\n"), number) for number, line in enumerate(lines))


class WordPiece(object):
    """Cuts text into pieces.

    Args:
      vocabulary: dict of piece to number; has "[UNK]".
      lower_case: whether the vocabulary is one without capitals and accents.
    """

    def __init__(self, vocabulary, lower_case=True):
        self.vocabulary = vocabulary
        self._lower_case = lower_case
        self._cut = functools.lru_cache(maxsize=1 << 17)(self._cut_word)

    def pieces(self, text):
        """The Pieces of a text, in order."""
        found = []
        for word, places in self._words(text):
            at = 0
            for piece, length in self._cut(word):
                found.append(Piece(piece, places[at], places[at + length - 1] + 1))
                at += length
        return found

    def numbers(self, pieces):
        """The vocabulary's numbers of piece texts."""
        return [self.vocabulary[piece] for piece in pieces]

    def _words(self, text):
        """(word as the vocabulary spells it, where each of its characters stands in the text)."""
        word, places = [], []
        for place, character in enumerate(text):
            kind, spelled = _look_at(character, self._lower_case)
            if kind != _LETTER and word:
                yield "".join(word), places
                word, places = [], []
            if kind == _ALONE:
                yield character, [place]
            elif kind == _LETTER:
                word.extend(spelled)
                places.extend([place] * len(spelled))
        if word:
            yield "".join(word), places

    def _cut_word(self, word):
        """(piece, number of its characters) pairs: from the left always the longest piece that there is."""
        if len(word) > _LONGEST_WORD:
            return [(UNKNOWN, len(word))]
        found, begin = [], 0
        while begin < len(word):
            head = "##" if begin else ""
            for end in range(len(word), begin, -1):
                if head + word[begin:end] in self.vocabulary:
                    found.append((head + word[begin:end], end - begin))
                    begin = end
                    break
            else:
                return [(UNKNOWN, len(word))]
        return found


_LETTER, _ALONE, _BLANK = "letter", "alone", "blank"


@functools.lru_cache(maxsize=1 << 16)
def _look_at(character, lower_case):
    """What a character is, and how the vocabulary spells it; what is to be left out is a letter spelled ""."""
    category = unicodedata.category(character)
    if character in "\t\n\r" or category == "Zs":
        return _BLANK, ""
    if character == "\ufffd" or category in ("Cc", "Cf"):
        return _LETTER, ""
    if _is_punctuation(character, category) or any(low <= ord(character) <= high for low, high in _IDEOGRAPHS):
        return _ALONE, character
    if not lower_case:
        return _LETTER, character
    # An accent is a character of its own after decomposition.
    parts = unicodedata.normalize("NFD", character.lower())
    return _LETTER, "".join(part for part in parts if unicodedata.category(part) != "Mn")


def _is_punctuation(character, category):
    """All of ASCII that is neither letter nor digit, and what Unicode calls punctuation."""
    return category[0] == "P" or ("!" <= character <= "~" and not character.isalnum())
