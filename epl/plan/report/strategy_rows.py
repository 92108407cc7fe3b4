"""The strategies that are in force, and what each of them costs or saves in a training step."""

from dataclasses import dataclass
from typing import Optional

from epl.graph import tags
from epl.plan.facts.variable_sizes import size_bytes
from epl.plan.layout.layout import BY_SPEED
from epl.plan.precision.precision import O2
from epl.program.collective import (
    ALL_REDUCE,
    ALL_TO_ALL,
    DATA,
    FOUND_INF,
    GRADIENTS,
    PARAMETERS,
    REDUCE_SCATTER,
    SPARSE_ALL_REDUCE,
)


@dataclass(frozen=True)
class StrategyRow:
    """One of them.

    Attributes:
      key: of the configuration, with its value.
      effect: in words.
      sent_bytes: that one worker hands to collectives in a step more than without it, on average in the long run;
        negative: fewer. None where the plan cannot tell.
      kept_bytes: of variables that this worker holds more than without it; negative: fewer.
    """

    key: str
    effect: str
    sent_bytes: Optional[int] = 0
    kept_bytes: int = 0


def strategies_of(program, plan, config):
    """A tuple of Strategies.

    Args:
      program: the Program for which the plan was made.
      plan: its Plan.
      config: the epl.Config by which it was made.
    """
    if not program.apply_calls:
        return ()
    found = [_named(config, key, made) for key, made in _all(program, plan, config)]
    return tuple(strategy for strategy in found if strategy is not None)


def _named(config, key, made):
    """The StrategyRow with its key and value; None where nothing was made."""
    if made is None:
        return None
    group, name = key.split(".")
    effect, sent, kept = (made + (0, 0))[:3]
    return StrategyRow("%s=%s" % (key, getattr(getattr(config, group), name)), effect, sent, kept)


def _all(program, plan, config):
    """(key, None or (effect, bytes sent, bytes kept)) of each strategy that there is."""
    several, between = plan.mesh.copies.size > 1, plan.mesh.copies.num_workers > 1
    yield "pipeline.num_micro_batch", _of_micro_batches(plan)
    yield "cluster.device_weights", _of_weights(plan, config)
    yield "optimizer.lamb", ("Adam as LAMB: norms of each variable and its update",) if config.optimizer.lamb else None
    yield "optimizer.lars", ("Momentum as LARS: two norms a variable",) if config.optimizer.lars else None
    yield "optimizer.num_apply_group", _of_groups(plan)
    yield "amp.level", _of_precision(program, plan, config)
    yield "amp.loss_scale", _of_loss_scale(program, plan)
    yield "gradient_checkpoint.type", _of_recomputation(program, config)
    yield "zero.level", _of_zero(plan)
    yield "gradient_checkpoint.offload", _of_kept(plan, config)
    yield "offload.level", _of_offload(program, config)
    yield "local_sgd.k_steps", _of_local_sgd(program, plan)
    yield "dgc.sparsity", _of_dgc(plan)
    yield "communication.fp16", _of_half(plan) if plan.wire_fp16 and between else None
    yield "communication.wire_dtype", _of_wire(plan)
    sparse = len(plan.aggregation.sparse) if plan.sparse_as_dense and between else 0
    yield "communication.sparse_as_dense", ("%d sparse gradients travel whole" % sparse, None) if sparse else None
    norms = len(plan.batch_norms) if several else 0
    yield "communication.sync_batch_norm", ("%d exchanges of statistics" % norms, None) if norms else None
    yield "communication.check_replicas_every", _of_checks(plan, config)
    yield "io.equal_steps", _of_equal_steps(plan, config) if between else None
    tuned = ("TensorFlow chooses how parallel data sets are, and how much they prefetch",)
    yield "io.autotune", tuned if plan.io_autotune else None
    yield "io.prefetch_to_device", _of_prefetched(plan)
    yield "checkpoint.data_position", _of_positions(plan)
    yield "execution.xla", ("clusters of operations are compiled",) if config.execution.xla else None
    repeats = plan.steps_per_run
    every = config.execution.fetch_every
    yield "execution.fetch_every", ("losses and summaries come from one of %d steps" % every,) if every > 1 else None
    yield "execution.steps_per_run", ("workers agree once in %d steps" % repeats,) if repeats > 1 else None


def _of_weights(plan, config):
    """Where speeds were measured, the configuration has what came of them by the time the plan is made."""
    weights = plan.mesh.weights
    if config.cluster.device_weights == BY_SPEED and plan.mesh.num_shards > 1:
        return ("equal parts of a batch, until the first run measures how fast the devices are",)
    told = "devices have %s of %d parts of a batch"
    return (told % (", ".join(map(str, weights)), sum(weights)),) if weights else None


def _of_equal_steps(plan, config):
    """Without "repeat" data ends with the end of a step that is exchanged anyway."""
    if plan.repeated:
        how = "%d data sets begin again until those of all workers have been seen"
        return how % len(plan.repeated), plan.sent_bytes(DATA)
    drops = config.io.equal_steps == "drop"
    return ("training ends with the data of the worker that has least",) if drops else None


def _of_prefetched(plan):
    how = "batches of %d data sets are on their devices before the steps that use them"
    return (how % len(plan.prefetched),) if plan.prefetched else None


