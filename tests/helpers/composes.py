"""Which keys that save memory go together, with each other and with each layout: found out by compiling, as a table."""

import itertools

import tensorflow.compat.v1 as tf

import epl
from epl.config import Config
from epl.errors import EplError
from tests.helpers import planning

KEYS = {
    "recomputation": {"gradient_checkpoint.type": "auto"},
    "activations on the host": {"gradient_checkpoint.offload": True},
    "`O1`, bfloat16": {"amp.level": "O1", "amp.dtype": "bfloat16"},
    "`O1`, float16": {"amp.level": "O1", "amp.dtype": "float16"},
    "`O2`, bfloat16": {"amp.level": "O2", "amp.dtype": "bfloat16"},
    "`O2`, float16": {"amp.level": "O2", "amp.dtype": "float16"},
    "groups of updates": {"optimizer.num_apply_group": 2},
    "ZeRO `v0`": {"zero.level": "v0"},
    "ZeRO `v1`": {"zero.level": "v1"},
    "ZeRO `v2`": {"zero.level": "v2"},
    "ZeRO `v3`": {"zero.level": "v3"},
    "`zero.degree`": {"zero.level": "v1", "zero.degree": 2},
    "offload `v0`": {"offload.level": "v0"},
    "offload `v1`": {"offload.level": "v1"},
    "offload `state`": {"offload.level": "state"},
}
# (scopes of two layers each, workers, devices of each, configuration)
LAYOUTS = {
    "copies": (("replicate(1)",), 2, 2, {}),
    "micro-batches": (("replicate(1)",), 2, 2, {"pipeline.num_micro_batch": 2}),
    "stages in a worker": (("replicate(1)", "replicate(1)"), 2, 4, {"pipeline.num_micro_batch": 2}),
    "stages over workers": (("replicate(1)", "replicate(1)"), 4, 1, {"pipeline.num_micro_batch": 2}),
    "`split` in a worker": (("split(2)",), 1, 4, {}),
    "`split` over workers": (("split(2)",), 4, 1, {}),
}


def _program(scopes):
    """A model of two layers of which each scope has its part, captured."""
    with planning.capture(seed=1) as graph:
        x = tf.placeholder(tf.float32, [None, 4])
        for number, scope in enumerate(scopes):
            kind, count = scope[:-1].split("(")
            with getattr(epl, kind)(int(count)):
                for layer in range(2):
                    x = tf.tanh(tf.matmul(x, tf.get_variable("kernel_%d_%d" % (number, layer), [4, 4])))
                loss = tf.reduce_mean(tf.square(x))
        tf.train.AdamOptimizer(0.1).minimize(loss)
    return graph


def _goes(graph, layout, keys):
    """Whether a configuration compiles to what it says."""
    _, workers, devices, config = LAYOUTS[layout]
    values = dict(config, **keys)
    if values.get("zero.degree") and layout != "copies":
        values["zero.degree"] = _copies_in_a_worker(layout)
    try:
        Config(values)
        program = planning.compiled(graph, workers, devices, 0, **{k.replace(".", "__"): v for k, v in values.items()})
    except EplError:
        return False
    mesh = program.plan.mesh
    assert mesh.copies.size > 1 and (mesh.pipeline.num_workers > 1) == (layout == "stages over workers"), layout
    assert mesh.split == ("split" in layout), layout
    assert (program.plan.zero is not None) == ("zero.level" in keys), (layout, keys)
    return True


def _copies_in_a_worker(layout):
    """Copies of the model in a worker; of a model whose copies lie in several workers all of them."""
    scopes, workers, devices, _ = LAYOUTS[layout]
    copies = devices // (len(scopes) if "stages" in layout else 2 if "split" in layout else 1)
    return copies or workers * devices // 2


def tables():
    """The tables as Markdown, a list of lines: keys and layouts; and keys with keys that they do not all go together
    with (several copies in two workers), where there are any."""
    graphs = {name: _program(layout[0]) for name, layout in LAYOUTS.items()}
    lines = _header("", LAYOUTS)
    for name, keys in KEYS.items():
        lines.append(_row(name, [_goes(graphs[layout], layout, keys) for layout in LAYOUTS]))
    found = {}
    for one, other in itertools.combinations(KEYS, 2):
        if not _contradict(KEYS[one], KEYS[other]):
            found[one, other] = found[other, one] = _goes(graphs["copies"], "copies", dict(KEYS[one], **KEYS[other]))
    columns = [name for name in KEYS if any(not goes for pair, goes in found.items() if name in pair)]
    if not columns:
        return lines
    lines += [""] + _header("", columns)
    lines += [_row(name, [found.get((name, other)) for other in columns]) for name in KEYS]
    return lines


def _contradict(one, other):
    return any(one[key] != other[key] for key in set(one) & set(other)) or set(one) == set(other)


def _header(first, columns):
    return ["| %s |" % " | ".join([first] + list(columns)), "|%s" % ("---|" * (len(columns) + 1))]


def _row(name, goes):
    return "| %s | %s |" % (name, " | ".join({True: "yes", False: "**no**", None: ""}[each] for each in goes))


if __name__ == "__main__":
    print("\n".join(tables()))
