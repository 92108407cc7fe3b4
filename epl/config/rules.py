"""Keys that depend on each other: which have an effect only beside others. What contradicts each other: composes.py."""

import re

from epl.config.composes import LOSS_SCALE_KEYS, problem_of
from epl.config.keys import keys


def _needs(name, other, other_values, other_text):
    """Rule: `name` may be set only while `other` has one of `other_values`."""

    def problem(values):
        if values[name] == keys()[name].default or values[other] in other_values:
            return None
        return "%s=%r has no effect while %s=%r. Set %s, or leave %s at %r." % (
            name,
            values[name],
            other,
            values[other],
            other_text,
            name,
            keys()[name].default,
        )

    return problem


def _distinct_devices(values):
    devices = [int(text) for text in values["cluster.run_visible_devices"].split(",") if text]
    if len(set(devices)) != len(devices):
        return (
            'cluster.run_visible_devices="%s" names a device twice. Name each device once.'
            % values["cluster.run_visible_devices"]
        )
    return None


def patterns_of(text):
    """The regular expressions, or operation types, that a text has, separated by commas."""
    return [pattern.strip() for pattern in text.split(",") if pattern.strip()]


def _needs_any(name, others, others_text):
    """Rule: `name` may be set only where one of `others` is."""

    def problem(values):
        if values[name] == keys()[name].default or any(values[other] for other in others):
            return None
        return "%s=%r has no effect without %s. Set it, or leave %s at %r." % (
            name,
            values[name],
            others_text,
            name,
            keys()[name].default,
        )

    return problem


def _regular_expressions(values):
    for pattern in patterns_of(values["optimizer.exclude_from_weight_decay"]):
        try:
            re.compile(pattern)
        except re.error as error:
            return (
                "optimizer.exclude_from_weight_decay holds '%s', which is no regular expression: %s. The default is ''."
                % (
                    pattern,
                    error,
                )
            )
    return None


def _on_both_lists(values):
    lists = [patterns_of(values["amp.custom_%s_list" % colour]) for colour in ("white", "black")]
    both = [op for op in lists[0] if op in lists[1]]
    if both:
        return "amp.custom_white_list and amp.custom_black_list both name '%s'. Take it off one of them." % both[0]
    return None


def _reads_in_turns(values):
    if values["checkpoint.data_position"] != "global" or values["io.shard_dataset"] and not values["io.slicing"]:
        return None
    return (
        'checkpoint.data_position="global" is for data sets that io.shard_dataset divides, while io.slicing divides '
        'files. Set io.shard_dataset=True and io.slicing=False, or checkpoint.data_position to "per_worker".'
    )


def _keeps_one_before(values):
    if values["checkpoint.keep"] != 1 or not values["checkpoint.data_position"]:
        return None
    return (
        'checkpoint.keep=1 cannot be used with checkpoint.data_position="%s": until all workers have written how far '
        "they have read, the checkpoint before has to stay. Set checkpoint.keep to 2 at least, or leave it at 0."
        % values["checkpoint.data_position"]
    )


def _shrinks(values):
    if values["amp.decr_ratio"] >= 1:
        return "amp.decr_ratio=%r would not make the loss scale smaller. Set it below 1; the default is %r." % (
            values["amp.decr_ratio"],
            keys()["amp.decr_ratio"].default,
        )
    return None


