"""How a plan is made: one list of decisions, each of which takes by name what has been decided before it."""

import functools
import inspect
import logging
from dataclasses import fields, replace

from epl.graph.index import node_of
from epl.plan.facts.analysis import analyse, with_copies_of
from epl.plan.facts.by_hand import check_repeated, check_replaced
from epl.plan.facts.consistency import (
    check_after_all_reduce,
    check_runs_always,
    check_sources,
    check_updates,
    drifting,
    merged_edges,
)
from epl.plan.facts.generators import find_generators
from epl.plan.facts.merge_points import state_at_points
from epl.plan.facts.unknown import check_effects
from epl.plan.facts.user_collectives import find_user_collectives, user_collectives
from epl.plan.input.data import plan_data
from epl.plan.input.equal_steps import find_repeated
from epl.plan.input.positions import GLOBAL, find_positions
from epl.plan.input.prefetch import find_prefetched
from epl.plan.layout.features import check_features
from epl.plan.layout.layout import mesh_of
from epl.plan.layout.mesh import in_one_piece, one_instance
from epl.plan.layout.owners import owners_of, staying_of, travelling_apart
from epl.plan.layout.placements import place_variables
from epl.plan.layout.stages import has_micro_batches, stages_of, used_taskgraphs
from epl.plan.pipeline.borders import copied_for_borders, plan_borders
from epl.plan.pipeline.micro_batches import of_micro_batches, plan_micro_batches
from epl.plan.plan import Plan
from epl.plan.sync.batch_norm import norms_at_points, norms_in_slots, plan_batch_norm
from epl.plan.sync.dgc import plan_dgc
from epl.plan.sync.gradients import Aggregation, plan_aggregation
from epl.plan.sync.local_sgd import plan_local_sgd
from epl.plan.sync.outputs import merges_of
from epl.plan.sync.state import plan_state
from epl.plan.sync.wire_types import plan_wire
from epl.plan.zero.zero import STATE, in_groups, owned_groups, workers_of
from epl.plan.zero.zero_owners import StagePlaces, divides_state, plan_zero
from epl.program.program import ALONE, EACH_WORKER

_LOG = logging.getLogger("epl")


def make_plan(model, config, cluster):
    """Plans how a Program runs on a cluster. Needs no device, no session and no other worker.

    Args:
      model: an epl.program.program.Program.
      config: an epl.Config.
      cluster: an epl.Cluster.

    Raises:
      PlanError, UnsupportedError: the model cannot be laid out on the cluster; nothing has been changed.
      CaptureError: an optimizer would change the copies of the model differently, as gradients were not seen, say.
    """
    known = {"model": model, "program": model, "graph": model.graph, "config": config, "cluster": cluster}
    for name, decide in DECISIONS:
        known[name] = decide(*[known[each] for each in _inputs(decide)])
    return Plan(**{each.name: known[each.name] for each in fields(Plan) if each.name in known})


@functools.lru_cache(maxsize=None)
def _inputs(decide):
    """The names of what a decision takes."""
    return tuple(inspect.signature(decide).parameters)


def with_link(plan, model, config, link):
    """A plan that goes by another Link, for what was given to `make_plan`; its gradients travel in other groups."""
    apart = travelling_apart(plan.owners, plan.stage_of, plan.mesh)
    mesh = plan.mesh
    early = mesh.clips_whole
    aggregation = plan_aggregation(
        model, plan.analysis, config.communication, link, apart, False, mesh.shard_ranks, early
    )
    wire = _wire(model, config, mesh, aggregation, plan.zero)
    return replace(plan, aggregation=aggregation, link=link, wire=wire, variables=_variables(model, wire))


def _check_program(model, config):
    check_replaced(model, config.optimizer)
    check_repeated(model, config.execution)


def _marked_mesh(model, used, config, cluster):
    return mesh_of(used, config, cluster, trains=bool(model.apply_calls) or model.partitioned is not None)


def _role(model, mesh):
    """The role of a graph: what neither trains nor merges anything is no pipeline over workers, but each has all of it,
    so that it may predict, evaluate or export by itself."""
    if user_collectives(model.graph):
        return None
    by_itself = mesh.pipeline.num_workers > 1 and not model.apply_calls and not model.merges
    return model.role or (EACH_WORKER if by_itself else None)


def _mesh_for_role(model, mesh, role):
    if role is not None:
        return one_instance(mesh, role == ALONE)
    return in_one_piece(mesh) if model.whole_batches else mesh


def _stages(used, marked):
    return used if len(marked.stages) == len(used) else []


def _check_effects(model, config, analysis, mesh, several):
    if mesh.everywhere.size > 1 or several:
        check_effects(model, analysis.cloned, config.graph.harmless_ops)


def _link(cluster):
    return cluster.machine.link_between(cluster.hosts)


