"""Loops of control flow v1 in the forward pass: which of them may be run a second time, and what belongs to them.

`tf.gradients` adds nodes to a loop of the forward pass: a counter, and pushes of what the loop of the gradient pops
from stacks. These *accumulators* belong to the backward pass. A loop that is run a second time takes its accumulators
along, so that the first run leaves nothing on the stacks.

What a loop reads and writes by turns lies in TensorArrays, each of which can be read once: the second run has its own.
"""

import collections
from dataclasses import dataclass, replace
from typing import Dict, FrozenSet, Tuple

from epl.graph import tags
from epl.graph.control_flow import frames_of, in_branches
from epl.graph.index import node_of
from epl.rules import effects

_ARRAY = "TensorArrayV3"
_WRITES = frozenset(["TensorArrayWriteV3", "TensorArrayScatterV3", "TensorArraySplitV3"])
_SIZE = "TensorArraySizeV3"
_READS = frozenset(["TensorArrayReadV3", "TensorArrayGatherV3", "TensorArrayConcatV3", _SIZE])
# They read what the backward pass changes only behind them, or complain.
_HARMLESS = (
    _WRITES
    | _READS
    | frozenset(
        "ReadVariableOp ResourceGather ResourceGatherNd VariableShape Assert CheckNumerics CheckNumericsV2".split()
    )
)


@dataclass(frozen=True)
class Loop:
    """A loop of the forward pass, with those that are nested in it.

    Attributes:
      frame: name of its frame.
      nodes: of the forward pass, what enters and leaves the loop included.
      accumulators: nodes of the backward pass that run in it.
      pushed: tensors from the loop that accumulators take, as NodeDefs spell them.
      arriving: nodes of the backward pass that bring gradients into the loops of its gradient.
      leaving: nodes of the backward pass that bring gradients out of these.
      kept_because: why it cannot be run a second time; "" where it can.
    """

    frame: str
    nodes: FrozenSet[str]
    accumulators: FrozenSet[str]
    pushed: FrozenSet[str]
    arriving: FrozenSet[str]
    leaving: FrozenSet[str]
    kept_because: str = ""

    @property
    def name(self):
        return self.frame.rpartition("/")[0] or self.frame


@dataclass(frozen=True)
class Loops:
    """The loops of a forward pass.

    Attributes:
      all: the Loops, in creation order.
      of: dict of node of the forward pass in a loop to its Loop.
      carriers: dict of node that hands on a TensorArray, or that it is ready, to the TensorArrays that these may be.
      readers: the same of nodes that read one.
      repeatable: nodes that may be computed again, with the loop that they stand in or whose arrays they use.
      leaving: nodes of the backward pass that bring gradients out of the loops that are made of such loops.
      inside: all nodes that run in a loop or a branch, those of the backward pass too.
      outermost: those of them that leave a loop which is in no other.
    """

    all: Tuple[Loop, ...]
    of: Dict[str, Loop]
    carriers: Dict[str, FrozenSet[str]]
    readers: Dict[str, FrozenSet[str]]
    repeatable: FrozenSet[str]
    leaving: FrozenSet[str]
    inside: FrozenSet[str]
    outermost: FrozenSet[str]

    def together(self):
        """Sets of nodes of which all or none can be computed again: a loop, and loops that use the same arrays."""
        of_array = collections.defaultdict(set)
        for name, arrays in list(self.carriers.items()) + list(self.readers.items()):
            for array in arrays:
                of_array[array].update([name] if name not in self.of else self.of[name].nodes)
        sets = [set(loop.nodes) for loop in self.all]
        for nodes in of_array.values():
            touching = [each for each in sets if each & nodes]
            sets = [each for each in sets if not each & nodes] + [nodes.union(*touching)]
        return sets


def find_loops(graph, stateful, backward, never=frozenset()):
    """The Loops of the forward pass of a graph.

    Args:
      graph: a tagged Graph.
      stateful: operation types that keep state.
      backward: nodes of the backward pass.
      never: further nodes that are not to be repeated.
    """
    frames = frames_of(graph)
    members = collections.defaultdict(list)
    for name, around in frames.items():
        members[around[0]].append(name)
    branches = in_branches(graph)
    inside = branches.union(frames)
    loops, outermost = [], frozenset(n for n in frames if graph.nodes[n].op in effects.EXITS and len(frames[n]) == 1)
    for frame, names in members.items():
        nodes, accumulators = frozenset(names).difference(backward), backward.intersection(names)
        if nodes:
            pushed = {
                text
                for name in accumulators
                for text in graph.nodes[name].input
                if text[0] != "^" and node_of(text) in nodes
            }
            entering = {n for n in names if graph.nodes[n].op in effects.ENTERS and len(frames[n]) == 1}
            why = _why_kept(graph, stateful, nodes, entering, branches, never)
            gradient = _gradient(graph, frames, members, accumulators)
            arriving = _arriving(graph, inside - outermost, accumulators, gradient, backward)
            leaving = outermost.intersection(gradient)
            loops.append(Loop(frame, nodes, accumulators, frozenset(pushed), arriving, leaving, why))
    loops.sort(key=lambda loop: min(map(graph.creation_index.__getitem__, loop.nodes)))
    return _with_arrays(graph, loops, backward, inside, outermost)