_REPLACES = ("optimizer.lamb", "optimizer.lars")
# Each returns what is wrong with a full set of values, or None.
_OF_LISTS = tuple(
    _needs(name, "amp.level", ("O1", "O2"), 'amp.level="O1" or "O2"') for name in LOSS_SCALE_KEYS
) + tuple(_needs(name, "amp.dtype", ("auto", "float16"), 'amp.dtype="auto" or "float16"') for name in LOSS_SCALE_KEYS)
PAIR_RULES = (
    (problem_of,)
    + _OF_LISTS
    + (
        _needs("communication.fp16_scale", "communication.fp16", (True,), "communication.fp16=True"),
        _distinct_devices,
        _needs("optimizer.lamb_weight_decay", "optimizer.lamb", (True,), "optimizer.lamb=True"),
        _needs("optimizer.lars_weight_decay", "optimizer.lars", (True,), "optimizer.lars=True"),
        _needs("optimizer.lars_coeff", "optimizer.lars", (True,), "optimizer.lars=True"),
        _needs_any("optimizer.epsilon", _REPLACES, "optimizer.lamb=True or optimizer.lars=True"),
        _needs_any("optimizer.exclude_from_weight_decay", _REPLACES, "optimizer.lamb=True or optimizer.lars=True"),
        _regular_expressions,
        _needs("amp.dtype", "amp.level", ("O1", "O2"), 'amp.level="O1" or "O2"'),
        _needs("amp.init_loss_scale", "amp.loss_scale", ("dynamic",), 'amp.loss_scale="dynamic"'),
        _needs("amp.incr_every_n_steps", "amp.loss_scale", ("dynamic",), 'amp.loss_scale="dynamic"'),
        _needs("amp.decr_every_n_nan_or_inf", "amp.loss_scale", ("dynamic",), 'amp.loss_scale="dynamic"'),
        _needs("amp.incr_ratio", "amp.loss_scale", ("dynamic",), 'amp.loss_scale="dynamic"'),
        _needs("amp.decr_ratio", "amp.loss_scale", ("dynamic",), 'amp.loss_scale="dynamic"'),
        _shrinks,
        _reads_in_turns,
        _keeps_one_before,
        _needs("amp.custom_white_list", "amp.level", ("O1", "O2"), 'amp.level="O1" or "O2"'),
        _needs("amp.custom_black_list", "amp.level", ("O1", "O2"), 'amp.level="O1" or "O2"'),
        _needs("amp.debug_log", "amp.level", ("O1", "O2"), 'amp.level="O1" or "O2"'),
        _on_both_lists,
        _needs_any("local_sgd.begin_step", ("local_sgd.k_steps",), "local_sgd.k_steps"),
        _needs_any("local_sgd.adaptive", ("local_sgd.k_steps",), "local_sgd.k_steps"),
        _needs_any("local_sgd.overlap", ("local_sgd.k_steps",), "local_sgd.k_steps"),
        _needs_any("local_sgd.init_k_steps", ("local_sgd.adaptive",), "local_sgd.adaptive"),
        _needs_any("local_sgd.average_slots", ("local_sgd.k_steps",), "local_sgd.k_steps"),
        _needs_any("dgc.rampup_begin_step", ("dgc.sparsity",), "dgc.sparsity"),
        _needs_any("dgc.rampup_step", ("dgc.sparsity",), "dgc.sparsity"),
        _needs_any("dgc.min_elements", ("dgc.sparsity",), "dgc.sparsity"),
        _needs_any("dgc.clip_norm", ("dgc.sparsity",), "dgc.sparsity"),
        _needs_any("dgc.save_residuals", ("dgc.sparsity",), "dgc.sparsity"),
        _needs("io.unbalanced_io_slicing", "io.slicing", (True,), "io.slicing=True"),
        _needs_any("zero.degree", ("zero.level",), "zero.level"),
        _needs("zero.segment_mb", "zero.level", ("v2", "v3"), 'zero.level="v2" or "v3"'),
        _needs("zero.segment_anchors", "zero.level", ("v2", "v3"), 'zero.level="v2" or "v3"'),
        _needs("io.drop_last_files", "io.slicing", (True,), "io.slicing=True"),
        _needs("pipeline.num_stages", "auto.auto_parallel", (True,), "auto.auto_parallel=True"),
        _needs(
            "gradient_checkpoint.end_taskgraph",
            "gradient_checkpoint.type",
            ("auto",),
            'gradient_checkpoint.type="auto"',
        ),
        _needs(
            "gradient_checkpoint.memory_limit_mb",
            "gradient_checkpoint.type",
            ("auto",),
            'gradient_checkpoint.type="auto"',
        ),
    )
)
