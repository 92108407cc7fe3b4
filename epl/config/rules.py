"""Keys that depend on each other: what may be set together."""

import re

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


def _drop_or_unbalance(values):
    if values["io.unbalanced_io_slicing"] and values["io.drop_last_files"]:
        return (
            "io.unbalanced_io_slicing and io.drop_last_files contradict each other: the first gives the files "
            "that are left over to some workers, the second drops them. Set only one of them."
        )
    return None


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


def _own_gradients(values):
    if values["gradient_checkpoint.check_gradients"] and values["communication.sync_batch_norm"]:
        return (
            "gradient_checkpoint.check_gradients compares gradients of one copy of the model, but with "
            "communication.sync_batch_norm these depend on all copies. Check without synchronised batch normalisation."
        )
    return None


def _on_both_lists(values):
    lists = [patterns_of(values["amp.custom_%s_list" % colour]) for colour in ("white", "black")]
    both = [op for op in lists[0] if op in lists[1]]
    if both:
        return "amp.custom_white_list and amp.custom_black_list both name '%s'. Take it off one of them." % both[0]
    return None


def _shrinks(values):
    if values["amp.decr_ratio"] >= 1:
        return "amp.decr_ratio=%r would not make the loss scale smaller. Set it below 1; the default is %r." % (
            values["amp.decr_ratio"],
            keys()["amp.decr_ratio"].default,
        )
    return None


_SCALE_KEYS = (
    "amp.loss_scale",
    "amp.init_loss_scale",
    "amp.incr_every_n_steps",
    "amp.decr_every_n_nan_or_inf",
    "amp.incr_ratio",
    "amp.decr_ratio",
)
# What does not go together with steps that are left out, and why.
NOT_WITH_LOSS_SCALE = {
    "communication.wire_dtype": "what fewer bits leave over is sent later, when the scale may be another, or the step "
    "one that is left out",
    "dgc.sparsity": "what is kept back of gradients is sent later, when the scale may be another, or the step one that "
    "is left out",
}


def names_loss_scale(values):
    """Whether keys ask for a loss scale, and so for float16 where amp.dtype leaves that open."""
    return any(values[name] != keys()[name].default for name in _SCALE_KEYS)


def _without_loss_scale(name, why):
    """Rule: `name` may not be set where steps are left out for gradients that are not finite."""

    def problem(values):
        half = values["amp.dtype"] == "float16" or values["amp.dtype"] == "auto" and names_loss_scale(values)
        if values[name] == keys()[name].default or not half or values["amp.loss_scale"] == 1:
            return None
        return '%s=%r cannot be used with amp.dtype="float16": %s. Leave it at %r, or set amp.dtype="bfloat16".' % (
            name,
            values[name],
            why,
            keys()[name].default,
        )

    return problem


def _without_short_gradients(name):
    """Rule: `name` may not be set where gradients travel in 16 bits already."""

    def problem(values):
        if values[name] == keys()[name].default or values["amp.level"] != "O2":
            return None
        return (
            '%s=%r cannot be used with amp.level="O2", at which gradients travel in 16 bits already. Leave it at %r, '
            'or set amp.level="O1".' % (name, values[name], keys()[name].default)
        )

    return problem


# Other values than the default that change nothing where no gradients are combined.
_AS_WELL = {"communication.gradients_reduce_method": "mean"}


def _without_local_sgd(name):
    """Rule: `name` is about what is exchanged at every step, or has not been made for steps without that."""

    def problem(values):
        harmless = values[name] in (keys()[name].default, _AS_WELL.get(name))
        if harmless or not values["local_sgd.k_steps"]:
            return None
        return (
            "%s=%r cannot be used with local_sgd.k_steps=%d, where each copy of the model trains by itself between "
            "averages. Leave %s at %r, or local_sgd.k_steps at 0."
            % (name, values[name], values["local_sgd.k_steps"], name, keys()[name].default)
        )

    return problem


def _repeats_alone(values):
    if values["io.equal_steps"] != "repeat":
        return None
    for key, default, why in (
        ("local_sgd.k_steps", 0, "workers ask each other before each step whether any has new data"),
        (
            "pipeline.num_micro_batch",
            1,
            "that is asked before a step, of which later micro-batches are read on the way",
        ),
    ):
        if values[key] != default:
            return (
                'io.equal_steps="repeat" cannot be used with %s=%d: %s. Set io.equal_steps to "" or "drop", or leave '
                "%s at %d." % (key, values[key], why, key, default)
            )
    return None


def _without_dgc(name, why):
    """Rule: `name` may not be set where gradients are compressed."""

    def problem(values):
        if values[name] == keys()[name].default or not values["dgc.sparsity"]:
            return None
        return "%s=%r cannot be used with dgc.sparsity=%r: %s. Leave %s at %r, or dgc.sparsity at []." % (
            name,
            values[name],
            list(values["dgc.sparsity"]),
            why,
            name,
            keys()[name].default,
        )

    return problem


_ONE_FORM = "what is kept back of gradients is sent later as it is, in float32"
_NOT_WITH_DGC = {
    "communication.clip_after_allreduce": "workers put momentum into what they send, so its sum is no gradient to "
    "clip; dgc.clip_norm clips before that",
    "communication.fp16": _ONE_FORM,
    "communication.wire_dtype": _ONE_FORM,
    "local_sgd.k_steps": "between averages nothing is sent that could be compressed",
    "optimizer.lamb": "it is for tf.train.MomentumOptimizer",
    "optimizer.lars": "it is for tf.train.MomentumOptimizer",
    "pipeline.num_micro_batch": "gradients that are added up over micro-batches are not compressed in this version",
    "zero.level": "each worker needs all of the momentum that it keeps",
}


