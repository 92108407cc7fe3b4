"""Lets the chief alone write checkpoints of a model whose tensors are divided over workers, or that hold what each
worker has of its own. The others take part in the gathering of what it writes.

    w -> SaveV2   becomes   w -^-> NoOp     on all workers but the chief
"""

from epl.graph import tags
from epl.graph.index import node_of
from epl.rules import effects

_CHIEF = 0
_CHECKPOINT_WRITES = frozenset(["SaveV2", "MergeV2Checkpoints"])


def write_once(program, plan):
    """Leaves no operation that writes a file, where another worker runs it too. Where workers have all of the model,
    that is one that writes a checkpoint; other files are each worker's own."""
    if not plan.saves_together or plan.mesh.worker_index == _CHIEF:
        return program
    graph, edit = program.graph, program.graph.editor()
    writes = effects.FILE_WRITES if plan.shards_span_workers else _CHECKPOINT_WRITES
    for name in graph.find(writes.__contains__):
        node = edit.node(name)
        waits = sorted({"^" + node_of(text) for text in node.input})
        node.op = "NoOp"
        del node.input[:]
        node.input.extend(waits)
        for key in [key for key in node.attr if not key.startswith(tags.PREFIX)]:
            del node.attr[key]
    return program.with_graph(edit.finish())
