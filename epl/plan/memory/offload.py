"""What lies in host memory (`offload.level`), and when the device gets of it what its next operations need.

A parameter in host memory is read there. What is made of parameters alone (their casts, their norms) is made there too,
and rows are looked up there. Every other operation of the forward and the backward pass that takes a parameter gets a
copy of it, which it shares with those that take it at the same time only: the forward and the backward pass have one
each. The copy of a layer's parameters waits until the layer before has what it computes with, so that it is on its way
while that one computes, and not earlier.
"""

import collections
from dataclasses import dataclass
from typing import FrozenSet, Optional, Tuple

from epl.errors import UnsupportedError
from epl.graph import tags
from epl.graph.functions import Functions
from epl.graph.index import canonical_tensor, node_of
from epl.partition.partitioned import EXCHANGES, SEND_ROWS
from epl.plan.cost.own_bytes import own_part, own_sizes, whole_of
from epl.plan.facts.analysis import analyse
from epl.plan.facts.variable_sizes import num_elements, size_bytes
from epl.rules import effects, tensors

TO_DEVICE = "to_device"  # the role of a node that gives the device a copy of a parameter
ON_HOST = "on_host"  # that of a node of an update that is made there, of a variable on the device
_LOOKUPS = frozenset(["Gather", "GatherV2", "GatherNd"])
# Of what devices have parts of (epl.split), those that are on the host are joined there.
_JOINED = EXCHANGES - {SEND_ROWS}
_COMPUTES = (tags.FORWARD, tags.BACKWARD)
# Parameters of less than this part of the largest one hold up nothing, and come together with others.
_LARGE = 16


@dataclass(frozen=True)
class Copy:
    """A parameter, or what is made of parameters alone, on its way to the device.

    Attributes:
      tensor: canonical name of what is copied.
      users: (node, input position) pairs that take the copy.
      after: a node for which it waits; None for what the first layer takes.
    """

    tensor: str
    users: Tuple[Tuple[str, int], ...]
    after: Optional[str]


@dataclass(frozen=True)
class Offload:
    """What lies and runs on the host, and what the device gets.

    Attributes:
      variables: those in host memory.
      host: all nodes that run there: these variables, and what changes and reads them.
      copies: the Copies.
      of_state: whether only what optimizers keep lies there.
    """

    variables: FrozenSet[str]
    host: FrozenSet[str]
    copies: Tuple[Copy, ...]
    of_state: bool = False


def plan_offload(program, target):
    """The Offload of a program, where offload.level asks for one; else None.

    At level "v0" the trainable variables lie on the host, and what an operation of the optimizer takes together with
    them, which for most of TensorFlow's optimizers are all slots; at "v1" all that optimizers keep and compute; at
    "state" that alone, without the trainable variables.

    Raises:
      UnsupportedError: there are trainable variables, but none of them can lie on the host.
    """
    level = target.config.offload.level
    if not level:
        return None
    graph, in_control_flow = program.graph, analyse(program).in_control_flow
    calls = {node.name for node in Functions(graph.library).callers(graph.nodes.values())}
    if level == "state":
        return Offload(*_state(program, calls), copies=(), of_state=True)
    variables, host, staying = _variables(program, calls)
    if level == "v1":
        updates = [name for name, node in graph.nodes.items() if tags.phase(node) == tags.APPLY]
        taken = {node_of(text) for name in updates for text in graph.nodes[name].input}
        for name in graph.in_order(n for n in taken - variables - staying if graph.nodes[n].op in effects.VARIABLES):
            nodes = _takers(graph, name) | {name}
            if _computes_inside(graph, nodes & calls) is None:
                variables.add(name)
                host |= nodes
            else:
                staying |= nodes
        host.update(name for name in updates if name not in staying)
    sizes = _made_of_parameters(program, variables, host, in_control_flow, calls)
    return Offload(frozenset(variables), frozenset(host), tuple(copies(graph, sizes, host, in_control_flow, _COMPUTES)))


