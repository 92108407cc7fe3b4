"""Gives random operations of each instance a seed of their own, or every copy would drop the same units.

Seeds are derived from (the user's seed, the instance's rank over all workers), so a run can be repeated; rank 0 keeps
the user's seeds. Devices that divide tensors draw the same numbers, those of their model replica. Operations
outside of training (initialisers, a shuffle of file names) keep theirs, and initialisers
without a seed get one that all workers share, so that every worker draws the same initial values.
"""

from epl.graph import tags
from epl.passes.seeds import derive, seeds_of, set_seed, turn_seed
from epl.plan.facts.names import clone_name, cloned_name
from epl.rules import effects


def reseed(program, plan):
    """Sets the seeds of all instances; runs after cloning."""
    graph = program.graph
    if plan.mesh.everywhere.size == 1 and plan.mesh.num_workers == 1:
        return program
    edit = graph.editor()
    initial = _only_for_initial_values(graph, plan)
    for name in graph.find(effects.RANDOM.__contains__):
        node = graph.nodes[name]
        if tags.INSTANCE in node.attr:
            continue
        if node.op in effects.SEED_INPUT and name in plan.analysis.cloned:
            _turn_by_rank(edit, plan, name)
        seeds = seeds_of(node)
        if not seeds:
            continue
        if any(seeds):
            if name in plan.analysis.cloned and not (plan.mesh.split and name in initial):
                _set_by_rank(edit, plan, name, seeds)
        elif plan.mesh.split and name in plan.analysis.cloned:
            for instance in plan.instances_with(name):
                by = (instance.data,) if instance.data and name not in initial else ()
                set_seed(edit.node(clone_name(name, instance.index)), derive(plan.job_seed, name, *by))
        elif name in initial and plan.mesh.num_workers > 1:
            set_seed(edit.node(name), derive(plan.job_seed, name))
    return program.with_graph(edit.finish())


def _only_for_initial_values(graph, plan):
    """Nodes that first values come from and training does not need."""
    variables = set(plan.variables)
    found = graph.ancestors(plan.analysis.initial_writes, stop=variables)
    if plan.mesh.split:  # each device has them; what training needs besides is drawn for each replica
        return _in_first_instance(graph, found) - _in_first_instance(graph, graph.ancestors(plan.analysis.writes))
    return found - plan.analysis.cloned


def _in_first_instance(graph, names):
    """The nodes of which some are copies: what an owner computes (zero.level) takes those of its own instance."""
    copies = {name for name in names if tags.INSTANCE in graph.nodes[name].attr}
    return (names - copies) | {cloned_name(name, tags.get_int(graph.nodes[name], tags.INSTANCE)) for name in copies}


def _turn_by_rank(edit, plan, name):
    for instance in plan.instances_with(name):
        if plan.mesh.copy_of(instance):
            copy = edit.node(clone_name(name, instance.index))
            for added in turn_seed(copy, derive("seed of copy", plan.mesh.copy_of(instance))):
                edit.add(added)


def _set_by_rank(edit, plan, name, seeds):
    for instance in plan.instances_with(name):
        if plan.mesh.copy_of(instance):
            set_seed(edit.node(clone_name(name, instance.index)), derive(seeds, plan.mesh.copy_of(instance)))
