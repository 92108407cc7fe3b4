"""Minimum cuts of networks, by Dinic's algorithm ("Algorithm for solution of a problem of maximum flow", 1970)."""

import collections

_UNLIMITED = float("inf")


class Network(object):
    """A directed graph with capacities.

    Args:
      source, sink: its two ends; nodes are hashable.
    """

    def __init__(self, source, sink):
        self._source, self._sink = source, sink
        self._edges = (
            collections.OrderedDict()
        )  # node -> numbers of its edges; edge i and i ^ 1 are reverse to each other
        self._heads, self._left, self._added = [], [], []

    def add(self, tail, head, capacity=_UNLIMITED):
        """Adds an edge."""
        for one, other, room in ((tail, head, capacity), (head, tail, 0.0)):
            self._edges.setdefault(one, []).append(len(self._heads))
            self._heads.append(other)
            self._left.append(room)
        self._added.append((tail, head))

    def minimum_cut(self):
        """Edges (tail, head), in the order in which they were added, without which the sink cannot be reached from the
        source, with the least sum of capacities; of several such sets the one next to the source."""
        if self._source not in self._edges or self._sink not in self._edges:
            return []
        levels = self._levels()
        while self._sink in levels:
            self._block(levels)
            levels = self._levels()
        return [(tail, head) for tail, head in self._added if tail in levels and head not in levels]

    def _levels(self):
        """Node to its distance from the source, over edges with room."""
        found, queue = {self._source: 0}, collections.deque([self._source])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                head = self._heads[edge]
                if self._left[edge] > 0 and head not in found:
                    found[head] = found[node] + 1
                    queue.append(head)
        return found

    def _block(self, levels):
        """Sends flow until every shortest path has an edge without room."""
        tried = dict.fromkeys(self._edges, 0)
        path, node = [], self._source
        while True:
            if node == self._sink:
                room = min(self._left[edge] for edge in path)
                for edge in path:
                    self._left[edge] -= room
                    self._left[edge ^ 1] += room
                path, node = [], self._source
                continue
            edge = self._next(node, levels, tried)
            if edge is not None:
                path.append(edge)
                node = self._heads[edge]
            elif path:
                node = self._heads[path.pop() ^ 1]
                tried[node] += 1
            else:
                return

    def _next(self, node, levels, tried):
        edges = self._edges[node]
        while tried[node] < len(edges):
            edge = edges[tried[node]]
            if self._left[edge] > 0 and levels.get(self._heads[edge]) == levels[node] + 1:
                return edge
            tried[node] += 1
        return None
