"""What goes together: each pair of features that is refused, the reason, and what to do instead. All others compose.

Refusals anywhere in the library have their words from here, and so have docs/composes.md and the pairs of
docs/not_supported.md (scripts/composes.py). A text names what is known only when it is raised as `%(node)s`.
"""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Optional

from epl.config.keys import keys
from epl.errors import UnsupportedError

# When a pair is refused.
AT_CONFIG, AT_FIRST_RUN = "when the `epl.Config` is made", "at the first run"


@dataclass(frozen=True)
class Feature:
    """One of the things that can be combined.

    Attributes:
      name: as the pages call it.
      key: the key of the configuration that asks for it; "" for what the program, or its layout, has.
      is_set: function of all values of a configuration to whether they ask for it; None where `key` alone says it, by
        another value than its default.
    """

    name: str
    key: str = ""
    is_set: Optional[Callable[[Dict[str, Any]], bool]] = None

    def in_values(self, values):
        """Whether the values of a configuration ask for it."""
        if not self.key:
            return False
        return self.is_set(values) if self.is_set is not None else values[self.key] != keys()[self.key].default


@dataclass(frozen=True)
class Refusal:
    """Why two features do not go together.

    Attributes:
      one, other: the Features.
      text: the message, in which `%(name)s` stand for facts.
      instead: what to do, for the pages.
      when: AT_CONFIG, where keys alone say it; or AT_FIRST_RUN.
      facts: those that are known already.
    """

    one: Feature
    other: Feature
    text: str
    instead: str
    when: str = AT_FIRST_RUN
    facts: Dict[str, Any] = field(default_factory=dict)

    def message(self, **facts):
        known = {name: value % facts if "%(" in str(value) else value for name, value in self.facts.items()}
        return self.text % dict(known, **facts)


def names_loss_scale(values):
    """Whether keys ask for a loss scale, and so for float16 where amp.dtype leaves that open."""
    return any(values[name] != keys()[name].default for name in LOSS_SCALE_KEYS)


LOSS_SCALE_KEYS = (
    "amp.loss_scale",
    "amp.init_loss_scale",
    "amp.incr_every_n_steps",
    "amp.decr_every_n_nan_or_inf",
    "amp.incr_ratio",
    "amp.decr_ratio",
)


def _of_key(key, is_set=None, name=None):
    return Feature(name or "`%s`" % key, key, is_set)


def _sums(values):
    return values["communication.gradients_reduce_method"] == "sum"


def _scales(values):
    half = values["amp.dtype"] == "float16" or values["amp.dtype"] == "auto" and names_loss_scale(values)
    return bool(values["amp.level"]) and half and values["amp.loss_scale"] != 1