def _overlaps(values):
    if not values["local_sgd.overlap"]:
        return None
    if values["local_sgd.average_slots"]:
        return (
            "local_sgd.overlap=True cannot be used with local_sgd.average_slots=True: where a late average of second "
            "moments is added to what has become of them since, they might turn negative. Set "
            "local_sgd.average_slots=False, or leave local_sgd.overlap at False."
        )
    if values["local_sgd.adaptive"]:
        return (
            "local_sgd.overlap=True cannot be used with local_sgd.adaptive=True, which needs the loss of all workers "
            "at the end of each period. Set one of them only."
        )
    return None


_REPLACES = ("optimizer.lamb", "optimizer.lars")
_NOT_WITH_LOCAL_SGD = (
    "amp.level",
    "auto.auto_parallel",
    "communication.check_replicas_every",
    "communication.clip_after_allreduce",
    "communication.fp16",
    "communication.gradients_reduce_method",
    "communication.sparse_as_dense",
    "communication.sync_batch_norm",
    "communication.wire_dtype",
    "execution.steps_per_run",
    "pipeline.num_micro_batch",
    "zero.level",
)


def _one_wire_form(values):
    if values["communication.wire_dtype"] == "float32" or not values["communication.fp16"]:
        return None
    return (
        "communication.fp16=True and communication.wire_dtype='%s' are two forms for the same gradients. Set only one "
        "of them; communication.wire_dtype='float16' is the one that sends later what 16 bits leave over."
        % values["communication.wire_dtype"]
    )


# Each returns what is wrong with a full set of values, or None.
_OF_LISTS = (
    tuple(map(_without_local_sgd, _NOT_WITH_LOCAL_SGD))
    + tuple(_without_dgc(name, why) for name, why in sorted(_NOT_WITH_DGC.items()))
    + tuple(_needs(name, "amp.level", ("O1", "O2"), 'amp.level="O1" or "O2"') for name in _SCALE_KEYS)
    + tuple(_needs(name, "amp.dtype", ("auto", "float16"), 'amp.dtype="auto" or "float16"') for name in _SCALE_KEYS)
    + tuple(_without_loss_scale(name, why) for name, why in sorted(NOT_WITH_LOSS_SCALE.items()))
)
PAIR_RULES = _OF_LISTS + (
    _own_gradients,
    _needs("communication.fp16_scale", "communication.fp16", (True,), "communication.fp16=True"),
    _one_wire_form,
    _distinct_devices,
    _drop_or_unbalance,
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
    _without_short_gradients("communication.fp16"),
    _without_short_gradients("communication.wire_dtype"),
    _without_short_gradients("dgc.sparsity"),
    _needs("amp.custom_white_list", "amp.level", ("O1", "O2"), 'amp.level="O1" or "O2"'),
    _needs("amp.custom_black_list", "amp.level", ("O1", "O2"), 'amp.level="O1" or "O2"'),
    _needs("amp.debug_log", "amp.level", ("O1", "O2"), 'amp.level="O1" or "O2"'),
    _on_both_lists,
    _needs_any("local_sgd.begin_step", ("local_sgd.k_steps",), "local_sgd.k_steps"),
    _needs_any("local_sgd.adaptive", ("local_sgd.k_steps",), "local_sgd.k_steps"),
    _needs_any("local_sgd.overlap", ("local_sgd.k_steps",), "local_sgd.k_steps"),
    _overlaps,
    _needs_any("local_sgd.init_k_steps", ("local_sgd.adaptive",), "local_sgd.adaptive"),
    _needs_any("local_sgd.average_slots", ("local_sgd.k_steps",), "local_sgd.k_steps"),
    _needs_any("dgc.rampup_begin_step", ("dgc.sparsity",), "dgc.sparsity"),
    _needs_any("dgc.rampup_step", ("dgc.sparsity",), "dgc.sparsity"),
    _needs_any("dgc.min_elements", ("dgc.sparsity",), "dgc.sparsity"),
    _needs_any("dgc.clip_norm", ("dgc.sparsity",), "dgc.sparsity"),
    _needs_any("dgc.save_residuals", ("dgc.sparsity",), "dgc.sparsity"),
    _repeats_alone,
    _needs("io.unbalanced_io_slicing", "io.slicing", (True,), "io.slicing=True"),
    _needs_any("zero.degree", ("zero.level",), "zero.level"),
    _needs("zero.segment_mb", "zero.level", ("v2", "v3"), 'zero.level="v2" or "v3"'),
    _needs("io.drop_last_files", "io.slicing", (True,), "io.slicing=True"),
    _needs("pipeline.num_stages", "auto.auto_parallel", (True,), "auto.auto_parallel=True"),
    _needs(
        "gradient_checkpoint.end_taskgraph", "gradient_checkpoint.type", ("auto",), 'gradient_checkpoint.type="auto"'
    ),
    _needs(
        "gradient_checkpoint.memory_limit_mb", "gradient_checkpoint.type", ("auto",), 'gradient_checkpoint.type="auto"'
    ),
)
