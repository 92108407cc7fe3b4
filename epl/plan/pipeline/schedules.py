"""Pipeline schedules: in which order each device works on the micro-batches of its stages. Plain data, no TensorFlow.

A schedule is a list with one entry per device, each a list of `Action`s in the order in which the device runs them.
Stage s lies on device s % num_devices; with several chunks a device holds the stages device, device + num_devices, …
To add a schedule, write one function of (num_devices, num_micro_batch, num_chunks) and name it in `_STRATEGIES`;
`epl.plan.pipeline.simulate` tells whether it deadlocks, how long devices idle and how many activations are alive.
"""

import collections
import difflib

from epl.errors import ConfigError

FORWARD, BACKWARD, WEIGHT = "F", "B", "W"


class Action(collections.namedtuple("Action", "kind stage micro_batch")):
    """What a device does at one time.

    Attributes:
      kind: "F" forward; "B" backward; "W" gradients with respect to weights. Where a schedule has W, its B gives the
        gradients with respect to a stage's inputs only; where it has none, B is the whole backward pass.
      stage: counted over all chunks, from 0.
      micro_batch: from 0.
    """

    __slots__ = ()

    def __str__(self):
        return "%s%d.%d" % self


def needs(action, num_stages):
    """The actions whose results an action uses, as a tuple.

    F needs F of the stage before; B needs F of its own stage and B of the stage behind; W needs B of its own stage.
    """
    kind, stage, micro_batch = action
    if kind == FORWARD:
        return (Action(FORWARD, stage - 1, micro_batch),) if stage else ()
    if kind == WEIGHT:
        return (Action(BACKWARD, stage, micro_batch),)
    own = (Action(FORWARD, stage, micro_batch),)
    return own + (Action(BACKWARD, stage + 1, micro_batch),) if stage + 1 < num_stages else own