# How gradients, and what else workers have, are exchanged.
LOCAL_SGD = _of_key("local_sgd.k_steps")
OVERLAP = _of_key("local_sgd.overlap", lambda v: v["local_sgd.overlap"] and v["local_sgd.k_steps"])
ADAPTIVE = _of_key("local_sgd.adaptive")
AVERAGE_SLOTS = _of_key("local_sgd.average_slots", lambda values: values["local_sgd.average_slots"])
DGC = _of_key("dgc.sparsity")
WIRE = _of_key("communication.wire_dtype")
FP16 = _of_key("communication.fp16")
SPARSE_AS_DENSE = _of_key("communication.sparse_as_dense")
CLIP_AFTER = _of_key("communication.clip_after_allreduce")
REDUCE_SUM = _of_key("communication.gradients_reduce_method", _sums, '`communication.gradients_reduce_method="sum"`')
CHECK_REPLICAS = _of_key("communication.check_replicas_every")
SYNC_BN = _of_key("communication.sync_batch_norm")
# Numbers and memory.
AMP = _of_key("amp.level")
FLOAT16 = _of_key("amp.dtype", _scales, '`amp.dtype="float16"`')
O2 = _of_key("amp.level", lambda values: values["amp.level"] == "O2", '`amp.level="O2"`')
ZERO = _of_key("zero.level")
ZERO_GRADIENTS = _of_key("zero.level", lambda v: v["zero.level"] not in ("", "v0"), '`zero.level` from `"v1"` on')
ZERO_GROUPS = Feature("`zero.degree` of several workers, but not all")
OFFLOAD = _of_key("offload.level")
OFFLOAD_KEPT = _of_key("gradient_checkpoint.offload")
RECOMPUTE = _of_key("gradient_checkpoint.type")
CHECK_GRADIENTS = _of_key("gradient_checkpoint.check_gradients")
UPDATE_GROUPS = _of_key("optimizer.num_apply_group")
LAMB, LARS = _of_key("optimizer.lamb"), _of_key("optimizer.lars")
# How steps are run and fed.
MICRO_BATCHES = _of_key("pipeline.num_micro_batch")
STEPS = _of_key("execution.steps_per_run")
XLA = _of_key("execution.xla")
EQUAL_STEPS = _of_key("io.equal_steps", lambda v: v["io.equal_steps"] == "repeat", '`io.equal_steps="repeat"`')
DATA_POSITION = _of_key("checkpoint.data_position")
UNBALANCED, DROP_LAST = _of_key("io.unbalanced_io_slicing"), _of_key("io.drop_last_files")
# How a model lies on devices.
STAGES = Feature("stages of a pipeline")
OVER_WORKERS = Feature("stages of a pipeline in several workers")
SEVERAL_DEVICES = Feature("`epl.replicate(k)` with `k` above 1")
SPLIT = Feature("`epl.split`")
ROWS = Feature("`epl.replicate(k)` with `k` above 1, of a batch of fixed size")
UNEVEN = Feature("scopes with different `device_count`")
SPREAD = Feature("scopes with different `device_count`, in several workers")
CHUNKS, COLOCATE = _of_key("pipeline.num_chunks"), _of_key("cluster.colocate_split_and_replicate")
WEIGHTS = _of_key("cluster.device_weights")
AUTO = _of_key("auto.auto_parallel")
# What a program has.
COLLECTIVES = Feature("collectives of `epl.ops`")
BY_HAND = Feature("gradients that the program assigns to variables by itself")
GLOBAL_MERGES = Feature("tensors in `epl.GraphKeys.GLOBAL_…` over several workers")

# What a feature has besides, so that it does not go together with what that refuses.
IMPLIES = {
    OVERLAP: (LOCAL_SGD,),
    ADAPTIVE: (LOCAL_SGD,),
    AVERAGE_SLOTS: (LOCAL_SGD,),
    FLOAT16: (AMP,),
    O2: (AMP,),
    ZERO_GRADIENTS: (ZERO,),
    ZERO_GROUPS: (ZERO,),
    OVER_WORKERS: (STAGES,),
    SPREAD: (UNEVEN, OVER_WORKERS),
    CHUNKS: (STAGES,),
    COLOCATE: (STAGES,),
    AUTO: (STAGES,),
    UNEVEN: (STAGES, SEVERAL_DEVICES),
    WEIGHTS: (SEVERAL_DEVICES,),
}

# What needs as many copies of all that a model has, so that scopes with different device counts get these
# (epl.plan.layout.mesh.Mesh.stacked).
STACKED = ZERO, OFFLOAD, OFFLOAD_KEPT, SYNC_BN, UPDATE_GROUPS, FLOAT16

FEATURES = tuple(value for value in list(globals().values()) if isinstance(value, Feature))

_ONE = "one of the two"


def _off(feature):
    """How the message says that a key is to be left out."""
    default = keys()[feature.key].default
    return '"%s"' % default if isinstance(default, str) else "[]" if default == () else repr(default)


