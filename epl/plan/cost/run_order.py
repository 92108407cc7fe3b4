"""The orders in which TensorFlow's executor with one thread may run a graph.

TensorFlow's graph optimizer takes out what only passes tensors on, and sorts what is left: breadth first, where of what
an operation makes ready those that take its tensors come before those that only wait for it. The executor looks at the
edges that leave an operation in this order as long as they are few; more lie in a hash table by their addresses, which
differ from session to session.
"""

import collections
import random

# As many edges that leave a node TensorFlow keeps in order; more lie in a table (its EdgeSet, FlatRep and Arena).
_IN_ORDER = 8
_FULL = 0.8
_EDGE_BYTES, _BLOCK_EDGES = 32, 256


class RunOrders(object):
    """The orders of one graph.

    Args:
      inputs: dict of a node's name to its inputs that it waits for, (producer, index) with a negative index where it
        waits only; without edges that lead back in loops.
      names: all nodes, in the order of their creation.
      removed: names of those that TensorFlow's graph optimizer takes out.
      folded: names of those among `removed` whose results it computes before the step: who takes them waits only.
      at_once: function of a name to whether the executor runs the node as soon as it is ready, instead of leaving it to
        a thread.
      fed: names of those among them that the caller gives; TensorFlow puts nodes of its own in their places.
    """

    def __init__(self, inputs, names, removed, folded, at_once, fed=()):
        producers = _producers(inputs, names, removed, folded)
        self._at_once = frozenset(name for name in names if at_once(name))
        self._inputs, self._removed = inputs, [name for name in names if name in removed]
        self._passed_on = collections.defaultdict(list)  # a node to those removed that take of it
        for name in self._removed:
            for producer, _ in inputs[name]:
                self._passed_on[producer].append(name)
        self._left = _breadth_first(producers)
        self._waits = {name: len(producers[name]) for name in self._left}
        self._edges = collections.defaultdict(list)  # a node, or None for the beginning, to (consumer, number) pairs
        number = 0
        for name in self._left:
            for producer, tensors in producers[name].items():
                for _ in range(max(1, tensors)):
                    self._edges[producer].append((name, number))
                    number += 1
        # TensorFlow's own beginning has an edge to each node that waits for nothing; these are made last.
        first = [name for name in self._left if not self._waits[name] and name not in fed]
        first += [name for name in self._left if name in fed]
        self._edges[None] = [(name, number + place) for place, name in enumerate(first)]

    def order(self, draw=0):
        """All names in an order of running; loops are gone through once.

        Of what an operation makes ready, the cheap ones run next, in order. Of the others the last one goes on and the
        rest is put in front of what waits for a thread, so that what was made ready last runs first. What is removed
        has its place right behind the last of what it passes on.

        Args:
          draw: 0: consumers are looked at in their order; else those of many edges as these lie in a table, with
            addresses drawn with this seed.
        """
        waits, found, addresses = dict(self._waits), [], _Addresses(draw)
        removed_waits = {name: len(self._inputs[name]) for name in self._removed}

        def run(name):
            stack = [name]
            while stack:
                found.append(stack.pop())
                for consumer in self._passed_on.get(found[-1], ()):
                    removed_waits[consumer] -= 1
                    if not removed_waits[consumer]:
                        stack.append(consumer)

        def consumers(name):
            edges = self._edges.get(name, ())
            if draw and len(edges) > _IN_ORDER:
                edges = [edges[place] for place in _as_in_table([addresses.of(number) for _, number in edges])]
            # Who takes several tensors is ready at the last of them.
            return reversed(list(dict.fromkeys(consumer for consumer, _ in reversed(edges))))

        for name in [name for name in self._removed if not removed_waits[name]]:
            run(name)
        first = list(consumers(None))
        inline = collections.deque(name for name in first if name in self._at_once)
        queue = collections.deque(name for name in reversed(first) if name not in self._at_once)
        while inline or queue:
            name = inline.popleft() if inline else queue.popleft()
            run(name)
            current = None
            for consumer in consumers(name):
                waits[consumer] -= 1
                if waits[consumer]:
                    continue
                if consumer in self._at_once:
                    inline.append(consumer)
                    continue
                if current is not None:
                    queue.appendleft(current)
                current = consumer
            if current is not None:
                (queue.appendleft if inline else inline.append)(current)
        return found


class _Addresses(object):
    """Where the edges of a graph lie, by their numbers: one after the other in blocks, which may be anywhere."""

    def __init__(self, seed):
        self._draws, self._blocks = random.Random(seed), {}

    def of(self, number):
        block, place = divmod(number, _BLOCK_EDGES)
        if block not in self._blocks:
            self._blocks[block] = self._draws.randrange(1 << 32) << 4
        return self._blocks[block] + place * _EDGE_BYTES


def _as_in_table(addresses):
    """The places of some addresses, in the order in which one comes upon them in a hash table of TensorFlow's."""
    table, count = [None] * 8, 0

    def insert(place):
        index = (addresses[place] + (addresses[place] >> 6)) >> 8
        for step in range(len(table)):
            index = (index + step) % len(table)
            if table[index] is None:
                table[index] = place
                return

    for place in range(len(addresses)):
        if count >= int(_FULL * len(table)):
            before = [each for each in table if each is not None]
            table = [None] * (2 * len(table))
            for each in before:
                insert(each)
        insert(place)
        count += 1
    return [each for each in table if each is not None]


def _producers(inputs, names, removed, folded):
    """dict of each node that is left to {a node that is left: how many tensors it takes of it}, through those removed.

    0 where it waits only.
    """
    found = {}
    for name in topological(inputs):
        of_this = {}
        for producer, index in inputs[name]:
            takes = index >= 0 and name not in folded
            for source, given in found[producer].items() if producer in removed else [(producer, 1)]:
                of_this[source] = of_this.get(source, 0) + (given if takes else 0)
        found[name] = of_this
    return {name: found[name] for name in names if name not in removed}


def topological(inputs):
    """The nodes of a dict of node to its NodeInputs, each behind those that it waits for."""
    waits, consumers = {name: len(taken) for name, taken in inputs.items()}, collections.defaultdict(list)
    for name, taken in inputs.items():
        for producer, _ in taken:
            consumers[producer].append(name)
    found = [name for name in inputs if not waits[name]]
    for name in found:
        for consumer in consumers[name]:
            waits[consumer] -= 1
            if not waits[consumer]:
                found.append(consumer)
    return found


def _breadth_first(producers):
    """The nodes of {node: {producer: tensors that it takes of it}}, sorted as TensorFlow's graph optimizer does."""
    takers, waiters = collections.defaultdict(list), collections.defaultdict(list)
    for name, of_this in producers.items():
        for producer, takes in of_this.items():
            (takers if takes else waiters)[producer].append(name)
    waits = {name: len(of_this) for name, of_this in producers.items()}
    found = [name for name in producers if not waits[name]]
    for name in found:
        for consumer in takers[name] + waiters[name]:
            waits[consumer] -= 1
            if not waits[consumer]:
                found.append(consumer)
    return found
