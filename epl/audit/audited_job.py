"""The audit of a job: of the graphs of all its workers together, and the table of what is found."""

import collections

from epl.audit.audit import NOT_SHOWN, PROVEN, WRONG, audit


def by_design(config):
    """Which keys of a configuration ask for other numbers than one device's, or for shares of the batch that the audit
    does not weigh, in words; "" where none does."""
    asked = [
        ("local_sgd.k_steps", config.local_sgd.k_steps),
        ("amp.level", config.amp.level),
        ("communication.fp16", config.communication.fp16),
        ("communication.gradients_reduce_method", config.communication.gradients_reduce_method == "sum"),
    ]
    keys = [key for key, value in asked if value]
    if not keys and config.cluster.device_weights:
        return "cluster.device_weights gives copies of the model shares of different size, which is not followed"
    return "%s asks for other numbers than one device's" % " and ".join(keys) if keys else ""


def audit_job(captured, config, cluster, compile_for):
    """The Findings of all variables that training changes.

    Args:
      captured: the Program of one device.
      config, cluster: an epl.Config and the epl.Cluster.
      compile_for: function from a worker's index to its compiled Program.
    """
    graphs = {worker: compile_for(worker).graph for worker in range(cluster.worker_num)}
    return audit(captured, graphs, by_design(config))


def audit_table(findings, rows=16):
    """Lines for people: how many variables are shown to be right, and what of the others."""
    counts = collections.Counter(finding.verdict for finding in findings)
    lines = [
        "Audit: of %d variables that training changes, %d are proven to be updated as on one device, %d are wrong, %d "
        "are not shown" % (len(findings), counts[PROVEN], counts[WRONG], counts[NOT_SHOWN])
    ]
    for verdict in (WRONG, NOT_SHOWN):
        chosen = [finding for finding in findings if finding.verdict == verdict]
        for finding in chosen[:rows]:
            where = "; seen at '%s' of worker %d" % (finding.node, finding.worker) if finding.node else ""
            lines.append("  %-9s %s: %s%s" % (verdict, finding.variable, finding.reason, where))
        if len(chosen) > rows:
            lines.append("  %-9s and %d more" % (verdict, len(chosen) - rows))
    return "\n".join(lines)


def is_wrong(findings):
    """Whether an update is known not to be one device's."""
    return any(finding.verdict == WRONG for finding in findings)