def _refusals():
    """The Refusals, in the order in which the first that applies is raised."""
    found = []

    def refuse(one, others, text, instead=_ONE, when=AT_FIRST_RUN, **facts):
        for other in others:
            own = {"key": other.key, "off": _off(other)} if other.key and "%(off)s" in text else {}
            found.append(Refusal(one, other, text, instead, when, dict(own, **facts)))

    # Keys that contradict each other: `value` and `default` are those of `key`, `own` that of the other one.
    refuse(
        LOCAL_SGD,
        [AMP, AUTO, CHECK_REPLICAS, FP16, REDUCE_SUM, SYNC_BN, WIRE, STEPS, ZERO_GRADIENTS],
        "%(key)s=%(value)r cannot be used with local_sgd.k_steps=%(own)d, where each copy of the model trains by "
        "itself "
        "between averages. Leave %(key)s at %(default)r, or local_sgd.k_steps at 0.",
        when=AT_CONFIG,
    )
    one_form = "what is kept back of gradients is sent later as it is, in float32"
    with_momentum = "it is for tf.train.MomentumOptimizer"
    for other, why in (
        (
            CLIP_AFTER,
            "workers put momentum into what they send, so its sum is no gradient to clip; dgc.clip_norm clips before "
            "that",
        ),
        (FP16, one_form),
        (WIRE, one_form),
        (LOCAL_SGD, "between averages nothing is sent that could be compressed"),
        (LAMB, with_momentum),
        (LARS, with_momentum),
        (ZERO, "each worker needs all of the momentum that it keeps"),
    ):
        refuse(
            DGC,
            [other],
            "%(key)s=%(value)r cannot be used with dgc.sparsity=%(own)r: %(why)s. Leave %(key)s at %(default)r, or "
            "dgc.sparsity at [].",
            when=AT_CONFIG,
            why=why,
        )
    for other, why in (
        (
            WIRE,
            "what fewer bits leave over is sent later, when the scale may be another, or the step one that is left out",
        ),
        (
            DGC,
            "what is kept back of gradients is sent later, when the scale may be another, or the step one that is left "
            "out",
        ),
    ):
        refuse(
            FLOAT16,
            [other],
            '%(key)s=%(value)r cannot be used with amp.dtype="float16": %(why)s. Leave it at %(default)r, or set '
            'amp.dtype="bfloat16".',
            '`amp.dtype="bfloat16"`',
            AT_CONFIG,
            why=why,
        )
    refuse(
        O2,
        [FP16, WIRE, DGC],
        '%(key)s=%(value)r cannot be used with amp.level="O2", at which gradients travel in 16 bits already. '
        "Leave it at "
        '%(default)r, or set amp.level="O1".',
        '`amp.level="O1"`',
        AT_CONFIG,
    )
    refuse(
        FP16,
        [WIRE],
        "communication.fp16=True and communication.wire_dtype='%(value)s' are two forms for the same gradients. "
        "Set only "
        "one of them; communication.wire_dtype='float16' is the one that sends later what 16 bits leave over.",
        when=AT_CONFIG,
    )
    refuse(
        EQUAL_STEPS,
        [LOCAL_SGD],
        'io.equal_steps="repeat" cannot be used with %(key)s=%(value)d: workers ask each other before each step '
        'whether any has new data. Set io.equal_steps to "" or "drop", or leave %(key)s at %(default)d.',
        '`"drop"`',
        AT_CONFIG,
    )
    refuse(
        DATA_POSITION,
        [EQUAL_STEPS],
        'checkpoint.data_position="%(own)s" cannot be used with io.equal_steps="repeat": checkpoints do not tell '
        "which of a worker's data was read for a second time. "
        'Set io.equal_steps to "" or "drop".',
        '`io.equal_steps="drop"`',
        AT_CONFIG,
    )
    refuse(
        OVERLAP,
        [AVERAGE_SLOTS],
        "local_sgd.overlap=True cannot be used with local_sgd.average_slots=True: where a late average of second "
        "moments is added to what has become of them since, they might turn negative. Set "
        "local_sgd.average_slots=False, or leave local_sgd.overlap at False.",
        "`local_sgd.average_slots=False`",
        AT_CONFIG,
    )
    refuse(
        OVERLAP,
        [ADAPTIVE],
        "local_sgd.overlap=True cannot be used with local_sgd.adaptive=True, which needs the loss of all workers "
        "at the end of each period. Set one of them only.",
        when=AT_CONFIG,
    )
    refuse(
        UNBALANCED,
        [DROP_LAST],
        "io.unbalanced_io_slicing and io.drop_last_files contradict each other: the first gives the files "
        "that are left over to some workers, the second drops them. Set only one of them.",
        when=AT_CONFIG,
    )

    # Stages that have different numbers of devices; `counts` says how many each has.
    refuse(
        UNEVEN,
        [COLOCATE, CHUNKS],
        "the scopes of this model have different device counts (%(counts)s), which does not go together with "
        "%(key)s in "
        "this version. Set it to %(off)s, or use the same device_count in all scopes.",
        "the same in all scopes",
    )
    refuse(
        UNEVEN,
        [SPLIT],
        "the scopes of this model have different device counts (%(counts)s), which does not go together with epl.split "
        "in this version. Use the same device_count in all scopes: epl.replicate(k) divides its batch over as many "
        "devices as epl.split(k) has.",
        "`epl.replicate(k)` for `epl.split(k)`",
    )
    uneven = (
        "%(key)s does not go together with scopes of different device counts (%(counts)s) whose copies lie in several "
        "workers. Set it to %(off)s, give each worker all devices of a copy, or use the same device_count in all "
        "scopes."
    )
    refuse(SPREAD, [each for each in STACKED if each is not FLOAT16], uneven)
    found.append(
        Refusal(SPREAD, FLOAT16, uneven, _ONE, facts={"key": "amp.dtype (a loss that is scaled)", "off": '"bfloat16"'})
    )
    refuse(
        UNEVEN,
        [COLLECTIVES],
        "'%(node)s' is a collective that the program made with epl.ops, which does not go together with scopes of "
        "different device counts in this version: stages have different numbers of copies. Use the same "
        "device_count in all scopes.",
        "leave them out",
    )

    # A model that devices divide.
    for one, what, instead in (
        (SPLIT, "epl.split", "epl.replicate"),
        (ROWS, "epl.replicate(%(devices)d) of a batch of fixed size", "epl.replicate(1)"),
    ):
        refuse(
            one,
            [LOCAL_SGD, DGC, XLA],
            "%(key)s does not go together with %(what)s in this version. Set it to %(off)s, or use %(other)s.",
            _ONE if one is SPLIT else "batches of unknown size (`batch(n)` without `drop_remainder`)",
            what=what,
            other=instead,
        )
        refuse(
            one,
            [COLLECTIVES],
            "'%(node)s' is a collective that the program made with epl.ops, which does not go together with "
            "%(what)s in "
            "this version: the devices of one copy of the model would take part in it as if each were a copy.",
            "leave them out",
            what=what,
        )
        refuse(
            WEIGHTS,
            [one],
            "cluster.device_weights=(%(weights)s) does not go together with a model that devices divide (epl.split, or "
            "epl.replicate of a batch of fixed size) in this version: its devices have equal parts. Leave the key out, "
            "or leave the number of rows open: batch(...) without drop_remainder, a placeholder of shape [None, ...].",
            "leave the weights out",
        )
    refuse(
        WEIGHTS,
        [UNEVEN],
        "cluster.device_weights=(%(weights)s) does not go together with scopes of different device counts in this "
        "version: its devices have equal parts. Leave the key out.",
        "leave the weights out",
    )
    refuse(
        WEIGHTS,
        [COLLECTIVES],
        "cluster.device_weights=(%(weights)s) does not go together with '%(node)s', a collective that the program made "
        "with epl.ops, in this version, which takes what the devices have for equal parts of a batch. Leave one of "
        "them out.",
    )
    refuse(
        WIRE,
        [SPREAD],
        "communication.wire_dtype cannot be used with scopes of different device counts (%(counts)s) where a copy of "
        "the model lies in several workers, in this version. Leave it at 'float32', or use communication.fp16.",
        "`communication.fp16`",
    )
    refuse(
        ZERO_GROUPS,
        [OVER_WORKERS, SPLIT, ROWS],
        "zero.degree=%(degree)d, groups of several workers but not of all, cannot be used where a copy of the "
        "model lies "
        "in several workers, or devices divide tensors (epl.split). Set zero.degree to the copies of the model in "
        "one worker, %(copies)d, or leave it at 0, which means all.",
        "`zero.degree` of the copies in one worker, or of all",
    )
    refuse(
        LOCAL_SGD,
        [STAGES, SEVERAL_DEVICES],
        "local_sgd.k_steps cannot be used with a model of several stages, or one copy of which computes on several "
        "devices (replicate or split with a device_count above 1). Use epl.replicate(1) alone, or leave "
        "local_sgd.k_steps at 0.",
        "`epl.replicate(1)` alone",
    )
    refuse(
        LOCAL_SGD,
        [GLOBAL_MERGES],
        "local_sgd.k_steps cannot be used with tensors in a collection epl.GraphKeys.GLOBAL_..., '%(tensor)s' for one: "
        "workers would wait for each other in every step that fetches them. Use the LOCAL_... collection, which "
        "merges over the devices of a worker.",
        "`epl.GraphKeys.LOCAL_…`",
    )
    refuse(
        LOCAL_SGD,
        [COLLECTIVES],
        "local_sgd.k_steps cannot be used with collectives of the program itself (epl.ops), '%(node)s' for one: "
        "workers "
        "would wait for each other in every step. Leave them out, or leave local_sgd.k_steps at 0.",
        "leave them out",
    )
    refuse(
        DGC,
        [STAGES, SEVERAL_DEVICES],
        "dgc.sparsity cannot be used with a model of several stages, or one copy of which computes on several "
        "devices (replicate or split with a device_count above 1). Use epl.replicate(1) alone, or set dgc.sparsity "
        "to [].",
        "`epl.replicate(1)` alone",
    )
    for other, what in (
        (SPLIT, "epl.split"),
        (ROWS, "epl.split"),
        (OVER_WORKERS, "stages of a pipeline in several workers"),
    ):
        refuse(
            EQUAL_STEPS,
            [other],
            'io.equal_steps="repeat" does not go together with %(what)s, where several workers compute one copy of the '
            'model and read the same data. Set io.equal_steps to "" or "drop".',
            '`"drop"`',
            what=what,
        )
    refuse(
        COLLECTIVES,
        [OVER_WORKERS],
        "'%(node)s' (%(op)s) is a collective that the program made with epl.ops, but the stages of this model lie in "
        "several workers, of which only one has this stage. Put all stages into one worker (epl-launch "
        "--gpu_per_worker), or leave the collective out.",
        "all stages in one worker",
    )
    refuse(
        COLLECTIVES,
        [MICRO_BATCHES],
        "'%(node)s' is a collective that the program made with epl.ops; it cannot be repeated for each of several "
        "micro-batches. Leave pipeline.num_micro_batch at 1.",
        "one micro-batch",
    )

    # Gradients that no optimizer gets; `variable` is one that they change.
    refuse(
        BY_HAND,
        [STEPS],
        "execution.steps_per_run=%(steps)d repeats calls of optimizers (apply_gradients), but the program "
        "assigns what it "
        "makes of gradients to variables itself, '%(variable)s' for one. Leave the key at 1.",
        "an optimizer's `apply_gradients`",
    )
    refuse(
        BY_HAND,
        [EQUAL_STEPS],
        'io.equal_steps="repeat" is for training by optimizers (apply_gradients), but the program assigns what '
        "it makes "
        "of gradients to variables itself, '%(variable)s' for one. Use an optimizer, or set io.equal_steps to \"\" or "
        '"drop".',
        '`"drop"`',
    )
    refuse(
        BY_HAND,
        [LAMB, LARS],
        "optimizer.lamb and optimizer.lars replace tf.train.AdamOptimizer and tf.train.MomentumOptimizer, but the "
        "program assigns what it makes of gradients to variables itself, '%(variable)s' for one. Use one of these "
        "optimizers, or set the key to False.",
        "one of the optimizers",
    )
    refuse(
        BY_HAND,
        [O2],
        'amp.level="O2" keeps gradients in 16 bits until an optimizer gets them, but the program assigns what it '
        "makes of "
        "gradients to variables itself, '%(variable)s' for one. Use an optimizer's apply_gradients, or set "
        'amp.level="O1".',
        '`apply_gradients`; or `"O1"`',
    )
    refuse(
        BY_HAND,
        [FLOAT16],
        'amp.dtype="float16" leaves out updates whose gradients are not finite, but the program assigns what it '
        "makes of "
        "gradients to variables itself, '%(variable)s' for one. Use an optimizer's apply_gradients. %(advice)s",
        "`apply_gradients`; or bfloat16",
    )
    refuse(
        BY_HAND,
        [ZERO],
        "zero.level divides the updates of optimizers, but this program assigns to '%(variable)s' what it makes of "
        "gradients itself. Use an optimizer, or leave zero.level at ''.",
        "an optimizer",
    )
    refuse(
        BY_HAND,
        [DGC],
        "dgc.sparsity is for tf.train.MomentumOptimizer without Nesterov momentum, but the program assigns "
        "gradients to "
        "variables itself. Train with that, or set dgc.sparsity to [].",
        "`tf.train.MomentumOptimizer`",
    )
    refuse(
        BY_HAND,
        [WIRE],
        "communication.wire_dtype cannot be used with programs that assign what they make of gradients to variables "
        "themselves. Leave it at 'float32', or use communication.fp16.",
        "`communication.fp16`",
    )
    return tuple(found)