def schedule(strategy, num_devices, num_micro_batch, num_chunks=1):
    """The order of work of each device for one training iteration.

    Args:
      strategy: one of `strategies()`, in any case.
      num_devices: pipeline devices of one model replica.
      num_micro_batch: micro-batches of one training iteration.
      num_chunks: stages per device.

    Returns:
      A list (per device) of lists of Action.

    Raises:
      ConfigError: unknown strategy, a number below 1, or more chunks than the strategy can run.
    """
    for name, value in (
        ("num_devices", num_devices),
        ("num_micro_batch", num_micro_batch),
        ("num_chunks", num_chunks),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError("%s of a pipeline is a whole number of at least 1, not %r" % (name, value))
    name = strategy_name(strategy)
    if num_chunks > 1 and name not in _SEVERAL_CHUNKS:
        raise ConfigError(
            "pipeline.strategy='%s' runs one stage on each device, not %d; with %d stages take %d devices, or "
            "pipeline.strategy='Interleaved'" % (name, num_chunks, num_devices * num_chunks, num_devices * num_chunks)
        )
    return _STRATEGIES[name](num_devices, num_micro_batch, num_chunks)


def strategies():
    """The names that `pipeline.strategy` takes."""
    return tuple(_STRATEGIES)


def strategy_name(text):
    """A strategy's name in its own spelling, from any case and with or without "_" and "-".

    Raises:
      ConfigError: there is no such strategy; names the nearest.
    """
    known = {_plain(name): name for name in _STRATEGIES}
    if isinstance(text, str) and _plain(text) in known:
        return known[_plain(text)]
    near = difflib.get_close_matches(_plain(str(text)), known, n=1, cutoff=0.5)
    raise ConfigError(
        "pipeline.strategy=%r is not known. %sKnown are: %s."
        % (text, "Did you mean '%s'? " % known[near[0]] if near else "", ", ".join("'%s'" % n for n in _STRATEGIES))
    )


def _plain(text):
    return text.lower().replace("_", "").replace("-", "")


def prefer_forward(num_devices, num_micro_batch, num_chunks=1):
    """GPipe: all forward passes, then all backward passes. Keeps the activations of all micro-batches.

    Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", NeurIPS 2019,
    section 2.3. With several chunks a device finishes one chunk for all micro-batches before the next (breadth-first:
    Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023).
    """
    devices = []
    for device in range(num_devices):
        stages = [chunk * num_devices + device for chunk in range(num_chunks)]
        forward = [Action(FORWARD, s, m) for s in stages for m in range(num_micro_batch)]
        backward = [Action(BACKWARD, s, m) for s in reversed(stages) for m in range(num_micro_batch)]
        devices.append(forward + backward)
    return devices


def prefer_backward(num_devices, num_micro_batch, num_chunks=1):
    """1F1B: a backward pass as soon as there is one. At most num_devices - s micro-batches are alive at stage s.

    Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.2; with one
    update per iteration: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021 (PipeDream-
    Flush).
    """
    assert num_chunks == 1, num_chunks
    return interleaved(num_devices, num_micro_batch, 1)


def interleaved(num_devices, num_micro_batch, num_chunks=1):
    """Interleaved 1F1B: several stages on each device, so that the pipeline fills and drains in smaller steps.

    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
    section 2.2. There the number of micro-batches is a multiple of the devices. Here the micro-batches are divided into
    groups of at least num_devices and of about equal size, and a device takes a group through all its chunks before
    the next group, so that any number works. With fewer micro-batches than devices there is one group. Device d keeps
    at most the activations of 2 (num_devices - d - 1) + (num_chunks - 1) × (largest group) + 1 forward passes of a
    stage; with one chunk this is 1F1B.
    """
    groups = _groups(num_micro_batch, num_devices)
    passes = num_micro_batch * num_chunks
    devices = []
    for device in range(num_devices):
        forward, backward = [], []
        for group in groups:
            for chunk in range(num_chunks):
                forward.extend(Action(FORWARD, chunk * num_devices + device, m) for m in group)
                last = (num_chunks - 1 - chunk) * num_devices + device
                backward.extend(Action(BACKWARD, last, m) for m in group)
        ahead = num_devices - device - 1
        if num_chunks > 1:
            ahead = 2 * ahead + (num_chunks - 1) * len(groups[0])
        devices.append(_one_forward_one_backward(forward, backward, min(passes, ahead)))
    return devices


def _groups(num_micro_batch, num_devices):
    """Micro-batches in runs of about equal length, the longest first; each at least num_devices long if it can be."""
    count = max(1, num_micro_batch // num_devices)
    size, rest = divmod(num_micro_batch, count)
    groups, begin = [], 0
    for index in range(count):
        end = begin + size + (1 if index < rest else 0)
        groups.append(range(begin, end))
        begin = end
    return groups


def _one_forward_one_backward(forward, backward, ahead):
    """`ahead` forward passes, then one forward and one backward in turn, then the backward passes that are left."""
    order = list(forward[:ahead])
    for index, action in enumerate(backward):
        order.extend(forward[ahead + index : ahead + index + 1])
        order.append(action)
    return order


def zero_bubble(num_devices, num_micro_batch, num_chunks=1):
    """ZB-H1: 1F1B with the backward pass split, gradients of weights filling the time in which 1F1B waits.

    Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.1. Stage s puts off the gradients of weights by
    s micro-batches; so at most num_devices micro-batches are alive at any stage, as at 1F1B's first stage, and the time
    that a device idles shrinks from (num_devices - 1)(F + B + W) to (num_devices - 1)(F + B - W), for W no longer than
    F and B.
    """
    assert num_chunks == 1, num_chunks
    devices = []
    for stage, actions in enumerate(prefer_backward(num_devices, num_micro_batch)):
        order = []
        for action in actions:
            order.append(action)
            if action.kind == BACKWARD and action.micro_batch >= stage:
                order.append(Action(WEIGHT, stage, action.micro_batch - stage))
        first_left = max(0, num_micro_batch - stage)
        order.extend(Action(WEIGHT, stage, m) for m in range(first_left, num_micro_batch))
        devices.append(order)
    return devices


_STRATEGIES = collections.OrderedDict(
    [
        ("PreferBackward", prefer_backward),
        ("PreferForward", prefer_forward),
        ("Interleaved", interleaved),
        ("ZeroBubble", zero_bubble),
    ]
)
_SEVERAL_CHUNKS = ("PreferForward", "Interleaved")
