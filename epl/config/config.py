"""Configuration of a run, read from a dict, from `EPL_*` environment variables or from a YAML file."""

import difflib
import os
from typing import Any, Dict, Mapping, Optional

import yaml

from epl.config.keys import CATEGORIES, keys
from epl.config.rules import PAIR_RULES
from epl.errors import ConfigError

_LONGEST_FILE = 1 << 16  # characters


class UnknownAttributeError(ConfigError, AttributeError):
    """Unknown key, met as an attribute; an AttributeError too, so that `hasattr` and `copy` work."""


def _nearest(word, known):
    """A question that offers the names of `known` nearest to `word`, or an empty string."""
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    if not near:
        # A right attribute under a wrong or missing category: "num_micro_batch", "pipe.num_micro_batch".
        tails = {name.split(".")[-1]: name for name in known}
        near = [tails[tail] for tail in difflib.get_close_matches(word.split(".")[-1], list(tails), n=3, cutoff=0.7)]
    return " Did you mean %s?" % " or ".join('"%s"' % name for name in near) if near else ""


def _unknown_key(name, source=""):
    known = list(keys())
    hint = _nearest(name, known)
    if not hint:
        category = name.split(".")[0]
        same = [key for key in known if key.startswith(category + ".")]
        hint = (
            " Keys of this category: %s." % ", ".join(same)
            if same
            else ' Keys look like "pipeline.num_micro_batch"; categories: %s.' % ", ".join(CATEGORIES)
        )
    return "unknown configuration key %r%s.%s" % (name, source and " (from %s)" % source, hint)


# Variables that belong to no key: of the launcher, the cluster, the build and of messages.
_OWN_VARIABLES = frozenset(
    "EPL_" + name
    for name in (
        "ATTEMPT BIND_ADDRESS BOOTSTRAP_ADDRESS BOOTSTRAP_PORT BUILD_JOBS CXXFLAGS DEVICE DUMP_DIR GPU_PER_WORKER "
        "JOB_TOKEN LAUNCH_NOTE LAUNCH_NOTICE LOG_LEVEL PREVIEW REPORT_PARTS REPORT_TIMES TF_CONFIG WITH_GLOO "
        "WORKER_INDEX WORKER_NUM"
    ).split()
)


def _meant(variable, by_variable):
    """The names of variables that an unknown one without a category may stand for: misspelt, or without theirs."""
    attribute = variable[len("EPL_") :].lower()
    tails = {key.attribute: name for name, key in by_variable.items()}
    without = [tails[tail] for tail in difflib.get_close_matches(attribute, sorted(tails), n=3, cutoff=0.85)]
    return without + difflib.get_close_matches(variable, sorted(_OWN_VARIABLES.union(by_variable)), n=3, cutoff=0.85)


def _from_environment(environ, skip):
    """Values from `EPL_*` variables for all keys but those in `skip`; raises for a variable that looks like a key."""
    by_variable = {key.variable: key for key in keys().values()}
    prefixes = tuple("EPL_%s_" % category.upper() for category in CATEGORIES)
    values = {}
    for variable in sorted(environ):
        key = by_variable.get(variable)
        if key is None:
            if variable.startswith(prefixes):
                raise ConfigError(
                    "environment variable %s belongs to no configuration key.%s"
                    % (variable, _nearest(variable, list(by_variable)))
                )
            meant = _meant(variable, by_variable) if variable.startswith("EPL_") else ()
            if meant and variable not in _OWN_VARIABLES:
                raise ConfigError(
                    'environment variable %s belongs to no configuration key. Did you mean "%s"?' % (variable, meant[0])
                )
        elif key.name not in skip:
            values[key.name] = key.parse(environ[variable])
    return values