def _state(program, calls):
    """(what optimizers keep, but for scalars, and all nodes that run where it is).

    Among these are operations that take a trainable variable too (epl.passes.worker.update_on_host gives them a copy).
    """
    graph = program.graph
    trained = {v.name for v in program.variables.values() if v.is_trainable}.union(v for _, v in program.computed)
    updates = [name for name, node in graph.nodes.items() if tags.phase(node) == tags.APPLY]
    taken = {node_of(text) for name in updates for text in graph.nodes[name].input} - trained
    takers = {v: _takers(graph, v) for v in taken & program.variables.keys() if num_elements(program.variables[v]) > 1}
    inside = {name for name in calls if tags.phase(graph.nodes[name]) in _COMPUTES + (tags.APPLY,)}
    staying = {v for v, nodes in takers.items() if nodes & inside}
    while True:  # an operation takes all of its variables in one place
        held = set().union(*(takers[v] for v in staying)) & set(updates)
        more = {v for v, nodes in takers.items() if nodes & held}
        if more <= staying:
            break
        staying |= more
    variables = frozenset(takers.keys() - staying)
    if not variables:
        return variables, frozenset()
    host = variables.union(*(takers[v] for v in variables))
    others = set(graph.find(effects.VARIABLES.__contains__)) - variables
    return variables, host.union(updates) - (others.union(*(_takers(graph, v) for v in others)) - host)


def _variables(program, calls):
    """(variables that lie on the host, they and all nodes that take them themselves, not their values, and such nodes
    of variables that stay on the device)."""
    graph = program.graph
    trainable = [v for v in program.variables.values() if v.is_trainable and v.added is None]
    found, takers, staying, unfit = set(), set(), set(), []
    for variable in trainable:
        group, stack, nodes = {variable.name}, [variable.name], set()
        while stack:
            name = stack.pop()
            direct = _takers(graph, name)
            nodes.update(direct, [name])
            for taker in direct:
                if tags.phase(graph.nodes[taker]) != tags.APPLY:
                    continue  # a saver takes all variables
                for other in map(node_of, graph.nodes[taker].input):
                    if graph.nodes[other].op in effects.VARIABLES and other not in group:
                        group.add(other)
                        stack.append(other)
        inner = _computes_inside(graph, nodes & calls)
        if inner is None:
            found |= group
            takers |= nodes
        else:
            staying |= nodes
            unfit.append((variable.name, inner))
    if trainable and not found:
        raise UnsupportedError(
            "offload.level: none of the %d trainable variables can lie in host memory, as functions take them "
            "themselves, and compute with them: '%s' takes '%s'. Build loops and branches after "
            "tf.disable_control_flow_v2(), or leave offload.level at ''." % (len(trainable), unfit[0][1], unfit[0][0])
        )
    return found - staying, takers - staying, staying


def _computes_inside(graph, calls):
    """The first of some nodes that call functions which belongs to the forward or backward pass, or None."""
    return next((name for name in graph.in_order(calls) if tags.phase(graph.nodes[name]) in _COMPUTES), None)


def _takers(graph, variable):
    """The nodes that take a variable itself."""
    found, stack, handle = set(), [variable], graph.nodes[variable].op == "VarHandleOp"
    while stack:
        for consumer, position in graph.consumers.get(stack.pop(), ()):
            node = graph.nodes[consumer]
            if consumer in found or node.input[position][0] == "^":
                continue
            found.add(consumer)
            if node.op in effects.HANDS_ON and (node.op != "Identity" or handle):
                stack.append(consumer)
    return found


