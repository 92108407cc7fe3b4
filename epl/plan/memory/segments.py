"""Where to cut a forward pass into segments, of which the backward pass computes some a second time.

Between two cuts lies a segment. What crosses a cut is kept from the forward pass to the backward pass. What is made and
used inside of a segment is thrown away and computed again when the backward pass comes to the segment, unless the
segment is kept whole. While the backward pass is in a segment, what was kept of later ones has been given back:

    peak = max over segments ( what is kept of this one and those before it + what computing it again makes )

Gradients of variables, where they are counted, stay until the backward pass is through.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), cut a chain of n equal layers every sqrt(n) layers.
Here sizes and times differ, tensors may cross several cuts, and a limit of memory or of time may be given, so the cuts
are found by dynamic programming over the positions at which little crosses, as Feng & Huang, "Optimal Gradient
Checkpoint Search for Arbitrary Computation Graphs" (2021), do with the vertices that separate a graph.
"""

from dataclasses import dataclass
from typing import Tuple

import numpy as np

# Up to so many positions, all ways that are worth it are compared, at most so many of them at each position.
_FEW, _MAX_WAYS = 16, 4096
# For more, so many steps of memory are told apart; exact where the limit has fewer bytes than that.
_MEMORY_STEPS = 1024
_SEARCH_STEPS = 30
# A peak is searched for until it is known to this part of itself.
_TOLERANCE = 0.005


@dataclass(frozen=True)
class Span:
    """The life of a tensor in the forward pass.

    Attributes:
      first: position of the operation that makes it.
      last: position of the last operation of the forward pass that uses it; `first` where none does.
      num_bytes: its size.
      backward: the backward pass uses it.
    """

    first: int
    last: int
    num_bytes: int
    backward: bool


@dataclass(frozen=True)
class ForwardSegment:
    """The operations at positions begin to end - 1, and whether they are computed again in the backward pass."""

    begin: int
    end: int
    again: bool


@dataclass(frozen=True)
class Segmentation:
    """A way to cut.

    Attributes:
      segments: in order; they cover all positions. The last one is never computed again: its turn comes at once.
      peak_bytes: of activations, and of gradients where these are counted.
      seconds: what is computed again takes.
    """

    segments: Tuple[ForwardSegment, ...]
    peak_bytes: int
    seconds: float


