"""What a configuration key is: name, type, default, meaning, and the check of a value."""

import dataclasses
import math
import numbers
import re
from typing import Any, Tuple

from epl.errors import ConfigError

INTEGER, NUMBER, NUMBERS, INTEGERS, BOOL, STRING = "integer", "number", "numbers", "integers", "bool", "str"
_LISTS = (NUMBERS, INTEGERS)

_BOOL_TEXTS = {"true": True, "1": True, "false": False, "0": False}


@dataclasses.dataclass(frozen=True)
class Key:
    """One configuration key.

    Attributes:
      name: "category.attribute".
      type: INTEGER, NUMBER, NUMBERS or INTEGERS (a list of them, kept as a tuple), BOOL or STRING.
      default: value when nobody sets it. None is a legal value only where it is the default.
      doc: meaning and unit, in one or two sentences.
      minimum: smallest legal number, or None.
      none_too: a number that stands for None, besides None itself; None: there is none.
      above: the number must be greater than this, or None.
      below: the number must be less than this, or None.
      choices: the legal strings, compared without regard to case; empty: any string.
      words: strings that are legal besides a number, or a list of them.
      pattern: regular expression that a string has to match, or None; `pattern_doc` says the same in words.
      many: a list of strings without commas may stand for the string that has them separated by commas.
      per_worker: workers may have different values, as the key says something about one process or machine.
    """

    name: str
    type: str
    default: Any
    doc: str
    minimum: Any = None
    none_too: Any = None
    above: Any = None
    below: Any = None
    choices: Tuple[str, ...] = ()
    words: Tuple[str, ...] = ()
    pattern: Any = None
    pattern_doc: str = ""
    many: bool = False
    per_worker: bool = False

    @property
    def category(self):
        return self.name.split(".")[0]

    @property
    def attribute(self):
        return self.name.split(".")[1]

    @property
    def variable(self):
        """Name of the environment variable that sets this key."""
        return "EPL_" + self.name.upper().replace(".", "_")

    def allowed(self):
        """What may stand for this key, in words."""
        if self.choices:
            text = "one of " + ", ".join('"%s"' % choice for choice in self.choices)
        elif self.type == BOOL:
            text = "True or False"
        elif self.type == STRING:
            text = (self.pattern_doc or "a string") + (", or a list of strings without commas" if self.many else "")
        else:
            text = _IN_WORDS[self.type]
            if self.minimum is not None:
                text += " >= %s" % self.minimum
            if self.above is not None:
                text += " > %s" % self.above
            if self.below is not None:
                text += "%s < %s" % (" and" if self.minimum is not None else "", self.below)
            text += "".join(' or "%s"' % word for word in self.words)
        text += " or None" if self.default is None else ""
        return text if self.none_too is None else text + " (or %d, which means None)" % self.none_too

    def check(self, value, source=""):
        """Return `value` in its normal form.

        Args:
          value: what the user gave.
          source: where it came from, for the message, such as "environment variable X".

        Raises:
          ConfigError: wrong type or value.
        """
        checked = self._normal(value)
        if checked is _WRONG:
            raise ConfigError(
                "%s=%r%s is not valid: it must be %s. The default is %r."
                % (self.name, value, source and " (from %s)" % source, self.allowed(), self.default)
            )
        return checked

    def _normal(self, value):
        if value is None:
            return None if self.default is None else _WRONG
        if self.type == BOOL:
            return value if isinstance(value, bool) else _WRONG
        if self.type in _LISTS and not isinstance(value, str):
            return self._normal_numbers(value)
        if self.many and isinstance(value, (list, tuple)):
            plain = all(isinstance(each, str) and "," not in each for each in value)
            return ",".join(value) if plain else _WRONG
        if self.type == STRING or isinstance(value, str):
            return self._normal_text(value)
        return self._normal_number(value)

    def _normal_text(self, value):
        if not isinstance(value, str):
            return _WRONG
        legal = self.choices if self.type == STRING else self.words
        if legal or self.type != STRING:
            return next((word for word in legal if word.lower() == value.lower()), _WRONG)
        return value if self.pattern is None or re.match(self.pattern, value) else _WRONG

    def _normal_number(self, value):
        # bool is an int to Python, but `num_micro_batch=True` is a slip of the pen.
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return _WRONG
        if isinstance(value, numbers.Integral):
            value = int(value)
        else:
            value = float(value)
            if self.type in (INTEGER, INTEGERS) or not math.isfinite(value):
                return _WRONG
        if self.none_too is not None and value == self.none_too:
            return None
        if (self.minimum is not None and value < self.minimum) or (self.above is not None and value <= self.above):
            return _WRONG
        if self.below is not None and value >= self.below:
            return _WRONG
        return value

    def _normal_numbers(self, value):
        if not isinstance(value, (list, tuple)):
            return _WRONG
        found = [self._normal_number(each) for each in value]
        if any(each is _WRONG for each in found):
            return _WRONG
        return tuple(found if self.type == INTEGERS else map(float, found))

    def text(self, value):
        """The text of which `parse` makes the legal `value`."""
        if self.type in _LISTS and not isinstance(value, str):
            return ",".join(map(str, value))
        return str(value).lower() if value is None or isinstance(value, bool) else str(value)

    def parse(self, text):
        """Value of the environment variable text `text`; raises as `check` does."""
        source = "environment variable %s" % self.variable
        word = text.strip()
        value = word
        if self.default is None and word.lower() in ("", "none"):
            value = None
        elif self.type == BOOL:
            value = _BOOL_TEXTS.get(word.lower(), text)
            if value is text:
                raise ConfigError(
                    '%s=%r is not valid: %s must be one of "true", "false", "1", "0". The default is %r.'
                    % (self.variable, text, self.name, self.default)
                )
        elif self.type in (INTEGER, NUMBER):
            value = _parse_number(word)
        elif self.type in _LISTS and word.lower() not in self.words:
            bare = word[1:-1].strip() if word[:1] == "[" and word[-1:] == "]" else word  # as files and programs have it
            value = [_parse_number(each.strip()) for each in bare.split(",")] if bare else []
        return self.check(value, source)


_WRONG = object()
_IN_WORDS = {INTEGER: "an integer", NUMBER: "a number", NUMBERS: "a list of numbers", INTEGERS: "a list of integers"}


def _parse_number(word):
    """`word` as int or float where it is one, else `word` itself, for the check to judge."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