def _made_of_parameters(program, variables, host, in_control_flow, calls):
    """Adds to `host` what is made of parameters alone.

    Returns:
      dict of node to bytes: reads of parameters, and what is made of them, as large as they are.
    """
    graph, sizes, num_bytes = program.graph, {}, own_sizes(program)
    for variable in variables:
        for name in _takers(graph, variable):
            if graph.nodes[name].op in tensors.READS and name not in in_control_flow:
                own = own_part(program, variable, size_bytes(program.variables[variable]))
                sizes[name] = max(sizes.get(name, 0), own)
    reached = graph.descendants(list(sizes), data_only=True) - host
    for name in sorted(reached & graph.order.keys(), key=graph.order.__getitem__):
        node = graph.nodes[name]
        if tags.phase(node) not in _COMPUTES or name in in_control_flow or name in calls:
            continue
        if node.op not in _JOINED and (effects.kind_of(node.op) is not None or node.op in program.stateful):
            continue
        inputs = [canonical_tensor(text) for text in node.input if text[0] != "^"]
        parameters = [node_of(tensor) for tensor in inputs if node_of(tensor) in sizes]
        if not parameters:
            continue
        if node.op in tensors.SHAPE_ONLY or node.op in _LOOKUPS and node_of(inputs[0]) in sizes:
            host.add(name)
        elif _is_sum_of_gradients(graph, node, parameters) or all(
            node_of(t) in sizes or graph.nodes[node_of(t)].op == "Const" or _is_scalar(program, t) for t in inputs
        ):
            host.add(name)
            if not _is_scalar(program, name):
                # Of what is joined a device may have more than of its parts.
                joined = num_bytes(name) if node.op in _JOINED else 0
                sizes[name] = max([joined] + [sizes[each] for each in parameters])
    return sizes


def _is_sum_of_gradients(graph, node, parameters):
    """Whether a gradient is added up here of which a part, of weight decay say, is made on the host."""
    made = (tags.phase(graph.nodes[name]) == tags.BACKWARD for name in parameters)
    return node.op in tensors.SUMS and tags.phase(node) == tags.BACKWARD and any(made)


def _is_scalar(program, tensor):
    spec = program.spec_of(whole_of(program, tensor))
    return spec is not None and spec.shape == ()


def copies(graph, sizes, host, in_control_flow, phases):
    """The Copies that the device gets of what lies on the host, in the order of their first users.

    Args:
      graph: the tagged Graph of one copy of the model.
      sizes: dict of node to bytes: those whose tensors lie on the host.
      host: nodes that run on the host.
      in_control_flow: nodes inside a loop or a branch of control flow v1.
      phases: those of the nodes that get copies.
    """
    users = collections.OrderedDict()
    for name in sorted(graph.order, key=graph.order.__getitem__):
        if name not in host and tags.phase(graph.nodes[name]) in phases:
            taken = [
                (position, canonical_tensor(text))
                for position, text in enumerate(graph.nodes[name].input)
                if text[0] != "^" and node_of(text) in sizes
            ]
            if taken:
                users[name] = taken
    large = max(sizes.values(), default=0) / float(_LARGE)
    layers = {}  # node that takes something large -> the last of what it computes with
    for name, taken in users.items():
        if name not in in_control_flow and any(sizes[node_of(tensor)] >= large for _, tensor in taken):
            begins = _begins(graph, name, sizes, host, in_control_flow)
            if begins is not None:
                layers[name] = begins
    before = _layers_before(graph, layers)
    shared = collections.OrderedDict()
    for name, taken in users.items():
        after = layers.get(before.get(name))
        for position, tensor in taken:
            shared.setdefault((tensor, after), []).append((name, position))
    return [Copy(tensor, tuple(takers), after) for (tensor, after), takers in shared.items()]


def _begins(graph, name, sizes, host, in_control_flow):
    """The last of the nodes that an operation takes besides copies, of its own stage; None where there is none."""
    others = [
        producer
        for producer, index in graph.inputs[name]
        if index >= 0
        and producer not in sizes
        and producer not in host
        and producer not in in_control_flow
        and graph.nodes[producer].op != "Const"
        and _stage(graph, producer) == _stage(graph, name)
    ]
    return max(others, key=graph.order.__getitem__) if others else None


def _layers_before(graph, layers):
    """dict of node to the last of `layers` that it depends on by way of its own stage."""
    found, order = {}, graph.order
    for name in sorted(order, key=order.__getitem__):
        best = None
        for producer, index in graph.inputs[name]:
            if index < 0 or _stage(graph, producer) != _stage(graph, name):
                continue
            other = producer if producer in layers else found.get(producer)
            if other is not None and (best is None or order[other] > order[best]):
                best = other
        if best is not None:
            found[name] = best
    return found


def _stage(graph, name):
    return tags.get_int(graph.nodes[name], tags.TASKGRAPH, 0)
