"""Models marked with `epl.replicate(k)`, k > 1, whose batch has a size that the graph knows.

What TensorFlow has built for a batch of 8 rows (targets of reshapes, what a mean divides by, masks) does not hold for a
part of them. So the devices of such a copy of the model divide its operations by rows, as they do beside `epl.split`,
in place of computing the same operations on parts of the batch.
"""

import collections
from dataclasses import replace

from epl.graph.index import format_input
from epl.plan.facts.analysis import analyse
from epl.plan.layout.layout import ROWS
from epl.plan.layout.stages import used_taskgraphs
from epl.rules import effects


def plan_rows(program, target):
    """TaskGraphs of the kind ROWS in the place of a program's, where its devices divide operations by rows; else None.

    Args:
      program: a Program with one copy of the model.
      target: its Target.
    """
    used, colocate = used_taskgraphs(program), target.config.cluster.colocate_split_and_replicate
    if program.role is not None or not program.apply_calls or any(t.kind != "replicate" for t in used):
        return None
    counts = [t.device_count for t in used]
    if len(used) > 1 and not colocate:
        # Those of stages with the same number divide the batch before the model.
        if len(set(counts)) == 1 or target.cluster.gpu_num_per_worker % sum(counts):
            return None
    elif not used or min(counts) == 1:
        return None
    if not _is_fixed(program):
        return None
    indices = {t.index for t in used}
    return tuple(replace(t, kind=ROWS) if t.index in indices else t for t in program.taskgraphs)


def _is_fixed(program):
    """Whether the graph knows the number of rows of a batch that it reads; or of all that is fed, if it reads none.

    A placeholder of a fixed shape beside data that is read, or beside a batch of any size, is no batch.
    """
    cloned = analyse(program).cloned
    read = _sizes(program, cloned, effects.SOURCES)
    if read:
        return any(size is not None and size > 1 for size in read)
    fed = _sizes(program, cloned, effects.PLACEHOLDERS)
    return bool(fed) and None not in fed and max(fed) > 1


def known_rows(program, cloned):
    """How many rows a batch of the model has, where the graph knows it: the first dimension that most of its data has,
    of data that is read if there is any; else None.

    Args:
      program: a Program with one copy of the model.
      cloned: names of the nodes that every copy of it has.
    """
    if not program.specs:
        return None
    sizes = _sizes(program, cloned, effects.SOURCES) or _sizes(program, cloned, effects.PLACEHOLDERS)
    if not sizes or None in sizes:
        return None
    rows = collections.Counter(sizes).most_common(1)[0][0]
    return rows if rows > 1 else None


def _sizes(program, cloned, types):
    """The first dimensions of what copies of the model take of nodes of some types, None where they are not known;
    nothing of scalars."""
    graph, found = program.graph, []
    for name in graph.find(types.__contains__):
        consumers = [pair for pair in graph.consumers.get(name, ()) if pair[0] in cloned]
        taken = {graph.inputs[consumer][position].index for consumer, position in consumers}
        for index in sorted(index for index in taken if index >= 0):
            spec = program.spec_of(format_input(name, index))
            shape = None if spec is None else spec.shape
            if shape is None or len(shape) > 0:
                found.append(None if shape is None or shape[0] < 0 else shape[0])
    return found