def _gradients(model, analysis, config, link_between, apart, mesh, several):
    """The Aggregation over micro-batches and copies of the model; None with one of both."""
    if not several and mesh.copies.size == 1:
        return None
    early = mesh.clips_whole
    return plan_aggregation(model, analysis, config.communication, link_between, apart, True, mesh.shard_ranks, early)


def _local_sgd(model, analysis, mesh, config, role):
    if not config.local_sgd.k_steps or mesh.copies.size == 1 or role is not None or not model.apply_calls:
        return None
    if mesh.num_replicas == 1:
        _LOG.warning(
            "local_sgd.k_steps: there is nothing to average, as all devices compute parts of one copy of the model, "
            "and bring its gradients together in each step."
        )
        return None
    return plan_local_sgd(model, analysis, mesh, config)


def _losses(local_sgd):
    return [node_of(loss) for loss, _ in local_sgd.losses] if local_sgd is not None else []


def _with_losses(model, analysis, config, local_sgd, losses):
    """Gradients may do without the value of the loss, which each copy computes for the length of periods."""
    if local_sgd is None:
        return analysis
    analysis = with_copies_of(model, analysis, losses)
    check_effects(model, analysis.cloned, config.graph.harmless_ops)
    return analysis


def _micro_batches(model, config, analysis, gradients, losses, several):
    return plan_micro_batches(model, config, analysis, gradients, losses) if several else None


def _are_merged(mesh, local_sgd):
    """Whether copies of the model merge what they have in each step."""
    return mesh.copies.size > 1 and local_sgd is None


def _aggregation(gradients, are_merged):
    return gradients if are_merged else Aggregation((), (), {})


def _check_clipping(model, config, analysis, aggregation, are_merged, mesh):
    late = config.communication.clip_after_allreduce or mesh.clips_whole or model.scaled or model.short
    if are_merged and model.merge_points is None and late:
        check_after_all_reduce(model, analysis, aggregation)


def _state(model, analysis, aggregation, apart, stage_of, mesh, role, are_merged):
    if not are_merged or role is not None:
        return ()
    if model.merge_points is not None:
        return state_at_points(model, mesh.shard_ranks)
    return plan_state(model, analysis, aggregation, apart, stage_of)


def _batch_norms(model, analysis, stage_of, config, role, are_merged):
    if not are_merged or role is not None or not config.communication.sync_batch_norm:
        return ()
    norms = plan_batch_norm(model, analysis) if model.merge_points is None else norms_at_points(model)
    return norms_in_slots(norms, stage_of, config.communication.num_communicators)


def _merges(model, role, are_merged, local_sgd):
    return merges_of(model) if local_sgd is not None or are_merged and role is None else ()


def _checked_updates(model, analysis, aggregation, state, are_merged):
    """Variables of which copies may drift apart; None where it is not known yet."""
    if not are_merged or model.merge_points is not None:
        return None
    return check_updates(model, analysis, aggregation, state)


def _mesh_in_groups(mesh, config, divides_state):
    return in_groups(mesh, config) if divides_state else mesh


def _zero(model, analysis, config, mesh, owners, divides_state):
    if not divides_state:
        return None
    return plan_zero(model, analysis, config.zero.level, mesh.state_groups, StagePlaces(owners, mesh.pipeline.index))


def _keepers(model, mesh, zero):
    return workers_of(zero, model, mesh) if zero is not None else {}


def _without_owned(analysis, zero):
    """What one owner has for all has no copies; else there is one for each shard, or in each group."""
    if zero is None or zero.num_owned != 1:
        return analysis
    return replace(analysis, cloned=analysis.cloned.difference(zero.owners))


def _dgc(model, config, aggregation):
    return plan_dgc(model, config.dgc) if aggregation.groups else None


def _wire(model, config, mesh, aggregation, zero):
    if not aggregation.groups:
        return None
    owned = owned_groups(zero, mesh, aggregation, model.partitioned) if zero is not None and zero.level != STATE else ()
    return plan_wire(model, mesh, aggregation, config.communication.wire_dtype, owned)


def _has_several_copies(mesh, role):
    return mesh.everywhere.size > 1 and role is None


def _drift(model, analysis, aggregation, state, drift, several_copies):
    if drift is not None:
        return drift
    return drifting(model, analysis, merged_edges(aggregation, state)) if several_copies else frozenset()


def _placements(model, analysis, mesh, owners, drift, local_sgd, zero):
    generators = find_generators(model) if mesh.copies.size > 1 else frozenset()
    averaged = local_sgd.variables if local_sgd is not None else frozenset()
    return place_variables(model, analysis, mesh, owners, generators, drift, averaged, zero)


