"""Gives random operations of each instance a seed of their own, or every copy would drop the same units.

Seeds are derived from (the user's seed, the instance's rank over all workers), so a run can be repeated; rank 0 keeps
the
user's seeds. Operations outside of training (initialisers) keep theirs, and those without a seed get one that all
workers
share, so that every worker draws the same initial values.
"""

import hashlib

from epl.graph.build import set_attr
from epl.plan import ops
from epl.plan.names import clone_name

_SEEDS = ("seed", "seed2")


def reseed(graph, plan, job_seed=0):
    """Sets the seeds of all instances; runs after cloning.

    Args:
      job_seed: a number that all workers share and that differs from job to job.
    """
    if plan.layout.num_instances == 1:
        return graph
    edit = graph.editor()
    initial = _only_for_initial_values(graph, plan)
    for name, node in list(graph.nodes.items()):
        if node.op not in ops.RANDOM or "seed" not in node.attr or _is_clone(node):
            continue
        seeds = tuple(node.attr[key].i for key in _SEEDS if key in node.attr)
        if any(seeds):
            if name not in initial:
                _set_by_rank(edit, plan, name, seeds)
        elif name in initial and plan.layout.worker_num > 1:
            _set(edit.node(name), _derive(job_seed, name))
    return edit.finish()


def _only_for_initial_values(graph, plan):
    """Nodes that first values come from and training does not need."""
    variables = set(plan.variables)
    return graph.ancestors(plan.analysis.initial_writes, stop=variables) - plan.analysis.cloned


def _is_clone(node):
    return "_epl_instance" in node.attr


def _set_by_rank(edit, plan, name, seeds):
    for instance in plan.layout.instances:
        if instance.rank and (instance.index == 0 or name in plan.analysis.cloned):
            _set(edit.node(clone_name(name, instance.index)), _derive(seeds, instance.rank))


def _set(node, seed):
    set_attr(node, "seed", seed)
    if "seed2" in node.attr:
        set_attr(node, "seed2", seed >> 16 or 1)


def _derive(*facts):
    """A 31-bit seed other than 0 out of any facts, the same in every process."""
    return int(hashlib.sha256(repr(facts).encode()).hexdigest()[:8], 16) % (2**31 - 1) + 1
