"""The orders in which TensorFlow's executor with one thread may run a graph.

TensorFlow's graph optimizer takes out what only passes tensors on, and sorts what is left: breadth first, where of what
an operation makes ready those that take its tensors come before those that only wait for it. The executor looks at the
consumers of an operation in this order as long as they are few; those of more lie in a table by their addresses, which
differ from session to session.
"""

import collections
import random

# As many edges that leave a node TensorFlow keeps in order.
_IN_ORDER = 8


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
    """

    def __init__(self, inputs, names, removed, folded, at_once):
        producers = _producers(inputs, names, removed, folded)
        self._at_once = frozenset(name for name in names if at_once(name))
        self._inputs, self._removed = inputs, [name for name in names if name in removed]
        self._passed_on = collections.defaultdict(list)  # a node to those removed that take of it
        for name in self._removed:
            for producer, _ in inputs[name]:
                self._passed_on[producer].append(name)
        self._left = _breadth_first(producers)
        self._waits = {name: len(producers[name]) for name in self._left}
        self._consumers = collections.defaultdict(list)
        for name in self._left:
            for producer in producers[name]:
                self._consumers[producer].append(name)

    def order(self, draw=0):
        """All names in an order of running; loops are gone through once.

        Of what an operation makes ready, the cheap ones run next, in order. Of the others the last one goes on and the
        rest is put in front of what waits for a thread, so that what was made ready last runs first. What is removed
        has its place right behind the last of what it passes on.

        Args:
          draw: 0: consumers are looked at in their order; else where there are many, in one drawn with this seed.
        """
        waits, found, draws = dict(self._waits), [], random.Random(draw)
        removed_waits = {name: len(self._inputs[name]) for name in self._removed}

        def run(name):
            stack = [name]
            while stack:
                found.append(stack.pop())
                for consumer in self._passed_on.get(found[-1], ()):
                    removed_waits[consumer] -= 1
                    if not removed_waits[consumer]:
                        stack.append(consumer)

        def drawn(names):
            return draws.sample(names, len(names)) if draw and len(names) > _IN_ORDER else names

        for name in [name for name in self._removed if not removed_waits[name]]:
            run(name)
        first = drawn([name for name in self._left if not waits[name]])
        inline = collections.deque(name for name in first if name in self._at_once)
        queue = collections.deque(name for name in reversed(first) if name not in self._at_once)
        while inline or queue:
            name = inline.popleft() if inline else queue.popleft()
            run(name)
            current = None
            for consumer in drawn(self._consumers.get(name, ())):
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


def _producers(inputs, names, removed, folded):
    """dict of each node that is left to {a node that is left: it takes a tensor of it}, through those removed."""
    found = {}
    for name in _topological(inputs, names):
        of_this = {}
        for producer, index in inputs[name]:
            takes = index >= 0 and name not in folded
            for source, given in found[producer].items() if producer in removed else [(producer, True)]:
                of_this[source] = of_this.get(source, False) or (given and takes)
        found[name] = of_this
    return {name: found[name] for name in names if name not in removed}


def _topological(inputs, names):
    waits, consumers = {name: len(inputs[name]) for name in names}, collections.defaultdict(list)
    for name in names:
        for producer, _ in inputs[name]:
            consumers[producer].append(name)
    found = [name for name in names if not waits[name]]
    for name in found:
        for consumer in consumers[name]:
            waits[consumer] -= 1
            if not waits[consumer]:
                found.append(consumer)
    return found


def _breadth_first(producers):
    """The nodes of {node: {producer: it takes a tensor of it}}, sorted as TensorFlow's graph optimizer does."""
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
