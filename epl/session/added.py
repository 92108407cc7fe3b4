"""When variables that passes have added get which values: with those beside which they stand, or from a checkpoint."""

import numpy as np
import tensorflow.compat.v1 as tf

from epl.graph import types
from epl.graph.index import canonical_tensor, node_of
from epl.plan.facts.names import clone_name, first_value_name, restored_name
from epl.rules import effects


def begun_with(plan, given):
    """The nodes that give added variables their first values where others are given theirs.

    Args:
      plan: the Plan.
      given: names of the variables that are given values.
    """
    return [first_value_name(v.name) for v in plan.added if not v.is_own and v.added.beside in given]


def own_beside(plan, given):
    """The added variables of which each rank has its own, and that begin anew with one of `given`."""
    return frozenset(v.name for v in plan.added if v.is_own and v.added.beside in given)


def restored_with(plan, graph, writes):
    """The added variables that a checkpoint may hold which others are read from.

    Args:
      plan: the Plan.
      graph: the rewritten Graph.
      writes: dict of operations that give variables values to these variables.

    Returns:
      dict of variable to the tensor that is the name of the checkpoint.
    """
    found = {}
    for variable in plan.added:
        known = plan.variables.get(variable.added.beside)
        if not variable.added.is_saved or known is None:
            continue
        for write in sorted(w for w, v in writes.items() if v == known.name and w not in known.initializers):
            restore = _restore_before(graph, write)
            if restore is not None:
                found[variable.name] = canonical_tensor(restore.input[0])
    return found


def _restore_before(graph, write):
    """The RestoreV2 whose value an assignment assigns, or None."""
    node = graph.nodes[write]
    while node.input and node.op != "RestoreV2":
        node = graph.nodes[node_of(node.input[effects.VALUE_INPUT if node.op in effects.SETS else 0])]
    return node if node.op == "RestoreV2" else None


def begin(run, plan, values, step):
    """Gives those added variables which a step needs and that have no values their first ones.

    Args:
      run: of the InnerSession.
      plan: the Plan.
      values: the session's Values.
      step: the Step.
    """
    missing = step.changes.added - values.valued
    if not missing:
        return
    nodes = []
    for variable in plan.added:
        if variable.name in missing:
            instances = plan.instances_with(variable.name)[: None if variable.is_own else 1]
            nodes.extend(clone_name(first_value_name(variable.name), each.index) for each in instances)
    run((), [], (), tuple(nodes))
    values.begun(missing, frozenset(name for name in missing if not plan.is_sent(name)))


def restore(run, plan, values, restores, feeds):
    """Gives added variables what the checkpoint holds of them from which a step has read others.

    Args:
      run, plan, values: as for `begin`.
      restores: dict of variable to the tensor that is the name of the checkpoint.
      feeds: what the program fed, by tensor.
    """
    fed = {canonical_tensor(name): value for name, value in feeds.items()}
    for variable, prefix in restores.items():
        path = fed[prefix] if prefix in fed else run((), [], (prefix + ":0",), ())[0]
        known = plan.variables[variable]
        value = _held_in(path, known, plan)
        if value is not None:
            name = restored_name(variable)
            run((name + ":0",), [value], (), (name + "/assign",))
            if known.is_own:
                values.begun({variable}, frozenset([variable]))
            else:
                values.first({variable}, {})


def _held_in(path, variable, plan):
    """What a checkpoint holds of an added variable, as an array; None where it does not, or holds something else.

    What each worker has of its own is the row of this one; the mean of all rows where another number has saved them.

    Args:
      path: its name, a text or an array that has one.
      variable: the Variable.
      plan: the Plan.
    """
    checkpoint = tf.train.load_checkpoint(tf.compat.as_str_any(np.asarray(path).item()))
    if not checkpoint.has_tensor(variable.name):
        return None
    value = np.asarray(checkpoint.get_tensor(variable.name))
    if variable.is_gathered:
        if value.shape[1:] != variable.shape or not value.shape[:1] > (0,):
            return None
        copies = plan.mesh.copies
        own = value[copies.index] if len(value) == copies.num_workers else value.mean(axis=0, dtype=np.float64)
        value = (own / plan.gathered_scale).astype(value.dtype)
    fits = value.shape == variable.shape and tf.as_dtype(value.dtype) == tf.as_dtype(types.base(variable.dtype))
    return value if fits else None
