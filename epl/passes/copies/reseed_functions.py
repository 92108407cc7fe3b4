"""The same as `reseed` for random operations inside functions (bodies of loops, branches, tf.function).

    While(body=f)   with a seeded dropout in f     becomes, for rank 3,     While(body=f_epl_rank_3)

Each instance but rank 0 calls copies of such functions, in which the seeds are its own.
"""

from epl.graph.functions import Functions
from epl.passes.seeds import derive, seeds_of, set_seed, turn_seed
from epl.plan.facts.names import PREFIX, clone_name
from epl.rules import effects


def reseed_functions(program, plan):
    """Makes the copies and lets the instances' nodes call them; runs after cloning."""
    graph = program.graph
    if not graph.library.function:
        return program
    edit = graph.editor()
    copies = {
        "rank_%d" % i.rank: (lambda name, index=i.index: clone_name(name, index))
        for i in plan.mesh.instances
        if plan.mesh.copy_of(i)
    }
    changed = call_copies(graph, edit, graph.in_order(plan.analysis.cloned), copies)
    return program.with_graph(edit.finish()) if changed else program


def call_copies(graph, edit, names, copies):
    """Lets copies of nodes call functions whose seeds are their own.

    Args:
      graph: the Graph before copying; its library is copied from.
      edit: the Editor in which the copies of the nodes are.
      names: nodes of which there are copies.
      copies: mark of a set of copies, part of the functions' names and of the seeds, to a function from a node's name
        to its copy's.

    Returns:
      Whether there was anything to do.
    """
    functions = Functions(graph.library)
    random = frozenset(name for name in functions.bodies if functions.contains(name, _is_seeded, "seeded"))
    if not random or not copies:
        return False
    callers = [n for n in names if random & set(functions.called_by(graph.nodes[n]))]
    for mark, copy_of in copies.items():
        for name in callers:
            if copy_of(name) in edit:  # a stage may have fewer copies than others
                _redirect(edit.node(copy_of(name)), random, mark)
    edit.set_library(_with_copies(graph.library, random, list(copies)))
    return True


def _is_seeded(node):
    return node.op in effects.SEED_INPUT or (node.op in effects.RANDOM and any(seeds_of(node)))


def _copy_name(name, mark):
    return "%s_%s_%s" % (name, PREFIX, mark)


def _redirect(node, random, mark):
    """Lets a node call the copies."""
    if node.op in random:
        node.op = _copy_name(node.op, mark)
    for attr in node.attr.values():
        called = ([attr.func] if attr.HasField("func") else []) + list(attr.list.func)
        for function in called:
            if function.name in random:
                function.name = _copy_name(function.name, mark)


def _with_copies(library, random, marks):
    result = type(library)()
    result.CopyFrom(library)
    for mark in marks:
        for function in library.function:
            if function.signature.name in random:
                _reseed(result.function.add(), function, random, mark)
        for gradient in library.gradient:
            if gradient.function_name in random:
                copy = result.gradient.add()
                copy.function_name = _copy_name(gradient.function_name, mark)
                named = gradient.gradient_func
                copy.gradient_func = _copy_name(named, mark) if named in random else named
    return result


def _reseed(copy, function, random, mark):
    copy.CopyFrom(function)
    copy.signature.name = _copy_name(function.signature.name, mark)
    for node in list(copy.node_def):
        if node.op in effects.SEED_INPUT:
            copy.node_def.extend(turn_seed(node, derive("seed of copy", mark), in_function=True))
        elif _is_seeded(node):
            set_seed(node, derive(seeds_of(node), mark))
        _redirect(node, random, mark)
    # TensorFlow finds the gradient of a While or If by these names.
    for key in ("forward_function_name", "backward_function_name", "gradient_function_name"):
        if key in copy.attr and copy.attr[key].s.decode() in random:
            copy.attr[key].s = _copy_name(copy.attr[key].s.decode(), mark).encode()
