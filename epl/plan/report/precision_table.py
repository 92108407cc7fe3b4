"""The table that amp.debug_log prints: which operation is computed in how many bits, and because of what."""

import collections

_SIXTEEN, _THIRTY_TWO = "16 bits", "float32"
_BYTES = 2  # that each number takes less


def table(program, decisions, casts):
    """The table as text.

    Args:
      program: an epl.program.program.Program, as it was before.
      decisions: a Precision of it.
      casts: (node that takes a cast, cast) pairs; who shares a cast with a node before it adds none.
    """
    first, added = set(), collections.Counter()
    for name, cast in casts:
        added[name] += cast not in first
        first.add(cast)
    rows = [("operation", "type", "computed in", "because of", "casts", "bytes saved")]
    saved_in_all, created = 0, program.graph.creation_index
    decided = {name: (_SIXTEEN, known.reason) for name, known in decisions.computed.items()}
    decided.update((name, (_THIRTY_TWO, reason)) for name, reason in decisions.others)
    for name in sorted(decided, key=created.__getitem__):
        (bits, reason), node = decided[name], program.graph.nodes[name]
        saved = _saved(program, name) if bits == _SIXTEEN else 0
        saved_in_all += saved
        rows.append((name, node.op, bits, reason, str(added[name]), str(saved)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows]
    lines.append(
        "%d operations in 16 bits, %d casts to it; their results take %d bytes less. A dimension that the graph does "
        "not know counts as 1." % (len(decisions.computed), len(first), saved_in_all)
    )
    return "\n".join(lines)


def _saved(program, name):
    spec = program.spec_of(name)
    if spec is None or spec.shape is None:
        return 0
    count = 1
    for dim in spec.shape:
        count *= max(1, dim)
    return count * _BYTES