REFUSALS = _refusals()
_BY_PAIR = {frozenset([each.one, each.other]): each for each in REFUSALS}


def refusal(one, other):
    """The Refusal of two features, or of what they imply; None where they compose."""
    pairs = {frozenset([first, second]) for first in _with_implied(one) for second in _with_implied(other)}
    direct = _BY_PAIR.get(frozenset([one, other]))
    return direct or next((each for each in REFUSALS if frozenset([each.one, each.other]) in pairs), None)


def _with_implied(feature):
    return (feature,) + IMPLIES.get(feature, ())


def refused(one, other, **facts):
    """The UnsupportedError that says why two features do not go together, with the facts that its text names."""
    return _error(refusal(one, other), facts)


def _error(found, facts):
    return UnsupportedError(found.message(**facts))


def check(features, **facts):
    """Raises UnsupportedError for the first pair among some features that does not go together."""
    features = frozenset(features)
    for each in REFUSALS:
        if each.one in features and each.other in features:
            raise _error(each, facts)


def in_force(values):
    """The Features that the values of a configuration ask for."""
    return frozenset(feature for feature in FEATURES if feature.in_values(values))


def problem_of(values):
    """What is wrong with a full set of values, as two keys contradict each other; None where nothing is."""
    features = in_force(values)
    for each in REFUSALS:
        if each.when == AT_CONFIG and each.one in features and each.other in features:
            key, own = each.other.key, values[each.one.key]
            return each.message(
                key=key,
                value=values[key],
                default=keys()[key].default,
                own=list(own) if isinstance(own, tuple) else own,
            )
    return None
