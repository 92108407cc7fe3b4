"""The same as `reseed` for random operations inside functions (bodies of loops, branches, tf.function).

    While(body=f)   with a seeded dropout in f     becomes, for rank 3,     While(body=f_epl_rank_3)

Each instance but rank 0 calls copies of such functions, in which the seeds are its own.
"""

from epl.graph.functions import Functions
from epl.passes.seeds import derive, seeds_of, set_seed
from epl.plan import ops
from epl.plan.names import PREFIX, clone_name


def reseed_functions(graph, plan):
    """Makes the copies and lets the instances' nodes call them; runs after cloning."""
    functions = Functions(graph.library)
    random = frozenset(name for name in functions.bodies if functions.contains(name, _is_seeded, "seeded"))
    ranked = [i for i in plan.layout.instances if i.rank]
    if not random or not ranked:
        return graph
    edit = graph.editor()
    callers = [n for n in graph.in_order(plan.analysis.cloned) if random & set(functions.called_by(graph.nodes[n]))]
    for instance in ranked:
        for name in callers:
            _redirect(edit.node(clone_name(name, instance.index)), random, instance.rank)
    edit.set_library(_with_copies(graph.library, random, [i.rank for i in ranked]))
    return edit.finish()


def _is_seeded(node):
    return node.op in ops.RANDOM and any(seeds_of(node))


def _copy_name(name, rank):
    return "%s_%s_rank_%d" % (name, PREFIX, rank)


def _redirect(node, random, rank):
    """Lets a node call the rank's copies."""
    if node.op in random:
        node.op = _copy_name(node.op, rank)
    for attr in node.attr.values():
        called = ([attr.func] if attr.HasField("func") else []) + list(attr.list.func)
        for function in called:
            if function.name in random:
                function.name = _copy_name(function.name, rank)


def _with_copies(library, random, ranks):
    result = type(library)()
    result.CopyFrom(library)
    for rank in ranks:
        for function in library.function:
            if function.signature.name in random:
                _reseed(result.function.add(), function, random, rank)
        for gradient in library.gradient:
            if gradient.function_name in random:
                copy = result.gradient.add()
                copy.function_name = _copy_name(gradient.function_name, rank)
                named = gradient.gradient_func
                copy.gradient_func = _copy_name(named, rank) if named in random else named
    return result


def _reseed(copy, function, random, rank):
    copy.CopyFrom(function)
    copy.signature.name = _copy_name(function.signature.name, rank)
    for node in copy.node_def:
        if _is_seeded(node):
            set_seed(node, derive(seeds_of(node), rank))
        _redirect(node, random, rank)
    # TensorFlow finds the gradient of a While or If by these names.
    for key in ("forward_function_name", "backward_function_name", "gradient_function_name"):
        if key in copy.attr and copy.attr[key].s.decode() in random:
            copy.attr[key].s = _copy_name(copy.attr[key].s.decode(), rank).encode()
