"""The forward pass of a model as a row of pieces between which a pipeline may be cut."""

import collections
import heapq
import re
from dataclasses import dataclass
from typing import Dict, Tuple

from epl.graph.functions import Functions
from epl.graph.index import canonical_tensor, node_of, parse_input
from epl.plan.cost.cost import HEAVY
from epl.rules import effects

_NUMBERED = re.compile(r"^(.*?)_?(\d+)$")
_CREATED_WHERE_USED = effects.PLACEHOLDERS | effects.RANDOM  # they wait for nothing, so they go where they are needed


@dataclass(frozen=True)
class Piece:
    """Operations that stay on one device.

    Attributes:
      name: for people: the scope, or the first operation.
      operations: that depend on data, in an order in which they can run.
      seconds: estimated time of forward and backward pass.
      bytes_before: of the tensors that cross the border between the piece before and this one.
    """

    name: str
    operations: Tuple[str, ...]
    seconds: float
    bytes_before: int


@dataclass(frozen=True)
class Row:
    """The forward pass in a row.

    Attributes:
      pieces: in order; data flows forward only.
      kept_whole: names of the repeated blocks that are not cut.
      piece_of: dict of operation to its piece: those that depend on data, and all of a loop or of branches that do.
    """

    pieces: Tuple[Piece, ...]
    kept_whole: Tuple[str, ...]
    piece_of: Dict[str, int]


def row_of_pieces(graph, costs, in_control_flow=frozenset(), wanted=1):
    """Puts the operations that depend on data in a row and finds where it may be cut.

    A piece begins with a matrix product or a convolution and has what follows up to the next; a model without any may
    be cut at each operation. Kept in one piece are:
    repeated blocks; loops and branches; users of a handle that cannot be sent; a variable that the forward pass
    changes (the averages of batch normalisation) with what changes and reads it.

    Repeated blocks are scopes that differ in a number only (layer_0, layer_1, …), more than half of which hold the
    same matrix products and convolutions. Where scopes do not tell, they are the longest repetition in the types of
    operations.

    Args:
      graph: an epl.graph.index.Graph.
      costs: what epl.plan.cost.cost.forward_costs returned for it.
      in_control_flow: operations inside loops and branches of control flow v1.
      wanted: pieces that are needed. What repeats only once, by types alone, is cut if there would be fewer.

    Returns:
      A Row.
    """
    order = _linear_order(graph, costs)
    place = {name: i for i, name in enumerate(order)}
    crossing = _bytes_before(graph, costs, place)
    bodies = _components(graph, in_control_flow)
    together = _intervals(graph, costs, place, bodies)
    heavy = _heavy_indices(graph, order)
    # A loop with matrix products inside begins a piece.
    starts = _without(heavy, together) | {b for b, e in together if any(b <= i < e for i in heavy)}
    named = _named_blocks(graph, order, heavy)
    blocks = [(begin, end) for begin, end, _ in named]
    if named:
        # Work before the first heavy operation of a block (a normalisation) belongs to the block.
        starts = {i for i in _without(starts, blocks)} | {begin for begin, _ in blocks if begin > 0}
        starts = _without(starts, together)
    typed, repeats = _typed_blocks(graph, order, sorted(starts), crossing) if not named else ([], 0)
    cut = _without(starts, typed)
    if repeats > 2 or len(cut) + 1 >= wanted:
        starts, blocks = cut, blocks + typed
    if not heavy:
        starts = _without({i for i, name in enumerate(order) if costs.operations[name].forward_s > 0}, together)
    # Reading and preparing data is no stage of its own.
    learning = next((i for i, name in enumerate(order) if costs.operations[name].from_variables), 0)
    starts = {i for i in starts if i > learning}
    names = {begin: name for begin, _, name in named}
    names[0] = names.get(learning)
    pieces = []
    borders = [0] + sorted(starts) + [len(order)]
    for begin, end in zip(borders, borders[1:]):
        members = tuple(order[begin:end])
        seconds = sum(costs.operations[name].total_s for name in members)
        name = names.get(begin) or _name_of(members, costs)
        pieces.append(Piece(name, members, seconds, crossing[begin] if begin else 0))
    piece_of = {name: i for i, piece in enumerate(pieces) for name in piece.operations}
    for body in bodies:  # the counter of a loop depends on no data
        here = [piece_of[name] for name in body if name in place]
        piece_of.update((name, here[0]) for name in body if here and name in costs.operations)
    kept = [pieces[piece_of[order[begin]]].name for begin, _ in sorted(blocks)] if order else []
    return Row(tuple(pieces), tuple(kept), piece_of)


