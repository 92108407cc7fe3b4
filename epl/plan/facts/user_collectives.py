"""Collectives that the user's own graph holds: which they are, and where they cannot be."""

from dataclasses import dataclass, replace
from typing import Optional, Tuple

from epl.errors import PlanError, UnsupportedError
from epl.graph import tags
from epl.graph.index import canonical_tensor, node_of
from epl.plan.facts.variable_sizes import known_bytes
from epl.program.collective import ALL_GATHER, OF_USER, OPERATIONS, collective, tag_of
from epl.rules import effects

# With several instances in a worker, these are over the instances of all workers.
_OVER_INSTANCES = frozenset(["EplAllReduce", "EplAllGather"])


@dataclass(frozen=True)
class UserCollective:
    """A collective that the user built with epl.ops.

    Attributes:
      name: its node.
      tag: of the collective; a send and its recv have the same.
      label: what it is called between workers.
      anchor: the node whose place in the user's graph is its place in the order.
      partner: of a recv: its send; else "".
      takes_part: False on workers that a message does not concern.
      operation: as of a Collective.
      tensors: what it takes, in one copy of the model.
      num_bytes: of these; None where the data says it.
      dtype: DataType number; None for what takes nothing.
      phase: of the step.
      trains: whether a step of training needs it.
    """

    name: str
    tag: int
    label: str
    anchor: str
    partner: str = ""
    takes_part: bool = True
    operation: str = ""
    tensors: Tuple[str, ...] = ()
    num_bytes: Optional[int] = None
    dtype: Optional[int] = None
    phase: str = tags.FORWARD
    trains: bool = True


def find_user_collectives(model, analysis, mesh):
    """The user's collectives in the order of creation; none where there is nobody to talk to.

    Args:
      model: an epl.program.program.Program.
      analysis: its Analysis.
      mesh: its Mesh.

    Raises:
      UnsupportedError: one stands where workers cannot agree on its order, or does not work with several devices.
      PlanError: a send has no recv, or several.
    """
    graph = model.graph
    nodes = user_collectives(graph)
    _check_functions(graph)
    for node in nodes:
        _check_place(node, analysis)
        _check_instances(node, mesh)
    sends = _messages(graph, nodes)
    if mesh.copies.size == 1:
        return ()
    recvs = {send: recv for recv, send in sends.items()}
    trained = graph.ancestors(analysis.writes) if nodes else ()
    return tuple(
        replace(_collective(node, sends, recvs, mesh.worker_index), **_facts(model, node, trained)) for node in nodes
    )


def user_collectives(graph):
    """The nodes of collectives of the user's; those that passes make have a role."""
    nodes = [graph.nodes[name] for name in graph.find(effects.COLLECTIVES.__contains__)]
    return [node for node in nodes if tags.ROLE not in node.attr]


def _collective(node, sends, recvs, worker):
    name = node.name
    if node.op not in ("EplSend", "EplRecv"):
        return UserCollective(name, tag_of(name), name, name)
    send = sends.get(name, name)
    source, target = node.attr["source"].i, node.attr["target"].i
    concerned = source if node.op == "EplSend" else target
    return UserCollective(
        name,
        tag_of(send),
        send,
        # Both halves have one place: with two, large messages and collectives between them could wait for each other.
        anchor=recvs.get(name, name),
        partner=sends.get(name, ""),
        takes_part=source != target and worker == concerned,
    )


def _facts(model, node, trained):
    """What a UserCollective says of its node besides."""
    tensors = tuple(canonical_tensor(text) for text in node.input if text[0] != "^")
    handed_in = () if node.op == "EplRecv" else tensors[: tags.get_int(node, "N", 1)]
    sizes = [known_bytes(model, tensor) for tensor in handed_in]
    return {
        "operation": OPERATIONS[node.op],
        "tensors": tensors,
        "num_bytes": None if None in sizes else sum(sizes),
        "dtype": node.attr["T"].type if "T" in node.attr else None,
        "phase": tags.phase(node),
        "trains": node.name in trained,
    }


def user_made_collectives(plan):
    """A Collective of each UserCollective of a Plan, over all copies of the model."""
    found, copies = [], plan.mesh.copies
    for each in plan.user_collectives:
        num_bytes = each.num_bytes
        if each.operation == ALL_GATHER and num_bytes is not None:
            num_bytes *= copies.local
        found.append(
            collective(
                each.name,
                each.operation,
                OF_USER,
                each.tensors,
                copies,
                0,
                num_bytes,
                each.dtype,
                each.phase,
                times=int(each.trains),
                takes_part=each.takes_part,
                tag=each.tag,
                after=(each.anchor,),
                shift=-0.5,  # so that what only needs its result, under whatever name, comes after it
            )
        )
    return found


def _check_place(node, analysis):
    if node.name in analysis.in_control_flow:
        raise UnsupportedError(
            "'%s' (%s) stands in a loop or a branch, where workers cannot agree on how often and when it runs. Build "
            "it outside: give the loop or the branch its result, or reduce what comes out of it." % (node.name, node.op)
        )


def _check_functions(graph):
    for function in graph.library.function:
        for node in function.node_def:
            if node.op in effects.COLLECTIVES:
                raise UnsupportedError(
                    "'%s' (%s) stands in the body of function '%s' (of a loop, a branch, a data set or a tf.function), "
                    "where workers cannot agree on how often and when it runs. Build it outside of the function."
                    % (node.name, node.op, function.signature.name)
                )


def _check_instances(node, mesh):
    count = len(mesh.instances)
    if count > 1 and node.op not in _OVER_INSTANCES:
        raise UnsupportedError(
            "'%s' (%s) works with one copy of the model in each worker, but each worker has %d. Only all_reduce and "
            "all_gather (without its gradient) work over several; start more workers with one device each instead."
            % (node.name, node.op, count)
        )


def _messages(graph, nodes):
    """dict of each EplRecv to its EplSend."""
    sends = {}
    for node in nodes:
        if node.op != "EplRecv":
            continue
        send = graph.nodes[node_of(node.input[0])]
        while send.op == "Identity":
            send = graph.nodes[node_of(send.input[0])]
        if send.op != "EplSend":
            raise PlanError(
                "'%s' (EplRecv) takes '%s' (%s), which is no message; give epl.ops.recv what epl.ops.send returned."
                % (node.name, send.name, send.op)
            )
        sends[node.name] = send.name
    received = list(sends.values())
    for node in nodes:
        if node.op == "EplSend" and received.count(node.name) != 1:
            raise PlanError(
                "the message '%s' (EplSend) is received %d times; each epl.ops.send needs exactly one epl.ops.recv, "
                "in the same graph, on all workers." % (node.name, received.count(node.name))
            )
    return sends
