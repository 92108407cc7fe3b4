"""From a captured program to what a worker runs: all rewrites in their order, and the runner that checks each of them.

A pass is a function `(program, plan) -> program`. Those on the one copy of the model come before the plan, which is
made of what they leave; each of them gets the decision that it carries out in its place.
"""

import collections
import contextlib
import os
from dataclasses import replace

from epl import tf_compat
from epl.errors import PassError
from epl.graph import tags
from epl.graph.lint import lint
from epl.passes.copies.add_micro_batches import copy_micro_batches
from epl.passes.copies.clone import clone_instances
from epl.passes.copies.cross_borders import cross_borders
from epl.passes.copies.fill_shards import fill_shards
from epl.passes.copies.own_copies import own_copies
from epl.passes.copies.reseed import reseed
from epl.passes.copies.reseed_functions import reseed_functions
from epl.passes.copies.share_batches import share_batches
from epl.passes.messages import with_messages
from epl.passes.model.add_residuals import add_residuals
from epl.passes.model.add_stages import add_stages
from epl.passes.model.autotune_data import autotune_data
from epl.passes.model.check_gradients import check_gradients
from epl.passes.model.compute_again import recompute
from epl.passes.model.divide_clipping import divide_clipping
from epl.passes.model.divide_parameters import divide_parameters
from epl.passes.model.divide_rows import divide_rows
from epl.passes.model.divide_variables import divide_variables
from epl.passes.model.keep_on_host import offload_kept
from epl.passes.model.mark_merges import mark_merges
from epl.passes.model.mixed_precision import mixed_precision
from epl.passes.model.move_to_host import offload
from epl.passes.model.order_products import order_products
from epl.passes.model.order_reads import order_reads
from epl.passes.model.partition_shards import partition_shards
from epl.passes.model.place import place
from epl.passes.model.place_hints import place_hints
from epl.passes.model.repeat_data import repeat_data
from epl.passes.model.scale_loss import scale_loss
from epl.passes.model.share_data import share_data
from epl.passes.model.shorten_gradients import shorten_gradients
from epl.passes.model.take_values import take_values
from epl.passes.model.transpose_operands import transpose_operands
from epl.passes.model.weigh_losses import weigh_losses
from epl.passes.promises import PROMISES, VARIANTS
from epl.passes.promises.kept import in_order
from epl.passes.sync.aggregate import aggregate_gradients
from epl.passes.sync.average import average_variables
from epl.passes.sync.check_batches import check_batches
from epl.passes.sync.compress_gradients import compress_gradients
from epl.passes.sync.divide_updates import divide_updates
from epl.passes.sync.encode_gradients import encode_gradients
from epl.passes.sync.end_together import end_together
from epl.passes.sync.gather_batches import gather_batches
from epl.passes.sync.gather_parameters import gather_parameters
from epl.passes.sync.gpu_collectives import move_collectives_to_gpu
from epl.passes.sync.group_updates import group_updates
from epl.passes.sync.join_found_infs import join_found_infs
from epl.passes.sync.join_shards import join_shards, with_wholes
from epl.passes.sync.join_sums import join_sums
from epl.passes.sync.join_user_collectives import join_user_collectives
from epl.passes.sync.merge_outputs import merge_outputs
from epl.passes.sync.merge_state import merge_state
from epl.passes.sync.save_shards import save_shards
from epl.passes.sync.summaries import show_merged
from epl.passes.sync.sync_batch_norm import sync_batch_norm
from epl.passes.sync.weigh_copies import weigh_copies
from epl.passes.worker.added_variables import added_variables
from epl.passes.worker.bound_clusters import bound_clusters
from epl.passes.worker.broadcast import broadcast_variables
from epl.passes.worker.cut import cut
from epl.passes.worker.keep_positions import keep_positions
from epl.passes.worker.number_collectives import number_collectives
from epl.passes.worker.read_ahead import read_ahead
from epl.passes.worker.read_copies import read_copies
from epl.passes.worker.restore import restore_own
from epl.passes.worker.save import save_by_file
from epl.passes.worker.save_averages import save_averages
from epl.passes.worker.share_queues import share_queues
from epl.passes.worker.time_reads import time_reads
from epl.passes.worker.update_on_host import update_on_host
from epl.passes.worker.write_once import write_once
from epl.plan.decide import make_plan, with_link
from epl.plan.layout.fixed_batch import plan_rows
from epl.plan.layout.layout import mesh_of
from epl.plan.layout.products import plan_products
from epl.plan.layout.shards import plan_hints, plan_shards
from epl.plan.layout.stages import used_taskgraphs
from epl.plan.layout.transpositions import plan_transpositions
from epl.plan.memory.apply_groups import plan_apply_groups
from epl.plan.memory.checked_gradients import plan_checks
from epl.plan.memory.checkpoint_policy import plan_recompute
from epl.plan.memory.offload import plan_offload
from epl.plan.memory.offload_kept import plan_kept
from epl.plan.pipeline.auto_stages import plan_stages
from epl.plan.pipeline.copied import plan_copies
from epl.plan.precision.loss_scale import plan_scaling
from epl.plan.precision.sixteen_bits import plan_casts
from epl.plan.report.strategy_rows import strategies_of
from epl.plan.sync.loss_weights import plan_loss_weights
from epl.plan.sync.merge_marks import plan_merges
from epl.plan.sync.residuals import plan_residuals
from epl.plan.sync.short_gradients import plan_short_gradients
from epl.plan.sync.weighed import plan_weighed
from epl.plan.zero.divided import plan_clipping, plan_divided_rows, plan_parameters, plan_values
from epl.program.target import Target