def _of_positions(plan):
    return ("checkpoints keep how far %d data sets have been read" % len(plan.positions),) if plan.positions else None


def _of_micro_batches(plan):
    if plan.micro_batches is None:
        return None
    return ("gradients are added up over %d micro-batches, and sent once" % plan.micro_batches.count,)


def _of_groups(plan):
    return ("updates in %d groups, one after the other" % plan.num_apply_group,) if plan.num_apply_group > 1 else None


def _of_precision(program, plan, config):
    if not config.amp.level:
        return None
    effect = "products%s in %s" % (" and gradients" if config.amp.level == O2 else "", program.sixteen_bits)
    if plan.mesh.copies.num_workers == 1:
        return (effect,)
    types = set(program.short.values())
    short = (each for each in _gradients_sent(plan) if each.dtype in types)
    return effect, -sum(each.tensor_bytes for each in short)  # in float32 they would be twice as large


def _of_loss_scale(program, plan):
    if not program.scaled:
        return None
    judged = sum(len(found_inf.flags) for found_inf in program.scaled)
    how = "a step in which one of %d gradients is not finite is left out on all workers" % judged
    return how, plan.sent_bytes(FOUND_INF)


def _of_recomputation(program, config):
    again = len(program.again)
    if not again and not config.gradient_checkpoint.type:
        return None
    return ("%d operations of the forward pass are computed again" % again,)


def _of_zero(plan):
    if plan.zero is None:
        return None
    size, zero = plan.zero.state_bytes, plan.zero
    here = sum(size[rank] for rank in zero.of_worker(zero.shard_group.index))
    sent = plan.sent_bytes(PARAMETERS)
    effect = "each device keeps its part of the optimizer's state, and gives others what it updates"
    if zero.segments:
        effect = "each device keeps its part of the parameters and their state; others get these in %d segment%s"
        effect %= len(zero.segments), "s" if len(zero.segments) > 1 else ""
    return (
        effect,
        sent,
        zero.replicate_group.local * (here - zero.shard_group.local * sum(size)),
    )


def _of_kept(plan, config):
    if not config.gradient_checkpoint.offload:
        return None
    kept = plan.decisions.get("plan_kept")
    return ("%d tensors wait in host memory for the backward pass" % (len(kept.tensors) if kept is not None else 0),)


def _of_offload(program, config):
    if not config.offload.level:
        return None
    nodes, known = program.graph.nodes, program.variables.values()
    on_host = [each for each in known if not each.is_own and tags.HOST in nodes[each.name].attr]
    if config.offload.level == "state":
        how = "%d variables of optimizers lie in host memory, where updates are computed"
    else:
        how = "%d variables lie in host memory; devices get copies when they need them"
    return (how % len(on_host),)


def _of_local_sgd(program, plan):
    if plan.local_sgd is None:
        return None
    trained = {variable for _, variable in program.computed if variable in program.variables}
    without = sum(size_bytes(program.variables[name]) for name in trained)
    sent = plan.bytes_per_step() - (without if plan.mesh.copies.num_workers > 1 else 0)
    how = "copies train by themselves, and are averaged every %d steps"
    if plan.local_sgd.overlap:
        how += ", one period late"
    if plan.local_sgd.first_steps is not None:
        how = "copies train by themselves, and are averaged as the loss says, every %d steps at most"
    # With late averages, what each copy was and the average.
    kept = plan.local_sgd.num_bytes * (len(plan.mesh.instances) + 1) if plan.local_sgd.overlap else 0
    return how % plan.local_sgd.k_steps, sent, kept


def _of_dgc(plan):
    if plan.dgc is None:
        return None
    kept = sum(size_bytes(variable) for variable in plan.added if variable.is_own)
    count = len(plan.dgc.gradients)
    how = "of %d gradients the largest parts are sent, and the others kept for later" % count
    return how + (", in checkpoints too" if plan.gathered else ""), _more_sent(plan, SPARSE_ALL_REDUCE), kept


def _of_half(plan):
    return "gradients travel as float16", _more_sent(plan, ALL_REDUCE, REDUCE_SCATTER)


def _of_wire(plan):
    if plan.wire is None:
        return None
    kept = sum(size_bytes(variable) for variable in plan.added if variable.is_own and plan.is_here(variable.name))
    count = sum(len(each.tensors) for each in _gradients_sent(plan) if each.operation == ALL_TO_ALL)
    how = "%d gradients travel as %s; what that leaves over is sent later" % (count, plan.wire.dtype)
    return how, _more_sent(plan, ALL_TO_ALL), kept


def _gradients_sent(plan):
    """The Collectives by which this worker sends dense gradients to others."""
    return [each for each in plan.collectives if each.purpose == GRADIENTS and each.takes_part and each.workers > 1]


def _more_sent(plan, *operations):
    """Bytes that a step sends more, of the gradients that travel by some operations, than if they travelled as they
    are."""
    return int(sum(each.more_per_step for each in _gradients_sent(plan) if each.operation in operations))


def _of_checks(plan, config):
    every = config.communication.check_replicas_every
    return ("digests of %d variables every %d steps" % (len(plan.compared), every),) if plan.compared else None
