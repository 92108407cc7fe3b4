"""What must be the same on every worker so that the collectives of a call fit together."""

import hashlib

from epl.graph import tags
from epl.graph.index import node_of
from epl.session.described import describe, settings


def lines(rewritten, traffic, writes):
    """A line for each thing that must be the same.

    These are the settings, the hints, the collectives, and the nodes of the user's graph that collectives and updates
    of variables depend on; of those that only updates depend on (a learning rate, say) the constants' values too.

    Args:
      rewritten: the Rewritten.
      traffic: the Traffic of the call.
      writes: operations by which it changes variables.
    """
    users, plan = rewritten.program.source.graph, rewritten.plan
    updates = users.ancestors(writes, stop=rewritten.differing)
    compared = users.ancestors(rewritten.in_one_copy(_compared(rewritten, traffic)) | _gathered(plan, traffic))
    compared -= updates
    known = {each.name: each for each in plan.collectives}
    return (
        rewritten.settings
        + [settings(plan)]
        + ["hint: %s %s" % hint for hint in sorted(rewritten.hints.items())]
        + plan.data.facts()
        + [known[name].told() if name in known else name for name in traffic.names]
        + ["message %s: %d to %d over channel %d" % (m.name, m.source, m.target, m.channel) for m in traffic.messages]
        + [describe(users.nodes[name], with_value=name in updates) for name in users.in_order(compared | updates)]
    )


def digest_of(lines_):
    """16 bytes that tell such lines from others."""
    digest = hashlib.sha256()
    for line in lines_:
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.digest()[:16]


def _compared(rewritten, traffic):
    """Nodes on which the workers must agree: the collectives, and what messages carry."""
    nodes = rewritten.graph.nodes
    names = list(traffic.names) + [node_of(message.tensor) for message in traffic.messages]
    # A part of a variable for a checkpoint is received or sent; its name says which one it is.
    return [name for name in names if name in nodes and tags.SAVER not in nodes[name].attr]


def _gathered(plan, traffic):
    """What reads parameters that are gathered; a worker's own gather takes those that it holds alone."""
    collectives, found = set(traffic.collectives), set()
    for segment in plan.zero.segments if plan.zero is not None else ():
        if any(
            segment.gather_of(shard_rank) in collectives for shard_rank in plan.shard_ranks_of(segment.variables[0])
        ):
            found.update(segment.reads)
    return found