_DUMP_DIR = "EPL_DUMP_DIR"

# What is decided of the one copy of the model, and the pass that does it. A decision is made of what the passes before
# it have left: (program, target) -> a frozen record, or None where nothing is to be done; the plan keeps it. The pass
# only carries it out: (program, decision) -> program.
Feature = collections.namedtuple("Feature", "decide apply")
FEATURES = (
    Feature(plan_stages, add_stages),  # first: what else is decided for the model may differ by stage
    Feature(plan_rows, divide_rows),  # after stages, as it is for models of one; before how the model lies on devices
    Feature(plan_loss_weights, weigh_losses),  # after what says how many copies there are; before losses change
    Feature(plan_casts, mixed_precision),  # after stages, as each casts for itself; changes numbers
    Feature(plan_scaling, scale_loss),  # after casts, whose gradients it scales; changes not finite numbers only
    Feature(plan_recompute, recompute),  # after stages, each has its own; after casts, so that it keeps 16-bit tensors
    Feature(plan_checks, check_gradients),  # needs what is computed again
    Feature(plan_short_gradients, shorten_gradients),  # after what compares gradients; changes numbers
    Feature(plan_merges, mark_merges),  # after all that changes gradients, and before they are divided
    Feature(plan_products, order_products),  # before parts, made of what it leaves; changes how products are rounded
    Feature(plan_hints, place_hints),
    Feature(plan_shards, partition_shards),  # it sees all that is computed
    Feature(plan_residuals, add_residuals),  # after all that changes which tensor an optimizer takes, parts too
    Feature(plan_transpositions, transpose_operands),  # after parts, whose rules do not know what it adds
    Feature(plan_offload, offload),  # after parts, of which each lies in host memory by itself
    Feature(plan_kept, offload_kept),  # what lies on the host already need not be kept there
    Feature(plan_values, take_values),  # after what changes how parameters are taken
    Feature(
        plan_clipping, divide_clipping
    ),  # after all that changes gradients; before updates, which it becomes part of
    Feature(plan_divided_rows, divide_variables),  # after all that asks how an optimizer computes
    Feature(plan_parameters, divide_parameters),  # last: it looks for all that computes with parameters
)

# Between the two the plan is made. (program, plan) -> program.
PASSES = (
    # Still on one copy, but by the plan.
    share_data,  # changes which data a worker sees; first, as it knows the user's graph only
    repeat_data,  # after shares, as each worker repeats its own
    autotune_data,
    order_reads,  # before copies: they wait as the original does
    place,  # before copies: they take their device from the original's
    # Copies.
    copy_micro_batches,  # before instances, each of which has all micro-batches
    clone_instances,
    cross_borders,  # before all that takes the place of a copy's own tensors
    own_copies,
    reseed,  # changes numbers; after copies, as each instance has its own seed
    reseed_functions,  # the same for what is inside functions
    share_batches,  # needs the sources of all instances
    fill_shards,  # the same
    # These join the copies again.
    weigh_copies,  # before all that makes means of copies
    gather_batches,  # takes data, and gives it on
    check_batches,  # the same, of what workers have read whole
    end_together,  # like it
    join_shards,  # before others: what it joins are parts of one copy of the model, others join copies
    save_shards,  # after what else was gathered for checkpoints
    sync_batch_norm,  # changes numbers; before gradients, whose tensors it keeps
    compress_gradients,  # before other gradients, as the next pass promises that all are aggregated; changes numbers
    encode_gradients,  # the same
    aggregate_gradients,
    join_found_infs,
    join_sums,
    merge_state,
    group_updates,  # after all that rewires what updates take, but for collectives of the user, which it leaves alone
    divide_updates,  # after aggregation, whose collectives it divides too
    gather_parameters,
    average_variables,
    join_user_collectives,  # after the passes that rewire what its nodes take, in each instance by itself
    merge_outputs,
    move_collectives_to_gpu,  # after all that add collectives of the training
    show_merged,  # takes what merge_outputs has made
    # This worker's part.
    added_variables,  # after copies, which have some of their own; before cutting, as all workers have them
    broadcast_variables,  # no pass but those that cut looks at what it adds
    cut,  # after all that know of several stages
    share_queues,  # after cutting, as what is left asks worker 0 by itself
    write_once,  # after cutting: what goes into a checkpoint comes to the first worker with parts of a graph
    restore_own,  # after cutting: what nobody here uses any more is not read
    read_copies,  # of the variables that are left after cutting
    save_averages,
    keep_positions,  # after cutting, as each worker has its own
    read_ahead,  # after cutting, as each worker reads for its own copies
    time_reads,  # after what reads before the step; of what is left after cutting
    save_by_file,  # after all that changes what is saved, as it orders the messages of the cut that checkpoints take
    update_on_host,  # after all that asks how a variable is updated
    number_collectives,  # of all that are there
    bound_clusters,  # last: it marks what waits for any of them
)