def _check_runs_always(model, analysis, mesh, aggregation, merges):
    """Merged state is not among it, as changes in a branch or a loop are not merged at all."""
    if mesh.copies.num_workers == 1:
        return
    tensors = [tensor for group in aggregation.groups for tensor in group.tensors]
    tensors.extend(sparse.values for sparse in aggregation.sparse)
    tensors.extend(merge.tensor for merge in merges if merge.over_workers)
    check_runs_always(model.graph, analysis, tensors)


def _borders(model, analysis, stage_of, mesh, aggregation, state):
    return plan_borders(model, analysis, stage_of, mesh, merged_edges(aggregation, state))


def _data(model, config, mesh, analysis, state, merges, user_collectives):
    waits = bool(state or merges or user_collectives) or model.role == EACH_WORKER
    in_order = bool(model.apply_calls) and config.checkpoint.data_position == GLOBAL
    return plan_data(model.graph, config.io, mesh, analysis, bool(model.apply_calls), waits, in_order)


def _link_that_groups(config, mesh, aggregation, link_between):
    """None where sizes of groups follow from the configuration, or nothing travels between workers."""
    travels = mesh.copies.num_workers > 1 and aggregation.groups
    return link_between if travels and not config.communication.fuse_size_mb else None


def _variables(model, wire):
    """Those of the model, but for rows of others and what nobody needs."""
    unused = wire.without_sums if wire is not None else ()
    return {name: known for name, known in model.variables.items() if known.rows_of is None and name not in unused}


def _bounds_clusters(config, cluster):
    return config.execution.xla and cluster.worker_num > 1


# What is decided, in this order: (what it is called, the function). A function takes what its parameters name: what was
# given to `make_plan`, or what has been decided last under that name. What is called as an attribute of the Plan is so.
DECISIONS = (
    ("checked", _check_program),
    # Layout.
    ("used", used_taskgraphs),
    ("marked", _marked_mesh),
    ("role", lambda model, marked: _role(model, marked)),
    ("mesh", lambda model, marked, role: _mesh_for_role(model, marked, role)),
    ("used", _stages),
    ("analysis", analyse),
    ("several", has_micro_batches),
    ("checked", check_features),
    ("checked", check_sources),
    ("checked", _check_effects),
    ("stage_of", stages_of),
    ("analysis", copied_for_borders),
    ("owners", owners_of),
    ("staying", staying_of),
    ("apart", travelling_apart),
    # What is merged: over micro-batches, and over copies of the model.
    ("link_between", _link),
    ("gradients", _gradients),
    ("local_sgd", _local_sgd),
    ("losses", _losses),
    ("analysis", _with_losses),
    ("micro_batches", _micro_batches),
    ("are_merged", _are_merged),
    ("aggregation", _aggregation),
    ("checked", _check_clipping),
    ("state", _state),
    ("batch_norms", _batch_norms),
    ("merges", _merges),
    ("drift", _checked_updates),
    # Who has which state.
    ("divides_state", divides_state),
    ("mesh", _mesh_in_groups),
    ("zero", _zero),
    ("keepers", _keepers),
    ("analysis", _without_owned),
    ("dgc", _dgc),
    ("wire", _wire),
    ("several_copies", _has_several_copies),
    ("drift", _drift),
    ("placements", _placements),
    ("checked", _check_runs_always),
    ("user_collectives", find_user_collectives),
    ("borders", _borders),
    ("variables", _variables),
    ("state", lambda state, micro_batches: of_micro_batches(state, micro_batches)),
    ("batch_norms", lambda batch_norms, micro_batches: of_micro_batches(batch_norms, micro_batches)),
    # Input.
    ("repeated", lambda model, analysis, mesh, config: find_repeated(model, analysis, mesh, config.io)),
    ("prefetched", find_prefetched),
    ("positions", find_positions),
    ("data", _data),
    ("link", _link_that_groups),
    # What the configuration says, as far as it has a meaning here.
    ("reduce_method", lambda config: config.communication.gradients_reduce_method),
    ("wire_fp16", lambda config: config.communication.fp16),
    ("fp16_scale", lambda config: float(config.communication.fp16_scale)),
    ("sparse_as_dense", lambda config: config.communication.sparse_as_dense),
    (
        "compares_copies",
        lambda config, several_copies: bool(config.communication.check_replicas_every) and several_copies,
    ),
    ("io_autotune", lambda config: config.io.autotune),
    ("io_stats", lambda model, config: config.io.stats and bool(model.apply_calls)),
    ("num_apply_group", lambda config: config.optimizer.num_apply_group),
    ("found_infs", lambda model: model.scaled),
    ("steps_per_run", lambda config: config.execution.steps_per_run),
    ("saves_beside", lambda config: getattr(config.checkpoint, "async")),
    ("bounds_clusters", _bounds_clusters),
    ("partitioned", lambda model: model.partitioned),
)
