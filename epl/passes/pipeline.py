"""All rewrites in their order, and the runner that checks the graph around each of them."""

import collections
import functools
import os

from epl import tf_compat
from epl.errors import PassError
from epl.graph.lint import lint
from epl.passes.aggregate import aggregate_gradients
from epl.passes.broadcast import broadcast_variables
from epl.passes.clone import clone_instances
from epl.passes.cut import cut
from epl.passes.gpu_collectives import move_collectives_to_gpu
from epl.passes.merge_outputs import merge_outputs
from epl.passes.merge_state import merge_state
from epl.passes.order_reads import order_reads
from epl.passes.place import place
from epl.passes.promises import PROMISES
from epl.passes.reseed import reseed
from epl.passes.reseed_functions import reseed_functions
from epl.passes.share_batches import share_batches
from epl.passes.share_data import share_data
from epl.passes.summaries import show_merged
from epl.passes.sync_batch_norm import sync_batch_norm
from epl.passes.user_collectives import join_user_collectives

_DUMP_DIR = "EPL_DUMP_DIR"


def passes(job_seed=0, on_gpu=False):
    """The passes in order; each takes (graph, plan) and returns a new graph."""
    return [
        share_data,  # changes which data a worker sees; first, as it knows the user's graph only
        order_reads,  # before clones: they wait as the original does
        place,  # before clones: they take their device from the original's
        clone_instances,
        functools.partial(
            reseed, job_seed=job_seed
        ),  # changes numbers: after clones, as each instance has its own seed
        reseed_functions,  # the same for what is inside functions
        share_batches,  # needs the sources of all instances
        sync_batch_norm,  # changes numbers; before gradients, whose tensors it keeps
        aggregate_gradients,  # the passes from here on join instances again
        merge_state,
        join_user_collectives,  # after the passes that rewire what its nodes take, in each instance by itself
        merge_outputs,
        functools.partial(move_collectives_to_gpu, on_gpu=on_gpu),  # after all that add collectives of the training
        show_merged,  # takes what merge_outputs has made
        broadcast_variables,  # last: no other pass looks at what it adds
    ]


def rewrite(graph, plan, job_seed=0, on_gpu=False, dump_dir=None, alike=frozenset()):
    """Runs all passes.

    Args:
      graph: the user's tagged graph; stays as it is.
      plan: an epl.plan.plan.Plan made for it.
      job_seed: a number that all workers share and that differs from job to job.
      on_gpu: whether collectives between workers may take and give tensors on GPUs.
      alike: names of nodes like others of the graph, which need not be checked themselves.
      dump_dir: folder for the graph after each pass; default the environment variable EPL_DUMP_DIR, else none.

    Returns:
      This worker's graph.

    Raises:
      PassError: a pass left a graph that is not well formed; names the pass and those before it.
    """
    dump_dir = dump_dir or os.environ.get(_DUMP_DIR)
    _check(graph, None, "the user's graph", [], alike=alike)
    done = []
    for number, pass_ in enumerate(passes(job_seed, on_gpu)):
        name = getattr(pass_, "func", pass_).__name__
        after = pass_(graph, plan)
        if after is graph:  # nothing to do
            done.append(name)
            continue
        _check(after, graph, "after the pass '%s'" % name, done, promised=(PROMISES.get(name), plan))
        if dump_dir:
            _dump(after, graph, dump_dir, number, name)
        graph = after
        done.append(name)
    return graph


def own_part(graph, plan):
    """This worker's Part of a rewritten graph, see `epl.passes.cut.cut`; None for crews of one worker.

    Raises:
      PassError: the part is not well formed.
      UnsupportedError: something that cannot be sent is used by two workers.
    """
    part = cut(graph, plan)
    if part is not None:
        same = frozenset(name for name, node in part.graph.nodes.items() if graph.nodes.get(name) is node)
        _check(part.graph, None, "after the pass 'cut'", ["all others"], alike=same)
    return part


def _check(graph, before, where, done, promised=(None, None), alike=frozenset()):
    problems = lint(graph, tf_compat.op_def, changed_since=before, alike=alike)
    promise, plan = promised
    if promise is not None and not problems:
        problems = promise(graph, plan)
    if problems:
        raise PassError(
            "%s (ran before: %s) the graph is not as it must be: %s%s"
            % (
                where,
                ", ".join(done) or "none",
                problems[0],
                "; and %d further problems" % (len(problems) - 1) if len(problems) > 1 else "",
            )
        )


def _dump(graph, before, dump_dir, number, name):
    """Writes NN_name.pbtxt, and in NN_name.txt how the numbers of operations changed."""
    os.makedirs(dump_dir, exist_ok=True)
    path = os.path.join(dump_dir, "%02d_%s" % (number, name))
    with open(path + ".pbtxt", "w") as out:
        out.write(str(graph.to_graph_def(tf_compat.GraphDef)))
    counts = collections.Counter(n.op for n in graph.nodes.values())
    counts.subtract(n.op for n in before.nodes.values())
    with open(path + ".txt", "w") as out:
        for op, change in sorted(counts.items()):
            if change:
                out.write("%+6d  %s\n" % (change, op))