def _linear_order(graph, costs):
    """Operations that depend on data, each after those that it needs; else in the order of creation."""
    chosen = [
        n for n, cost in costs.operations.items() if cost.from_data and graph.nodes[n].op not in _CREATED_WHERE_USED
    ]
    rank = {name: i for i, name in enumerate(chosen)}
    users, waiting = collections.defaultdict(list), {}
    for name in chosen:
        producers = {node_of(text) for text in graph.nodes[name].input} & rank.keys()
        # The way back of a loop is no order.
        producers = [p for p in producers if graph.nodes[p].op not in effects.LOOP_EDGES]
        waiting[name] = len(producers)
        for producer in producers:
            users[producer].append(name)
    ready = [rank[name] for name in chosen if not waiting[name]]
    heapq.heapify(ready)
    order = []
    while ready:
        name = chosen[heapq.heappop(ready)]
        order.append(name)
        for user in users[name]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, rank[user])
    return order


def _bytes_before(graph, costs, place):
    """Per position the bytes of the tensors that are made before it and used at it or after: [operations + 1]."""
    first, last = {}, {}
    for name, i in place.items():
        for text in graph.nodes[name].input:
            producer = node_of(text)
            if text[0] == "^" or producer not in costs.operations or not costs.operations[producer].from_data:
                continue
            tensor = canonical_tensor(text)
            # What waits for nothing is made where it is first used.
            first[tensor] = place.get(producer, min(first.get(tensor, i), i))
            last[tensor] = max(last.get(tensor, 0), i)
    change = [0] * (len(place) + 2)
    for tensor, begin in first.items():
        if last[tensor] > begin:
            change[begin + 1] += costs.bytes_of(tensor)
            change[last[tensor] + 1] -= costs.bytes_of(tensor)
    crossing, held = [], 0
    for difference in change[:-1]:
        held += difference
        crossing.append(held)
    return crossing


def _heavy_indices(graph, order):
    """Indices of matrix products and convolutions, those in functions (loops, calls) included."""
    functions = Functions(graph.library)
    nodes = [graph.nodes[name] for name in order]
    return {i for i, n in enumerate(nodes) if n.op in HEAVY or functions.calls(n, lambda m: m.op in HEAVY, "heavy")}


def _without(starts, intervals):
    """Those starts that do not lie inside of an interval (first, last + 1)."""
    inside = set()
    for begin, end in intervals:
        inside.update(range(begin + 1, end))
    return {i for i in starts if i not in inside}


def _intervals(graph, costs, place, bodies):
    """Runs of indices (first, last + 1) that must stay together; no two overlap."""
    groups = list(bodies)
    for name, cost in costs.operations.items():
        node = graph.nodes[name]
        if cost.held and node.op not in effects.VARIABLES and node.op not in effects.SHARED_RESOURCES:
            groups.append([name] + [consumer for consumer, _ in graph.consumers.get(name, ())])
        if effects.is_write(node.op):
            variable = _variable_of(graph, name)
            groups.append([name] + _users(graph, costs, variable))
    found = []
    for group in _joined(groups):
        indices = [place[name] for name in group if name in place]
        if len(indices) > 1:
            found.append((min(indices), max(indices) + 1))
    merged = []
    for begin, end in sorted(found):
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _joined(groups):
    """Groups that share an operation (a loop and the list that it fills) as one."""
    group_of = {}
    for group in groups:
        one = set(group)
        for name in group:
            other = group_of.get(name, ())
            if other is not one:
                one.update(other)
                group_of.update((member, one) for member in other)
                group_of[name] = one
    return list({id(group): group for group in group_of.values()}.values())


def _components(graph, inside):
    """The loops and branches, each as a list of operations."""
    found, seen = [], set()
    for name in graph.in_order(inside):
        if name not in seen:
            found.append(_component(graph, name, inside))
            seen.update(found[-1])
    return found


