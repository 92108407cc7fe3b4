"""Writes docs/configuration.md from the key table of epl/config/keys.py.

python scripts/config_reference.py          write the page
python scripts/config_reference.py --check  end with 1 if the page is not what would be written
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from epl.config.keys import CATEGORIES, KEYS  # noqa: E402 (the path has to be there first)

PAGE = os.path.join(ROOT, "docs", "configuration.md")

HEAD = """\
<!-- Written by scripts/config_reference.py from epl/config/keys.py; change it there. -->
# Configuration

Every key has a default, so `epl.init()` alone works. A key is set in one of these places; the first that names it wins:

1. the dict given to `epl.Config`, or a file read with `epl.Config.from_yaml`,
2. an environment variable: `EPL_`, then the key in capitals with `_` for the dot,
3. the default.

```python
import epl

config = epl.Config({"communication.max_splits": 3})  # or: EPL_COMMUNICATION_MAX_SPLITS=3 in the environment
config.communication.fp16 = True                      # keys are attributes, to read and to set
epl.init(config)
```

- In environment variables a bool is `true`, `false`, `1` or `0`; None is `none`; a list is written `0.9,0.99`.
- Words such as `"mean"` may be written in capitals or not.
- An unknown key, or an `EPL_*` variable that looks like one (`EPL_NUM_MICRO_BATCH` lacks its category), is a
  `ConfigError` that names the nearest known keys. A value of the wrong type or out of range is a `ConfigError` that
  says what is allowed.
- So are keys that contradict each other or leave one without effect: `io.drop_last_files` together with
  `io.unbalanced_io_slicing`, or either without `io.slicing`; `pipeline.num_stages` without `auto.auto_parallel`;
  `gradient_checkpoint.end_taskgraph` and `gradient_checkpoint.memory_limit_mb` unless `gradient_checkpoint.type` is
  `"auto"`; `communication.fp16` together with
  `communication.wire_dtype`; `communication.fp16_scale` without `communication.fp16`; numbers for
  `optimizer.lamb` or `optimizer.lars` without it; `local_sgd.k_steps` together with what workers would exchange at
  every step; other keys of `dgc` without `dgc.sparsity`.
- `config.to_yaml(path)` saves all keys, `epl.Config.from_yaml(path)` reads them back. A hand-written file holds lines
  such as `communication.max_splits: 3`; what it leaves out comes from the environment and the defaults.
- `epl-launch --config run.yaml script.py` gives the keys of such a file to a script that calls `epl.init()` alone.
"""

TITLES = {
    "amp": "Mixed precision",
    "auto": "Automatic parallelization",
    "cluster": "Cluster",
    "communication": "Communication",
    "dgc": "Deep gradient compression",
    "estimator": "Estimator",
    "execution": "Execution",
    "gradient_checkpoint": "Gradient checkpointing",
    "checkpoint": "Checkpoints",
    "graph": "The graph",
    "io": "Input files",
    "local_sgd": "LocalSGD",
    "offload": "Offload",
    "optimizer": "Optimizer",
    "pipeline": "Pipeline and micro-batches",
    "zero": "ZeRO",
}


def code(value):
    text = '"%s"' % value if isinstance(value, str) else str(value)
    return "`%s`" % text


def row(key):
    """One line of a table."""
    return "| `%s` | %s | %s | %s | %s |" % (
        key.name,
        key.type,
        code(key.default),
        key.allowed().replace("|", "\\|"),
        key.doc.replace("|", "\\|"),
    )


def page():
    """The whole page as text."""
    parts = [HEAD]
    # In the order of the table, which is that of the documentation, not of the alphabet.
    for category in sorted(CATEGORIES, key=[key.category for key in KEYS].index):
        keys = [key for key in KEYS if key.category == category]
        variables = "`EPL_%s_...`" % category.upper()
        parts.append("\n## %s\nEnvironment variables: %s\n\n" % (TITLES[category], variables))
        parts.append("| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n")
        parts.append("".join(row(key) + "\n" for key in keys))
    return "".join(parts)


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit("usage: config_reference.py [--check]")
    text = page()
    if arguments:
        with open(PAGE, encoding="utf-8") as stream:
            if stream.read() != text:
                sys.exit("docs/configuration.md is out of step: run python scripts/config_reference.py")
        return
    with open(PAGE, "w", encoding="utf-8") as stream:
        stream.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
