"""`tf.contrib.training.HParams`: named hyperparameters with types, set from text or from JSON."""

import json
import numbers
import re

# name, name[2], then "=": a value up to the next comma, or a list in brackets.
_ASSIGNMENT = re.compile(
    r"\s*(?P<name>[A-Za-z]\w*)\s*(\[\s*(?P<index>\d+)\s*\])?\s*="
    r"\s*(?:(?P<value>[^,\[]*)|\[(?P<list>[^\]]*)\])\s*(?:,|$)"
)


def parse_values(values, type_map, ignore_unknown=False):
    """Values of hyperparameters from text such as "units=8,rates=[0.1,0.2],rates[1]=0.3".

    Args:
      values: the text.
      type_map: dict of name to type.
      ignore_unknown: leave out names that are not in it.

    Returns:
      dict of name to value, list of values, or {index: value} for single elements.

    Raises:
      ValueError: the text is malformed, a name is unknown or set twice, or a value is not of its type.
    """
    found, place = {}, 0
    while place < len(values):
        match = _ASSIGNMENT.match(values, place)
        if match is None:
            raise ValueError("Malformed hyperparameter value: %s" % values[place:])
        place, name = match.end(), match.group("name")
        if name not in type_map:
            if ignore_unknown:
                continue
            raise ValueError("Unknown hyperparameter type for %s" % name)
        _assign(found, name, match, type_map[name], values)
    return found


def _assign(found, name, match, kind, values):
    if match.group("index") is not None:
        if match.group("list") is not None:
            raise ValueError("Could not parse hparam %s in '%s': an element cannot be a list" % (name, values))
        elements, index = found.setdefault(name, {}), int(match.group("index"))
        if not isinstance(elements, dict) or index in elements:
            raise ValueError("Multiple assignments to variable '%s' in %s" % (name, values))
        elements[index] = _parsed(name, match.group("value"), kind)
        return
    if name in found:
        raise ValueError("Multiple assignments to variable '%s' in %s" % (name, values))
    if match.group("list") is not None:
        parts = [part for part in re.split("[ ,]", match.group("list")) if part]
        found[name] = [_parsed(name, part, kind) for part in parts]
    else:
        found[name] = _parsed(name, match.group("value"), kind)


def _parsed(name, text, kind):
    text = text.strip()
    try:
        if kind is bool:
            known = {"true": True, "1": True, "false": False, "0": False}
            return known[text.lower()]
        return kind(text)
    except (KeyError, ValueError):
        raise ValueError("Could not parse hparam '%s' of type '%s' with value '%s'" % (name, kind.__name__, text))


def _cast(name, kind, value):
    """A value as the type that a hyperparameter has; None stays.

    Raises:
      ValueError: that would lose something, such as the fraction of a number.
    """
    problem = "Could not cast hparam '%s' of type '%s' from value %r" % (name, kind, value)
    if value is None or issubclass(kind, type(None)) or isinstance(value, kind) and not isinstance(value, bool):
        return value
    text, given_text = issubclass(kind, (str, bytes)), isinstance(value, (str, bytes))
    if text != given_text or issubclass(kind, bool) != isinstance(value, bool):
        raise ValueError(problem)
    if issubclass(kind, numbers.Integral) and not isinstance(value, numbers.Integral):
        raise ValueError(problem)
    if issubclass(kind, numbers.Number) and not isinstance(value, numbers.Number):
        raise ValueError(problem)
    return kind(value)


class HParams(object):
    """Hyperparameters as attributes. The type of each is that of its first value; a list has that of its first element.

    Args:
      hparam_def: not served: messages of contrib.
      model_structure: anything, kept beside the values.
      **kwargs: names and values.

    Raises:
      ValueError: a name is taken, a list is empty, or a value does not fit its type.
    """

    def __init__(self, hparam_def=None, model_structure=None, **kwargs):
        self._hparam_types = {}
        self._model_structure = model_structure
        if hparam_def is not None:
            raise ValueError("HParams(hparam_def=...) is not served: give names and values.")
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def add_hparam(self, name, value):
        """Adds a hyperparameter.

        Raises:
          ValueError: the name is taken, or the value is an empty list.
        """
        if getattr(self, name, None) is not None:
            raise ValueError("Hyperparameter name is reserved: %s" % name)
        if isinstance(value, (list, tuple)):
            if not value:
                raise ValueError("Multi-valued hyperparameters cannot be empty: %s" % name)
            self._hparam_types[name] = type(value[0]), True
        else:
            self._hparam_types[name] = type(value), False
        setattr(self, name, value)

    def set_hparam(self, name, value):
        """Gives a hyperparameter another value of its type.

        Raises:
          KeyError: there is none of that name.
          ValueError: a list is given for one value or the other way round, or the value does not fit the type.
        """
        kind, several = self._hparam_types[name]
        if isinstance(value, (list, tuple)):
            if not several:
                raise ValueError("Must not pass a list for single-valued parameter: %s" % name)
            setattr(self, name, [_cast(name, kind, each) for each in value])
        else:
            if several:
                raise ValueError("Must pass a list for multi-valued parameter: %s." % name)
            setattr(self, name, _cast(name, kind, value))

    def del_hparam(self, name):
        """Removes a hyperparameter if it is there."""
        if hasattr(self, name):
            delattr(self, name)
            del self._hparam_types[name]

    def parse(self, values):
        """Sets hyperparameters from text, see `parse_values`; returns self."""
        types = {name: kind for name, (kind, _) in self._hparam_types.items()}
        return self.override_from_dict(parse_values(values, types))

    def override_from_dict(self, values_dict):
        """Sets hyperparameters from a dict; {index: value} sets elements of a list. Returns self."""
        for name, value in values_dict.items():
            kind, several = self._hparam_types[name]
            if isinstance(value, dict) and several:
                elements = list(getattr(self, name))
                for index, element in value.items():
                    if index >= len(elements):
                        elements.extend([None] * (index + 1 - len(elements)))
                    elements[index] = element
                value = elements
            self.set_hparam(name, value)
        return self

    def parse_json(self, values_json):
        """Sets hyperparameters from a JSON object; returns self."""
        return self.override_from_dict(json.loads(values_json))

    def set_model_structure(self, model_structure):
        self._model_structure = model_structure

    def get_model_structure(self):
        return self._model_structure

    def to_json(self, indent=None, separators=None, sort_keys=False):
        """The values as a JSON object, without functions."""
        shown = {name: value for name, value in self.values().items() if not callable(value)}
        return json.dumps(shown, indent=indent, separators=separators, sort_keys=sort_keys)

    def values(self):
        """dict of name to value."""
        return {name: getattr(self, name) for name in self._hparam_types}

    def get(self, key, default=None):
        """A value, or the default where there is none.

        Raises:
          ValueError: the default is not of the hyperparameter's type.
        """
        if key not in self._hparam_types:
            return default
        if default is not None:
            kind, several = self._hparam_types[key]
            if several != isinstance(default, list):
                raise ValueError("get(%s): the default must%s be a list" % (key, "" if several else " not"))
            for each in default if several else [default]:
                _cast(key, kind, each)
        return getattr(self, key)

    def __contains__(self, key):
        return key in self._hparam_types

    def __str__(self):
        return str(sorted(self.values().items()))

    def __repr__(self):
        return "%s(%s)" % (type(self).__name__, self)