class Chain(object):
    """Sizes and times of a forward pass between the positions at which it may be cut.

    Args:
      spans: list of Spans.
      seconds: time of each operation, by position.
      max_candidates: positions to choose from, those at which least crosses.
      gradients: bytes, by position, of the variables' gradients that the backward pass makes there and that wait for
        their updates until it is through; None: there are none.
    """

    def __init__(self, spans, seconds, max_candidates=96, gradients=None):
        seconds = np.asarray(seconds, dtype=float)
        self._ends = _candidates(spans, len(seconds), max_candidates)  # a cut lies behind each of these positions
        count = len(self._ends)
        ends = np.array(self._ends)
        every, backward = np.zeros((count, count + 1)), np.zeros((count, count + 1))
        for span in spans:
            made = np.searchsorted(ends, span.first)  # in the segment that ends with candidate number `made`
            crosses = np.searchsorted(ends, span.last)  # the candidates from `made` to before this one
            every[made, crosses] += span.num_bytes
            if span.backward:
                backward[made, crosses] += span.num_bytes
        # [i, j]: the segment from behind candidate i - 1 to candidate j.
        crossing, crossing_backward = _crossing(every), _crossing(backward)
        made_backward = _ranges(backward.sum(axis=1))
        after = np.zeros(len(seconds) + 1) if gradients is None else np.r_[gradients, 0.0]
        waiting = np.cumsum(after[::-1])[::-1][ends + 1]  # [j] -> bytes, when the backward pass comes to candidate j
        self._kept = crossing
        self._whole = made_backward + crossing - crossing_backward
        # Kept whole or computed again: when its turn comes, or later, as gradients come and activations go.
        later = np.maximum.accumulate(np.triu(made_backward + waiting), axis=1)
        self._peak = np.maximum(self._whole + waiting, later)
        self._seconds = _ranges(np.add.reduceat(seconds, np.r_[0, ends[:-1] + 1]) if count else seconds)
        self._last = count - 1

    def everything_kept(self):
        """The Segmentation without cuts."""
        return self._segmentation([(0, self._last, False)])

    def smallest_peak(self):
        """The Segmentation with the smallest peak, and of those one that takes little time."""
        return self.fastest(self._smallest_peak_bytes())

    def fastest(self, limit_bytes):
        """The Segmentation that computes least again with a peak of at most `limit_bytes`; None if there is none."""
        path = self._best_way(limit_bytes) if self._last < _FEW else self._fastest(limit_bytes)
        if path is None:
            path = self._least_memory(limit_bytes)  # rounding, at the very limit
        return None if path is None else self._segmentation(path)

    def smallest_peak_within(self, limit_s):
        """The Segmentation with the smallest peak of those that compute at most `limit_s` seconds again."""
        low = self._smallest_peak_bytes()
        best = self.fastest(low)
        if best.seconds <= limit_s:
            return best
        too_slow, best = best.seconds, self.everything_kept()
        high = best.peak_bytes
        for turn in range(_SEARCH_STEPS):
            if high - low <= max(1, _TOLERANCE * high):
                break
            # By turns half-way, and where the limit lies on the line between what both ends take.
            part = 0.5 if turn % 2 else (too_slow - limit_s) / (too_slow - best.seconds)
            middle = low + max(1, int(part * (high - low)))
            found = self.fastest(middle)
            if found is not None and found.seconds <= limit_s:
                best, high = found, min(middle, found.peak_bytes)
            else:
                low, too_slow = middle, found.seconds if found is not None else too_slow
        return best

    def _smallest_peak_bytes(self):
        low, high = 0, self.everything_kept().peak_bytes
        while low < high:
            middle = (low + high) // 2
            if self._least_memory(middle) is None:
                low = middle + 1
            else:
                high = middle
        return high

    def _least_memory(self, limit):
        """A path of segments, all computed again, that keeps least with a peak within the limit; None for none."""
        count = self._last + 1
        kept, came_from = np.full(count, np.inf), [None] * count
        for j in range(count):
            before = np.r_[0.0, kept[:j]]
            peak = before + self._peak[: j + 1, j]
            total = np.where(peak <= limit, before + self._kept[: j + 1, j], np.inf)
            best = int(np.argmin(total))
            if np.isfinite(total[best]):
                kept[j], came_from[j] = total[best], best
        if came_from[self._last] is None:
            return None
        path, j = [], self._last
        while j >= 0:
            path.append((came_from[j], j, True))
            j = came_from[j] - 1
        return path[::-1]

    def _best_way(self, limit):
        """The path that takes least time; exact. At each position, ways that need more memory have to be faster."""
        ways = [(np.zeros(1), np.zeros(1), None, None)]  # memory kept, seconds, where each comes from: (i, again), way
        for j in range(self._last + 1):
            found = []
            for i in range(j + 1):
                kept, seconds = ways[i][:2]
                again_s = 0.0 if j == self._last else self._seconds[i, j]
                fits = np.flatnonzero(kept + self._peak[i, j] <= limit)
                for more, time, again in (
                    (kept + self._whole[i, j], seconds, False),
                    (kept + self._kept[i, j], seconds + again_s, True),
                ):
                    found.append((more[fits], time[fits], np.full(len(fits), 2 * i + again), fits))
            memory, seconds, origin, way = (np.concatenate(column) for column in zip(*found))
            order = np.lexsort((seconds, memory))
            seconds_so_far = np.minimum.accumulate(seconds[order])
            best = order[np.r_[True, seconds_so_far[1:] < seconds_so_far[:-1]]] if len(order) else order
            if len(best) > _MAX_WAYS:
                best = best[np.unique(np.linspace(0, len(best) - 1, _MAX_WAYS).astype(int))]
            ways.append((memory[best], seconds[best], origin[best], way[best]))
        if not len(ways[-1][0]):
            return None
        path, j, place = [], self._last, -1  # the last way is the fastest
        while j >= 0:
            i, again = divmod(int(ways[j + 1][2][place]), 2)
            place = int(ways[j + 1][3][place])
            path.append((i, j, bool(again)))
            j = i - 1
        return path[::-1]

    def _fastest(self, limit):
        """The path that takes least time, memory counted in steps and rounded up."""
        step = max(1.0, limit / float(_MEMORY_STEPS))
        steps, count = int(limit // step), self._last + 1

        def in_steps(table):
            return np.ceil(table / step).astype(int)

        kept, whole, peak = in_steps(self._kept), in_steps(self._whole), in_steps(self._peak)
        times = np.full((count + 1, steps + 1), np.inf)  # [cuts so far, memory kept in steps]; row 0: the beginning
        times[0, 0] = 0.0
        came_from = {}
        for j in range(count):
            row, origin = times[j + 1], np.full((steps + 1, 2), -1)
            for i in range(j + 1):
                room = steps - peak[i, j]
                if room < 0:
                    continue
                # The last segment's turn comes at once: what it makes is simply there.
                seconds = 0.0 if j == self._last else self._seconds[i, j]
                for more, seconds, again in ((whole[i, j], 0.0, 0), (kept[i, j], seconds, 1)):
                    candidate = times[i, : room + 1] + seconds
                    target = row[more : more + room + 1]
                    better = candidate < target
                    if better.any():
                        target[better] = candidate[better]
                        origin[more : more + room + 1][better] = (i, again)
            came_from[j] = origin
        memory = int(np.argmin(times[count]))
        if not np.isfinite(times[count, memory]):
            return None
        return self._path(came_from, memory, kept, whole)

    def _path(self, came_from, memory, kept, whole):
        path, j = [], self._last
        while j >= 0:
            i, again = (int(x) for x in came_from[j][memory])
            path.append((i, j, bool(again)))
            memory -= int((kept if again else whole)[i, j])
            j = i - 1
        return path[::-1]

    def _segmentation(self, path):
        segments, total, peak, seconds = [], 0.0, 0.0, 0.0
        for i, j, again in path:
            again = again and j != self._last
            begin = self._ends[i - 1] + 1 if i else 0
            segments.append(ForwardSegment(begin, self._ends[j] + 1, again))
            peak = max(peak, total + self._peak[i, j])
            total += self._kept[i, j] if again else self._whole[i, j]
            seconds += self._seconds[i, j] if again else 0.0
        return Segmentation(tuple(segments), int(peak), float(seconds))


def _ranges(values):
    """[i, j] -> the sum of values[i] to values[j]; 0 where i is above j."""
    sums = np.r_[0.0, np.cumsum(values)]
    return np.maximum(0.0, sums[None, 1:] - sums[:-1, None]) * np.triu(np.ones((len(values), len(values))))


def _crossing(table):
    """[i, j] -> bytes of what is made in segments i to j and crosses the cut behind j.

    Args:
      table: [segment that makes it, first cut that it does not cross] -> bytes.
    """
    count = len(table)
    beyond = np.cumsum(table[:, ::-1], axis=1)[:, ::-1]  # [made, c] -> bytes of what crosses cut c - 1
    found = np.zeros((count, count))
    for j in range(count):
        column = beyond[: j + 1, j + 1]
        found[: j + 1, j] = np.cumsum(column[::-1])[::-1]
    return found


def _candidates(spans, count, most):
    """Positions behind which a cut may lie, the last one always among them: where least crosses, spread by bytes."""
    change, weight = np.zeros(count + 1), np.zeros(count)
    for span in spans:
        change[span.first] += span.num_bytes
        change[span.last] -= span.num_bytes
        weight[span.first] += span.num_bytes if span.backward else 0
    crossing = np.cumsum(change)[:count]
    if count <= most:
        return list(range(count))
    parts = np.minimum((np.cumsum(weight) * most / max(1.0, weight.sum())).astype(int), most - 1)
    chosen = {}
    for position in range(count - 1):
        part = parts[position]
        if part not in chosen or crossing[position] <= crossing[chosen[part]]:
            chosen[part] = position
    return sorted(chosen.values()) + [count - 1]
