"""Operations that keep state in a way that is not known: they are refused where a model with them would be copied."""

from epl.errors import UnsupportedError
from epl.graph.functions import Functions
from epl.rules import effects


def check_effects(model, cloned, harmless=""):
    """What copies of the model have of their own must be in the table of epl.rules.effects if it keeps state.

    Args:
      model: the Program.
      cloned: the nodes of which there are copies.
      harmless: types, separated by commas, that the user says may be copied (graph.harmless_ops).

    Raises:
      UnsupportedError: a type is refused, or in no table; names the operation.
    """
    declared = frozenset(harmless.split(","))
    refused = {op for op in model.stateful - declared if effects.kind_of(op) in (None, effects.REFUSED)}
    if not refused:
        return
    graph, functions = model.graph, Functions(model.graph.library)
    found = [(name, graph.nodes[name].op) for name in graph.find(refused.__contains__) if name in cloned]
    for node in functions.callers(graph.nodes.values()):
        if node.name in cloned:
            for op in sorted(refused):
                if functions.calls(node, lambda body, op=op: body.op == op, "is %s" % op):
                    found.append((node.name, op))
    if found:
        _refuse(*found[0], sorted({op for _, op in found}), sorted(declared - {""}))


def _refuse(name, op, types, declared):
    """`types`: all that the model would need; `declared`: those that may be copied already."""
    why = effects.reason(op)
    if why:
        raise UnsupportedError(
            "'%s' holds an operation of the type %s, of which the copies of the model cannot have one each: %s. Leave "
            "it out of what training needs, or name the type in graph.harmless_ops if copies of it do no harm%s."
            % (name, op, why, ' ("%s")' % ",".join(declared + types) if len(types) > 1 else "")
        )
    others = ["'%s'" % each for each in types if each != op]
    raise UnsupportedError(
        "'%s' holds an operation of the type %s, of which TensorFlow says that it keeps state, and EPL does not know "
        "what for%s. Copies of the model could all draw the same random numbers from it, or read the same data. If "
        'copies of it do no harm, say so with graph.harmless_ops="%s"; else leave it out of what training needs.'
        % (
            name,
            op,
            "; the model holds %s too, of which the same is true" % ", ".join(others) if others else "",
            ",".join(declared + [each for each in types if each not in declared]),
        )
    )