def _why_kept(graph, stateful, nodes, entering, branches, never):
    for name in graph.in_order(nodes):
        node = graph.nodes[name]
        known = "'%s' (%s)" % (name, node.op)
        if node.op in effects.RANDOM:
            return known + " draws random numbers"
        if node.op not in _HARMLESS and (effects.kind_of(node.op) is not None or node.op in stateful):
            return known + " has state or effects"
        if name in never:
            return known + " is made of all replicas"
        if tags.phase(node) != tags.FORWARD:
            return known + " does not belong to the forward pass"
        if any(graph.nodes[p].op in effects.REFERENCE_VARIABLES for p, index in graph.inputs[name] if index >= 0):
            return known + " takes a variable itself"
    if not entering.isdisjoint(branches):
        return "it stands in a branch"
    return ""


def _gradient(graph, frames, members, accumulators):
    """The nodes of the loops that begin with what an accumulator has counted."""
    counts = [name for name in accumulators if graph.nodes[name].op in effects.EXITS]
    following = {frames[c][0] for name in counts for c, _ in graph.consumers.get(name, ()) if c in frames}
    return [name for frame in following for name in members[frame]]


def _arriving(graph, inside, accumulators, gradient, backward):
    """The nodes of the backward pass that some nodes of a loop of a gradient take from outside of it."""
    entering = [name for name in gradient if graph.nodes[name].op in effects.ENTERS]
    found = {p for name in entering for p, index in graph.inputs[name] if index >= 0 and p in backward}
    return frozenset(found - graph.descendants(accumulators) - inside)


def _with_arrays(graph, loops, backward, inside, outermost):
    """The loops; each that shares a TensorArray with a loop which is kept as a whole is kept as well."""
    of = {name: loop for loop in loops for name in loop.nodes}
    carriers, readers, odd = collections.defaultdict(set), collections.defaultdict(set), {}
    for array in [n for n in graph.find(_ARRAY.__eq__) if n not in backward] if loops else ():
        if array in of:
            odd[array] = "it makes the TensorArray '%s'" % array
        stack = [array]
        while stack:
            name = stack.pop()
            if array in carriers[name]:
                continue
            carriers[name].add(array)
            for consumer, position in graph.consumers.get(name, ()):
                op = graph.nodes[consumer].op
                if graph.inputs[consumer][position].index < 0 or consumer in backward:
                    continue
                if op in _READS:
                    readers[consumer].add(array)
                elif op in _WRITES or (op in effects.LOOP_HANDS_ON and (op != "Switch" or position == 0)):
                    stack.append(consumer)
                else:
                    odd[array] = "'%s' (%s) takes the TensorArray '%s'" % (consumer, op, array)
    touched = {name: frozenset(carriers.get(name, ())) | readers.get(name, set()) for name in {**carriers, **readers}}
    used = {loop.frame: frozenset().union(*(touched.get(n, ()) for n in loop.nodes)) for loop in loops}
    why = {loop.frame: loop.kept_because for loop in loops}
    while True:
        for loop in loops:
            why[loop.frame] = why[loop.frame] or next((odd[a] for a in sorted(used[loop.frame]) if a in odd), "")
        more = {
            array: "the loop '%s', which uses the same TensorArray '%s', is kept" % (loop.name, array)
            for loop in loops
            if why[loop.frame]
            for array in used[loop.frame]
            if array not in odd
        }
        if not more:
            break
        odd.update(more)
    loops = [replace(loop, kept_because=why[loop.frame]) for loop in loops]
    of = {name: loop for loop in loops for name in loop.nodes}
    in_use = frozenset().union(*used.values()) - odd.keys()
    repeatable = {name for name, loop in of.items() if not loop.kept_because}
    # The size behind a loop is a number, and would need all that the loop writes.
    outside = {n: arrays for n, arrays in touched.items() if n not in of and graph.nodes[n].op != _SIZE}
    repeatable.update(n for n, arrays in outside.items() if arrays <= in_use)
    return Loops(
        tuple(loops),
        of,
        {name: frozenset(arrays) for name, arrays in carriers.items()},
        {name: frozenset(arrays) for name, arrays in readers.items()},
        frozenset(repeatable),
        frozenset().union(*(loop.leaving for loop in loops if not loop.kept_because)),
        inside,
        outermost,
    )


def is_write(op):
    """True for what puts something into a TensorArray, and hands on that it has: its last input, as it came."""
    return op in _WRITES
