"""A configuration file to begin with: the keys that people set most, each with its meaning, none of them set."""

import textwrap

from epl.config.keys import keys

_WIDTH = 118
# In the order in which one decides them.
OFTEN = (
    ("Gradient accumulation and pipelines: docs/pipelines.md", ("pipeline.num_micro_batch", "pipeline.strategy")),
    (
        "Less memory: docs/memory.md",
        ("gradient_checkpoint.type", "gradient_checkpoint.memory_limit_mb", "zero.level", "offload.level"),
    ),
    ("Mixed precision: docs/mixed_precision.md", ("amp.level", "amp.dtype", "amp.loss_scale")),
    (
        "Stages and plans that EPL chooses, and devices: docs/pipelines.md, docs/concepts.md",
        (
            "auto.auto_parallel",
            "auto.search",
            "auto.memory_limit_mb",
            "pipeline.num_stages",
            "cluster.colocate_split_and_replicate",
        ),
    ),
    (
        "Data: docs/data.md",
        ("io.shard_dataset", "io.slicing", "io.prefetch_to_device", "io.stats"),
    ),
    (
        "Communication: docs/communication.md",
        (
            "communication.gradients_reduce_method",
            "communication.clip_after_allreduce",
            "communication.sync_batch_norm",
            "communication.wire_dtype",
            "communication.timeout_s",
        ),
    ),
)
_HEAD = """\
# Configuration of a job: epl-launch --config %s ..., or epl.init(epl.Config.from_yaml("%s")).
# Take the # away from a line with a key to set it; what is left out comes from the environment, or is the default that
# the line shows. All keys are in docs/configuration.md.
"""


def template(name):
    """The text of the file; `name`: what it is called, for its first line."""
    known, lines = keys(), [_HEAD % (name, name)]
    for title, names in OFTEN:
        lines.append("# --- %s ---\n" % title)
        for each in names:
            lines.append(_of(known[each]))
    return "\n".join(lines)


def _of(key):
    """The lines of one key."""
    doc = textwrap.wrap("%s Allowed: %s." % (key.doc, key.allowed()), _WIDTH - 2, break_long_words=False)
    return "".join("# %s\n" % line for line in doc) + "#%s: %s\n" % (key.name, _yaml(key.default))


def _yaml(value):
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return "[%s]" % ", ".join(map(str, value))
    return '"%s"' % value if isinstance(value, str) else str(value)
