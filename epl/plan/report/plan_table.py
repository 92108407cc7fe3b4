"""Plans as text, for people."""

from epl.graph import tags
from epl.plan.layout.mesh import DATA
from epl.plan.layout.rows import weights_of
from epl.plan.text import bytes_text, columns
from epl.plan.zero.zero_balance import uneven


def plan_table(plan, program=None, max_rows=8):
    """The plan as a table: what runs where, and what one step sends.

    Args:
      plan: an epl.plan.plan.Plan.
      program: the compiled Program, for the number of operations; may be left out.
      max_rows: rows of devices before the rest is summed up.
    """
    mesh = plan.mesh
    lines = [
        "Plan: %d model %s on %s"
        % (mesh.shape[DATA], "replica" if mesh.shape[DATA] == 1 else "replicas", _devices(mesh))
    ]
    rows = [("worker", "device", "replica", "part of its batch", "stage")]
    for row in _rows(mesh, max_rows):
        rows.append(row)
    lines.extend(columns(rows))
    hidden = mesh.num_workers * mesh.devices_per_worker - (len(rows) - 1)
    if hidden > 0:
        lines.append("  ... and %d further devices, in the same way" % hidden)
    lines.extend(_facts(plan, program))
    lines.extend(_strategies(plan))
    return "\n".join(lines)


def _devices(mesh):
    return "%d %s x %d %s" % (
        mesh.num_workers,
        "worker" if mesh.num_workers == 1 else "workers",
        mesh.devices_per_worker,
        mesh.device_type,
    )


def _rows(mesh, max_rows):
    shown = 0
    for block in range(mesh.num_workers // mesh.pipeline.num_workers):
        for instance in mesh.instances:
            rank = block * len(mesh.instances) + instance.index
            by_device = {}
            for stage, device in zip(mesh.stages, instance.devices):
                if instance in mesh.computing(stage.index):
                    place = (block * mesh.pipeline.num_workers + mesh.worker_of(stage.index, instance), device)
                    by_device.setdefault(place, []).append(stage)
            for (worker, device), stages in sorted(by_device.items()):
                if shown == max_rows:
                    return
                shown += 1
                span = mesh.span(stages[0].index)
                weights, share = weights_of(mesh, stages[0].index), rank % mesh.num_shards // span
                first, shares = sum(weights[:share]) + 1, sum(weights)
                last = first + weights[share] - 1
                part = "%d" % first if first == last else "%d to %d" % (first, last)
                yield (
                    str(worker),
                    "%s:%d" % (mesh.device_type, mesh.first_device + device),
                    str(rank // mesh.num_shards),
                    "all" if shares == 1 else "%s of %d" % (part, shares),
                    " + ".join(stage.name for stage in stages),
                )


def _facts(plan, program):
    mesh = plan.mesh
    facts = []
    if program is not None:
        facts.append(
            (
                "operations",
                "%d in the model, %d in this worker's graph"
                % (len(program.source.graph.nodes), len(program.graph.nodes)),
            )
        )
    facts.append(("variables", "%d" % len(plan.variables)))
    if plan.partitioned is not None:
        facts.extend(_of_shards(plan))
    if plan.local_sgd is not None:
        facts.extend(_of_local_sgd(plan))
    elif mesh.copies.size > 1:
        groups = plan.aggregation.groups
        facts.append(
            (
                "gradients",
                "%d dense in %d group%s, %d sparse; %s over %s instances"
                % (
                    sum(len(g.tensors) for g in groups),
                    len(groups),
                    "" if len(groups) == 1 else "s",
                    len(plan.aggregation.sparse),
                    "mean" if plan.reduce_mean else "sum",
                    _copies(mesh),
                ),
            )
        )
        if plan.link is not None:
            speed = "%.4g us, %.4g GB/s" % (plan.link.latency_s * 1e6, plan.link.bytes_per_s / 1e9)
            facts.append(("link between workers", "%s (%s)" % (speed, plan.link.source)))
        sparse = ", and the rows that sparse gradients touch" if plan.aggregation.sparse else ""
        facts.append(("gradients sent per step", "%s%s" % (bytes_text(plan.bytes_per_step()), sparse)))
        found = uneven(plan)
        if found is not None:
            text = "one device keeps %.2f times its share, as '%s' (%s) has one owner"
            facts.append(("WARNING: zero.level", text % (found.times, found.variable, bytes_text(found.num_bytes))))
    facts.extend(("divided data", line) for line in plan.data.told())
    width = max(len(name) for name, _ in facts)
    return ["  %s  %s" % (name.ljust(width), text) for name, text in facts]


def _copies(mesh):
    """How many copies gradients are aggregated over, for people: of each stage where they differ."""
    counts = [mesh.holding(stage.index).size for stage in mesh.stages]
    return str(counts[0]) if mesh.is_even else " and ".join(map(str, counts))


def _strategies(plan):
    """What each strategy in force costs or saves."""
    if not plan.strategies:
        return []
    rows = [("strategy", "sent per step", "variables here", "what it does")]
    for each in plan.strategies:
        rows.append((each.key, _change(each.sent_bytes), _change(each.kept_bytes), each.effect))
    return [""] + columns(rows)


def _change(count):
    """Bytes more or fewer, for people."""
    if count is None:
        return "more, by the data"
    return "%s%s" % ("-" if count < 0 else "+", bytes_text(abs(count))) if count else "as without"


def _of_shards(plan):
    done = plan.partitioned
    divided = sum(placed.is_divided for placed in plan.placements.values())
    facts = [("divided variables", "%d, over %d devices" % (divided, done.shards))]
    for phase in (tags.FORWARD, tags.BACKWARD, tags.APPLY):
        found = [each for each in done.collectives if each.phase == phase]
        if found:
            kinds = sorted({each.kind for each in found})
            each_kind = ", ".join("%d %s" % (sum(e.kind == kind for e in found), kind) for kind in kinds)
            size = bytes_text(sum(each.num_bytes for each in found))
            facts.append(("exchanges, %s" % phase, "%s; of tensors of %s" % (each_kind, size)))
    for each in done.without_rule:
        if tags.phase(done.graph.nodes[each.node]) != tags.SAVE:
            facts.append(("takes whole inputs", "'%s' (%s): %s" % (each.node, each.op, bytes_text(each.num_bytes))))
    return facts


def _of_local_sgd(plan):
    local = plan.local_sgd
    until = ", every step until step %d" % local.begin_step if local.begin_step else ""
    late = ", one period late" if local.overlap else ""
    return [
        ("LocalSGD", "%d variables, averaged every %d steps%s%s" % (len(local.variables), local.k_steps, until, late)),
        ("sent per averaging", "%s, %s per step" % (bytes_text(local.num_bytes), bytes_text(plan.bytes_per_step()))),
    ]