# Decided once these passes have made copies: what the plan says of them; and once all gradients are aggregated, in
# which order they are used. (program, plan) -> plan.
PLANNED_AFTER = {
    "copy_micro_batches": plan_copies,
    "weigh_copies": plan_weighed,
    "merge_state": lambda program, plan: replace(plan, apply_groups=plan_apply_groups(program, plan)),
}


def compile(program, config, cluster, job_seed=0, collectives_on_gpu=False, measure_link=None, dump_dir=None, at=None):
    """Makes of a captured program what one worker runs.

    Args:
      program: an epl.program.program.Program, as capture made it; stays as it is.
      config, cluster: an epl.Config and the epl.Cluster, whose `worker_index` says for which worker.
      job_seed: a number that all workers share and that differs from job to job.
      collectives_on_gpu: whether collectives between workers may take and give tensors on GPUs.
      measure_link: function that returns the Link between the workers, called where groups of gradients follow from
        it and once the plan is known to be a good one; None: as is assumed for where the workers are.
      dump_dir: folder for the graph after each pass; default the environment variable EPL_DUMP_DIR, else none.
      at: function from words for what comes next ("planning") to a context around it; None: nobody is told.

    Returns:
      The Program of this worker, with its plan.

    Raises:
      PlanError, UnsupportedError, CaptureError: the program cannot run in this way; says why and what to do.
      PassError: a pass left a graph that is not well formed; names the pass and those before it.
    """
    at = at or _nobody_told
    with at("planning"):
        runner = _Runner(program, dump_dir or os.environ.get(_DUMP_DIR))
        program = _planned(runner, program, config, cluster)
    plan = program.plan
    # What workers measure is memory of the host.
    if measure_link is not None and plan.link is not None and not collectives_on_gpu:
        plan = with_link(plan, program, config, measure_link())
    plan = replace(plan, job_seed=job_seed, collectives_on_gpu=collectives_on_gpu)
    plan = replace(plan, strategies=strategies_of(program, plan, config))
    with at("rewriting the graph"):
        return _rewritten(runner, replace(program, plan=plan))


def rewritten(program):
    """What one worker runs: a new Program, of one with its plan (`source` of what `compile` gives, out of a file say).

    Raises:
      PassError: as `compile` does.
    """
    return _rewritten(_Runner(program, None), program)


def changes(program):
    """Which passes have changed or made the nodes of what `compile` gives: {node: [pass, ...]}, found by running them
    again. Those of FEATURES, which work on the one copy of the model, are not among them."""
    runner, source = _Runner(program.source, None), program.source
    runner.changed = {}
    _rewritten(runner, source)
    return runner.changed


def _rewritten(runner, program):
    program = replace(program, source=program)
    for pass_ in PASSES:
        program = runner.run(pass_, program, program.plan)
        if pass_.__name__ in PLANNED_AFTER:
            program = replace(program, plan=PLANNED_AFTER[pass_.__name__](program, program.plan))
    return program


@contextlib.contextmanager
def _nobody_told(what):
    del what
    yield


def planned(program, config, cluster):
    """The Program with its plan, as `compile` makes it, before there are copies of the model.

    Takes and raises what `compile` does.
    """
    return _planned(_Runner(program, None), program, config, cluster)


def _planned(runner, program, config, cluster):
    target = _target(config, cluster)
    decisions = {}
    for decide, apply in FEATURES:
        decision = decide(program, target)
        if decision is not None:
            decisions[decide.__name__] = decision
        program = runner.run(apply, program, decision) if decision is not None else runner.skip(apply, program)
    return replace(program, plan=replace(make_plan(program, config, cluster), decisions=decisions))