class _Category:
    """The keys of one category as attributes."""

    __slots__ = ("_values", "_given", "_name")

    def __init__(self, values, given, name):
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_given", given)
        object.__setattr__(self, "_name", name)

    def _full_name(self, attribute):
        name = "%s.%s" % (self._name, attribute)
        if name not in self._values:
            raise UnknownAttributeError(_unknown_key(name))
        return name

    def __getattr__(self, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return self._values[self._full_name(attribute)]

    def __setattr__(self, attribute, value):
        name = self._full_name(attribute)
        self._values[name] = keys()[name].check(value)
        self._given.add(name)

    def __dir__(self):
        return [key.attribute for key in keys().values() if key.category == self._name]

    def __repr__(self):
        return "%s(%s)" % (self._name, ", ".join("%s=%r" % (name, getattr(self, name)) for name in dir(self)))


class Config:
    """All configuration of a training run.

    Keys are read and set as attributes: `config.pipeline.num_micro_batch`. A value that is set is checked at once.
    docs/configuration.md lists all keys.

    Args:
      param_dict: values by key, such as {"communication.max_splits": 3}. Keys that it leaves out come from the
        environment variables (EPL_COMMUNICATION_MAX_SPLITS=3), and if there is none, from the defaults.
      environ: mapping to read variables from. Default: `os.environ`.

    Raises:
      ConfigError: unknown key (or a variable that looks like one), wrong type or value, keys that contradict each
        other.
    """

    def __init__(self, param_dict: Optional[Dict[str, Any]] = None, environ: Optional[Mapping[str, str]] = None):
        given = _checked_dict(param_dict, "")
        values = {key.name: key.default for key in keys().values()}
        given = dict(_from_environment(os.environ if environ is None else environ, skip=given), **given)
        values.update(given)
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_given", set(given))
        self.validate()

    def validate(self) -> None:
        """Check keys that depend on each other. Done on creation, and again before a plan is made.

        Raises:
          ConfigError: two keys contradict each other, or one leaves the other without effect.
        """
        for rule in PAIR_RULES:
            problem = rule(self._values)
            if problem:
                raise ConfigError(problem)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in CATEGORIES:
            raise UnknownAttributeError(_unknown_category(name))
        return _Category(self._values, self._given, name)

    def __setattr__(self, name, value):
        if name in CATEGORIES:
            raise ConfigError(
                "config.%s is a category and cannot be replaced. Set one of its keys: %s."
                % (name, ", ".join("config." + key.name for key in keys().values() if key.category == name))
            )
        raise UnknownAttributeError(_unknown_category(name))

    def __dir__(self):
        return sorted(set(CATEGORIES) | set(super().__dir__()))

    @property
    def given(self):
        """Names of the keys that somebody has set: in the dict, in the environment, or since as attributes."""
        return frozenset(self._given)

    def replaced(self, values: Dict[str, Any]) -> "Config":
        """A new Config with other values of some keys, none of which count as given for that.

        Raises:
          ConfigError: as `Config`.
        """
        made = Config(dict(self._values, **values), {})
        object.__setattr__(made, "_given", set(self._given))
        return made

    def to_dict(self) -> Dict[str, Any]:
        """A new dict of all keys and their values."""
        return dict(self._values)

    def to_yaml(self, path: str) -> None:
        """Write all keys to the file `path`, which `from_yaml` reads back. Replaces the file in one step."""
        folder, name = os.path.split(os.path.abspath(path))
        temporary = os.path.join(folder, ".%s.%d.tmp" % (name, os.getpid()))
        try:
            with open(temporary, "w", encoding="utf-8") as stream:
                yaml.safe_dump(self.to_dict(), stream, default_flow_style=False, sort_keys=False)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)

    @classmethod
    def from_yaml(cls, path: str, environ: Optional[Mapping[str, str]] = None) -> "Config":
        """Read a file that `to_yaml` wrote, or a hand-written one of lines such as `communication.max_splits: 3`.

        Keys that the file leaves out come from the environment and the defaults, as for `Config`.

        Raises:
          ConfigError: the file cannot be read, is no YAML mapping, or has unknown keys or wrong values.
        """
        return cls(read_yaml(path), environ)

    def __eq__(self, other):
        return self._values == other._values if isinstance(other, Config) else NotImplemented

    __hash__ = None  # it can be changed

    def __reduce__(self):
        return (_copied, (self.to_dict(), self.given))

    def __repr__(self):
        """Shows the keys that differ from their defaults."""
        defaults = keys()
        return "Config(%r)" % {name: value for name, value in self._values.items() if value != defaults[name].default}


def _copied(values, given):
    """A Config of all values, of which some were given: `Config.__reduce__`."""
    made = Config(values, {})
    object.__setattr__(made, "_given", set(given))
    return made


def read_yaml(path):
    """The checked values by key of a YAML file.

    Raises:
      ConfigError: as `Config.from_yaml`.
    """
    try:
        with open(path, "r", encoding="utf-8") as stream:
            text = stream.read(_LONGEST_FILE + 1)
        _check_plain(text, path)
        values, tree = yaml.safe_load(text), yaml.compose(text, yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("cannot read configuration file %s: %s" % (path, error)) from error
    except yaml.YAMLError as error:
        raise ConfigError("configuration file %s is not valid YAML: %s" % (path, error)) from error
    except RecursionError as error:
        raise ConfigError("configuration file %s is nested too deeply; it holds lines of key: value." % path) from error
    return _checked_dict(values, str(path), _lines(tree, path))


def _check_plain(text, path):
    """Refuses what can be very much larger than it looks, as values that stand for others can."""
    if len(text) > _LONGEST_FILE:
        raise ConfigError("configuration file %s has more than %d characters." % (path, _LONGEST_FILE))
    for token in yaml.scan(text, yaml.SafeLoader):
        if isinstance(token, yaml.AliasToken):
            raise ConfigError(
                "configuration file %s has the alias *%s in line %d. Write the value out."
                % (path, token.value, token.start_mark.line + 1)
            )


def _lines(tree, path):
    """dict of key to its line, from 1, in a YAML file of a mapping."""
    found = {}
    for key, _ in tree.value if isinstance(tree, yaml.MappingNode) else ():
        line = key.start_mark.line + 1
        if found.setdefault(key.value, line) != line:
            raise ConfigError(
                "configuration file %s has '%s' twice, in lines %d and %d. Leave one of them out."
                % (path, key.value, found[key.value], line)
            )
    return found


def as_variables(values):
    """Environment variables that say what the dict `values` of keys says."""
    return {keys()[name].variable: keys()[name].text(value) for name, value in values.items()}


def _unknown_category(name):
    return "Config has no category %r.%s Categories: %s." % (name, _nearest(name, CATEGORIES), ", ".join(CATEGORIES))


def _checked_dict(param_dict, source, lines=None):
    """Checked copy of `param_dict`, which may be None; `lines`: of keys in the file `source`."""
    if param_dict is None:
        return {}
    if not isinstance(param_dict, dict):
        raise ConfigError(
            '%s must be a mapping of keys such as "pipeline.num_micro_batch" to values, not %s.'
            % (source or "param_dict", type(param_dict).__name__)
        )
    known = keys()
    values = {}
    for name, value in param_dict.items():
        where = "%s, line %d" % (source, lines[name]) if name in (lines or ()) else source
        if name in CATEGORIES and isinstance(value, dict) and value:
            raise ConfigError(
                "'%s' (from %s) is a category with keys below it. Write each key with its category: \"%s.%s: %s\"."
                % ((name, where or "param_dict", name) + next(iter(value.items())))
            )
        if name not in known:
            raise ConfigError(_unknown_key(str(name), where))
        values[name] = known[name].check(value, where)
    return values
