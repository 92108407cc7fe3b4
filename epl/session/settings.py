"""What all workers must have in common before they can do anything together: the configuration."""

import json

from epl.config.keys import keys
from epl.errors import ConfigError


def told(config):
    """What workers compare of an epl.Config, as JSON turns it back: dict of key to value."""
    values = {name: value for name, value in config.to_dict().items() if not keys()[name].per_worker}
    return json.loads(json.dumps(values))


def lines(config):
    """The same in lines of text, one a key."""
    return ["%s=%s" % (name, json.dumps(value)) for name, value in sorted(told(config).items())]


def is_line(text):
    """Whether a line of text is one of `lines`."""
    return text.partition("=")[0] in keys()


def check_same(own, chiefs, worker):
    """Compares what `told` gives at a worker and at worker 0.

    Raises:
      ConfigError: keys differ; names each of them with both values.
    """
    differing = [name for name in sorted(set(own).union(chiefs)) if own.get(name) != chiefs.get(name)]
    if differing:
        said = "; ".join("%s=%r, but worker 0 has %r" % (name, own.get(name), chiefs.get(name)) for name in differing)
        raise ConfigError(
            "the configurations of the workers differ: worker %d has %s. Give all workers the same, in the script, in "
            "their environments (%s), or by `epl-launch --config`."
            % (worker, said, ", ".join(keys()[name].variable for name in differing if name in keys()))
        )
