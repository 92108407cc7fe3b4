"""What devices exchange in a step, and what is divided over them, as text for people."""

import collections

from epl.graph import tags
from epl.plan.exchange.exchanges import bytes_by_axis
from epl.plan.layout.mesh import SHARD
from epl.plan.text import bytes_text, columns

_WHY = {
    "all_reduce": "%s is added up for %s",
    "reduce_scatter": "%s is added up, and divided, for %s",
    "all_gather": "%s is made whole for %s",
    "all_to_all": "%s is divided otherwise for %s",
}


def exchanges_table(program, exchanges, max_rows=16):
    """Tables of the exchanges, of the divided variables, and of the operations without a rule; "" for nothing to say.

    Args:
      program: a compiled epl.program.program.Program.
      exchanges: its epl.plan.exchange.exchanges.Exchanges.
      max_rows: of a table, before the rest is summed up.
    """
    parts = [_exchanges(program, exchanges, max_rows)] if exchanges else []
    if program.partitioned is not None:
        parts.append(_placements(program, max_rows))
        parts.append(_without_rule(program, max_rows))
    return "\n".join(part for part in parts if part)


def _exchanges(program, exchanges, max_rows):
    largest = sorted(range(len(exchanges)), key=lambda i: -exchanges[i].num_bytes * exchanges[i].times)[:max_rows]
    shown = [exchanges[i] for i in sorted(largest)]
    rows = [("phase", "exchange", "axis", "of each device", "times", "why")]
    for each in shown:
        axis = "%s (%d)" % (each.axis, each.devices)
        row = each.phase, each.operation, axis, bytes_text(each.num_bytes), "%g" % each.times, why(program, each)
        rows.append(row)
    lines = ["", "What a device exchanges in a step:"] + columns(rows)
    if len(shown) < len(exchanges):
        hidden = sum(e.num_bytes * e.times for e in exchanges) - sum(e.num_bytes * e.times for e in shown)
        lines.append("  ... and %d smaller ones, of %s" % (len(exchanges) - len(shown), bytes_text(int(hidden))))
    counts = collections.Counter()
    for each in exchanges:
        counts[each.axis] += each.times
    for axis, size in bytes_by_axis(exchanges).items():
        lines.append("  along the axis %s: %g exchanges, %s" % (axis, counts[axis], bytes_text(size)))
    return "\n".join(lines)


def why(program, exchange):
    """For what an exchange is made, in words."""
    done = program.partitioned
    if exchange.axis != SHARD or not exchange.wanted_by:
        return "'%s'" % exchange.tensor if exchange.axis == SHARD else "copies of '%s'" % exchange.tensor
    if exchange.tensor == exchange.wanted_by:
        return "'%s' is computed in parts" % exchange.tensor
    node = program.source.graph.nodes.get(exchange.wanted_by) or done.graph.nodes[exchange.wanted_by]
    text = _WHY[exchange.operation] % ("'%s'" % exchange.tensor, "'%s' (%s)" % (exchange.wanted_by, node.op))
    if any(each.node == exchange.wanted_by for each in done.without_rule):
        text += ", which has no rule"
    return text


def _placements(program, max_rows):
    done, variables = program.partitioned, program.plan.variables
    placements = {name: placed.shard for name, placed in program.plan.placements.items() if placed.is_divided}
    divided = sorted(placements, key=program.source.graph.creation_index.__getitem__)
    rows = [("divided variable", "shape", "dimension", "devices")]
    for name in divided[:max_rows]:
        rows.append((name, str(list(variables[name].shape)), str(placements[name].dim), str(done.shards)))
    lines = [""] + (columns(rows) if divided else [])
    if len(divided) > max_rows:
        lines.append("  ... and %d further ones" % (len(divided) - max_rows))
    kinds = collections.Counter(placement.kind for placement in done.placements.values())
    lines.append(
        "  %d tensors lie in parts, and %d as partial sums; %d variables are whole on each device"
        % (kinds["sharded"], kinds["partial"], len(variables) - len(divided))
    )
    return "\n".join(lines)


def _without_rule(program, max_rows):
    done = program.partitioned
    found = [each for each in done.without_rule if tags.phase(done.graph.nodes[each.node]) != tags.SAVE]
    if not found:
        return ""
    rows = [("operation without a rule", "type", "made whole for it")]
    for each in sorted(found, key=lambda e: (-e.num_bytes, e.node))[:max_rows]:
        rows.append((each.node, each.op, bytes_text(each.num_bytes)))
    lines = [""] + columns(rows)
    if len(found) > max_rows:
        lines.append("  ... and %d further ones" % (len(found) - max_rows))
    return "\n".join(lines)


def facts(program, exchanges):
    """The same as a dict that can be saved as JSON: "collectives", "bytes_by_axis", "placements", "without_rule"."""
    found = {"collectives": [_row(each) for each in exchanges], "bytes_by_axis": bytes_by_axis(exchanges)}
    done = program.partitioned
    if done is not None:
        found["placements"] = {tensor: str(placement) for tensor, placement in done.placements.items()}
        found["without_rule"] = [{"node": e.node, "op": e.op, "bytes": e.num_bytes} for e in done.without_rule]
    return found


def _row(each):
    return {
        "name": each.name,
        "operation": each.operation,
        "axis": each.axis,
        "devices": each.devices,
        "sent_by": each.sent_by,
        "bytes": each.num_bytes,
        "times_per_step": each.times,
        "phase": each.phase,
        "tensor": each.tensor,
        "wanted_by": each.wanted_by,
    }