def _target(config, cluster):
    return Target(config, cluster, tf_compat.op_def, tf_compat.has_kernel_of_type, tf_compat.uses_onednn())


def with_sent(program, messages):
    """The variant of a worker's Program that has its nodes of further messages; the same object if it has them.

    Raises:
      PassError: as `compile` does.
    """
    return _variant(program, "with_messages", with_messages(program, messages))


def with_whole_tensors(program, tensors):
    """The variant of a worker's Program that has the wholes of tensors of which each device has a part; the same object
    if it has them.

    Raises:
      UnsupportedError: of a tensor there is no whole.
      PassError: as `compile` does.
    """
    return _variant(program, "with_wholes", with_wholes(program, program.plan, tensors))


def _variant(program, name, after):
    if after is not program:
        _Runner(program, None, is_checked=True).check(name, program, after, program.plan)
    return after


def mesh_of_program(program, config, cluster):
    """The Mesh that `compile` would give a program, without the rest."""
    for decide, apply in FEATURES[:2]:  # stages, and rows that devices divide
        decision = decide(program, _target(config, cluster))
        program = apply(program, decision) if decision is not None else program
    return mesh_of(used_taskgraphs(program), config, cluster)


class _Runner(object):
    """Runs passes one after the other, checks what each of them leaves and writes it down where that is asked for.

    Args:
      program: the Program before the first pass.
      dump_dir: a folder, or None.
      is_checked: whether the graph is known to be well formed as it is.

    Attributes:
      changed: {node: names of the passes that have changed or made it}; None where nobody asks.

    Raises:
      PassError: the graph is not well formed as it is.
    """

    def __init__(self, program, dump_dir, is_checked=False):
        self._dump_dir, self.changed = dump_dir, None
        self._done = []
        if not is_checked:
            self._check(program, None, "the user's graph", None, None)
        if dump_dir:
            os.makedirs(dump_dir, exist_ok=True)
            with open(os.path.join(dump_dir, "captured.pbtxt"), "w") as out:
                out.write(str(_with_tables(program)))

    def run(self, pass_, program, plan):
        """What a pass makes of a program."""
        name, after = pass_.__name__, pass_(program, plan)
        self.check(name, program, after, plan)
        return after

    def skip(self, pass_, program):
        """The program as it is: for this one the pass has nothing to do."""
        self._done.append(pass_.__name__)
        return program

    def check(self, name, program, after, plan):
        """Raises PassError for a pass that has left a graph that is not well formed, or broken its promise."""
        where = "after the pass '%s'" % name
        if after.graph is not program.graph:
            self._check(after, program.graph, where, PROMISES.get(name) or VARIANTS.get(name), plan)
            if self.changed is not None:
                for changed in after.graph.names_changed_since(program.graph):
                    self.changed.setdefault(changed, []).append(name)
            if self._dump_dir:
                _dump(after.graph, program.graph, self._dump_dir, len(self._done), name)
        if after.order is not program.order:
            self._refuse(where, in_order(after))
        self._done.append(name)

    def _check(self, program, before, where, promise, plan):
        problems = lint(program.graph, tf_compat.op_def, changed_since=before)
        if promise is not None and not problems:
            problems = promise.broken(before, program.graph, plan)
        self._refuse(where, problems)

    def _refuse(self, where, problems):
        if problems:
            further = "; and %d further problems" % (len(problems) - 1) if len(problems) > 1 else ""
            raise PassError(
                "%s (ran before: %s) the graph is not as it must be: %s%s"
                % (where, ", ".join(self._done) or "none", problems[0], further)
            )


def _with_tables(program):
    """The GraphDef of a captured Program, whose tables of shapes and of forward operations become tags."""
    graph_def = program.graph.to_graph_def(tf_compat.GraphDef)
    for node in graph_def.node:
        shapes = [spec.shape for spec in program.specs.get(node.name, ())]
        if any(shape is not None for shape in shapes):
            node.attr[tags.SHAPES].s = tags.shapes_text(shapes).encode()
        forward = program.forward_op(node.name)
        if forward is not None:
            node.attr[tags.FORWARD_OP].s = forward.encode()
    return graph_def


def _dump(graph, before, dump_dir, number, name):
    """Writes NN_name.pbtxt, and in NN_name.txt how the numbers of operations changed."""
    path = os.path.join(dump_dir, "%02d_%s" % (number, name))
    with open(path + ".pbtxt", "w") as out:
        out.write(str(graph.to_graph_def(tf_compat.GraphDef)))
    counts = collections.Counter(n.op for n in graph.nodes.values())
    counts.subtract(n.op for n in before.nodes.values())
    with open(path + ".txt", "w") as out:
        for op, change in sorted(counts.items()):
            if change:
                out.write("%+6d  %s\n" % (change, op))