def _component(graph, name, inside):
    """The loop or the branches that an operation is in."""
    seen, stack = {name}, [name]
    while stack:
        current = stack.pop()
        node = graph.nodes[current]
        near = []
        if node.op not in effects.ENTERS:  # what enters a loop comes from outside
            near.extend(node_of(text) for text in node.input)
        if node.op not in effects.EXITS:
            near.extend(consumer for consumer, _ in graph.consumers.get(current, ()))
        for other in near:
            if other in inside and other not in seen:
                seen.add(other)
                stack.append(other)
    return graph.in_order(seen)


def _variable_of(graph, name):
    """The variable at the end of an operation's first inputs."""
    while graph.nodes[name].input and graph.nodes[name].op not in effects.VARIABLES:
        name = node_of(graph.nodes[name].input[0])
    return name


def _users(graph, costs, variable):
    """The operations that depend on data and use a variable, directly or through others that do not."""
    found, stack = [], [variable]
    while stack:
        for consumer, position in graph.consumers.get(stack.pop(), ()):
            if consumer in costs.operations and parse_input(graph.nodes[consumer].input[position]).index >= 0:
                (found if costs.operations[consumer].from_data else stack).append(consumer)
    return found


def _named_blocks(graph, order, heavy):
    """[(first position, last + 1, scope)] of the repeated scopes, those that hold most operations first chosen."""
    spans = {}
    for i, name in enumerate(order):
        scope = name
        while "/" in scope:
            scope = scope.rpartition("/")[0]
            begin, _, signature = spans.get(scope, (i, i, ()))
            spans[scope] = (begin, i + 1, signature + ((graph.nodes[name].op,) if i in heavy else ()))
    families = collections.defaultdict(list)
    for scope, (begin, end, signature) in spans.items():
        parent, _, last = scope.rpartition("/")
        numbered = _NUMBERED.match(last)
        if signature:
            stem = numbered.group(1) if numbered else last
            families[parent, stem].append((begin, end, scope, signature))
    chosen = []
    for _, family in sorted(families.items(), key=lambda item: (sum(b - e for b, e, _, _ in item[1]), item[0])):
        ((_, most),) = collections.Counter(signature for _, _, _, signature in family).most_common(1)
        if most < 2 or 2 * most <= len(family):
            continue
        members = sorted((begin, end, scope) for begin, end, scope, _ in family)
        apart = all(a[1] <= b[0] for a, b in zip(members, members[1:]))
        free = all(end <= b or e <= begin for begin, end, _ in members for b, e, _ in chosen)
        if apart and free:
            chosen.extend(members)
    return sorted(chosen)


def _typed_blocks(graph, order, starts, crossing):
    """([(first, last + 1)] of the longest repetition of runs of pieces with the same operation types, repetitions).

    Among the ways to part a repetition into blocks the one with the fewest bytes over the borders is taken.
    """
    borders = [0] + list(starts) + [len(order)]
    kinds = [tuple(graph.nodes[name].op for name in order[b:e]) for b, e in zip(borders, borders[1:])]
    best = (0, 0, 0)  # pieces covered, -period, -begin
    for period in range(1, len(kinds) // 2 + 1):
        run = 0
        for i in range(len(kinds) - period):
            run = run + 1 if kinds[i] == kinds[i + period] else 0
            if run >= period:
                best = max(best, (run + period, -period, -(i + 1 - run)))
    covered, period, begin = best[0], -best[1], -best[2]
    if period < 2:
        return [], 0
    if begin + covered < len(kinds):
        # The last piece of the last block has whatever comes up to the next heavy operation besides.
        before = kinds[begin + covered - period]
        covered += kinds[begin + covered][: len(before)] == before

    def parts(offset):
        count = (covered - offset) // period
        return [borders[begin + offset + k * period] for k in range(count + 1)]

    offsets = [o for o in range(period) if (covered - o) // period == covered // period]
    chosen = min(offsets, key=lambda o: sum(crossing[i] for i in parts(o)))
    found = parts(chosen)
    return list(zip(found, found[1:])), len(found) - 1


def _name_of(members, costs):
    """The scope that all operations that learn share, or the first parts of the first's and the last's names."""
    working = [name for name in members if costs.operations[name].forward_s > 0] or list(members) or ["model"]
    working = [
        name for name in working if name in costs.operations and costs.operations[name].from_variables
    ] or working
    shared = []
    for words in zip(*(name.split("/") for name in working)):
        if len(set(words)) > 1:
            break
        shared.append(words[0])
    if shared:
        return "/".join(shared)
    return "%s … %s" % (working[0].split("/")[0], working[-1].split("/")[0])
