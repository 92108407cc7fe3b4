"""Rules in factor notation: which dimensions of an operation's inputs and outputs go together.

    "ik,kj->ij"      a letter for each dimension; what is missing on the right is combined (by default summed)
    "...,...->..."   any number of leading dimensions, aligned from the right, with broadcasting
    "...-->...-"     a dimension that cannot be divided
    "v...,*->..."    a tensor that is whole, whatever its rank; with "?", an input that may lie in any way

Each letter is a factor. To divide a factor over the shards divides all dimensions that have its letter; inputs without
it are whole, outputs without it are partial. OpenXLA's Shardy describes operations so ("propagation.md" there), after
the equations of Einstein sums.
"""

import functools
from dataclasses import dataclass
from typing import Any, FrozenSet, Optional, Tuple

from epl.program.placement import SUM, WHOLE, WHOLE_SHAPE, Placement, partial, sharded

# Inputs of a rule that have no labels.
TAKEN_WHOLE, TAKEN_ANYHOW = "*", "?"


@dataclass(frozen=True)
class Notation:
    """A rule before the ranks of the tensors are known.

    Attributes:
      text: as above.
      linear: groups of input positions; when all of a group are partial sums, and the other inputs whole, so is the
        output. Whole inputs of a group become partial by being zero on all shards but one.
      combine: how a factor that is missing on the right is combined.
      resolved: letters which, when divided, leave no output partial: the operation's parts communicate by themselves.
      ignored: positions of inputs of which only the shape matters.
      product: it multiplies, gathers or looks up, so that to divide its variables divides the work.
      preferred: letters by which variables of this operation are divided if it costs no more than other ways do.
      routed: whether it looks up rows by ids, so that parts of both can exchange rows.
    """

    text: str
    linear: Tuple[Tuple[int, ...], ...] = ()
    combine: str = SUM
    resolved: FrozenSet[str] = frozenset()
    ignored: Tuple[int, ...] = ()
    product: bool = False
    preferred: FrozenSet[str] = frozenset()
    routed: bool = False


@dataclass(frozen=True)
class Partitioning:
    """A way to compute one operation in parts.

    Attributes:
      factor: the label of what is divided; None: nothing is, or it is linear in partial inputs.
      inputs: a Placement for each; None where any will do.
      outputs: a Placement for each.
      routed: shards that have other rows of a table than they have ids of send each other what these need.
    """

    factor: Optional[str]
    inputs: Tuple[Optional[Placement], ...]
    outputs: Tuple[Placement, ...]
    routed: bool = False


@dataclass(frozen=True)
class Rule:
    """A Notation for tensors of known ranks.

    Attributes:
      inputs: for each input a tuple of labels, None for what cannot be divided; or TAKEN_WHOLE, TAKEN_ANYHOW.
      outputs: for each output such a tuple.
      sizes: (label, the sizes known of it) pairs, in order of first use; several where dimensions merge or part.
      notation: the Notation.
    """

    inputs: Tuple[Any, ...]
    outputs: Tuple[Tuple[Optional[str], ...], ...]
    sizes: Tuple[Tuple[str, Tuple[int, ...]], ...]
    notation: Notation

    def dims(self, label):
        """(dimension of each input that has a label, of each output); -1 where it is missing."""
        find = lambda labels: labels.index(label) if isinstance(labels, tuple) and label in labels else -1  # noqa: E731
        return [find(labels) for labels in self.inputs], [find(labels) for labels in self.outputs]


@functools.lru_cache(maxsize=1 << 14)
def strategies(rule, shards):
    """All ways to compute an operation in parts, by its Rule; to compute it whole is the first."""
    anyhow = [None if labels == TAKEN_ANYHOW else WHOLE for labels in rule.inputs]
    whole = tuple(WHOLE_SHAPE if i in rule.notation.ignored else each for i, each in enumerate(anyhow))
    found = [Partitioning(None, whole, (WHOLE,) * len(rule.outputs))]
    for label, sizes in rule.sizes:
        if divides(sizes, shards):
            found.append(_divided(rule, label, anyhow))
    found.extend(_routed(rule, shards, anyhow) if rule.notation.routed else ())
    outputs = tuple(WHOLE if labels == TAKEN_WHOLE else partial() for labels in rule.outputs)
    for group in rule.notation.linear:
        found.append(
            Partitioning(None, tuple(partial() if i in group else each for i, each in enumerate(whole)), outputs)
        )
    return tuple(found)


def _routed(rule, shards, anyhow):
    """Of a lookup of which the table's rows are divided, and the ids too."""
    sizes = dict(rule.sizes)
    if rule.inputs[0][0] is None or not divides(sizes[rule.inputs[0][0]], shards):
        return []
    labels = [label for label in rule.inputs[1] if label is not None and divides(sizes[label], shards)]
    placements = [(sharded(0), sharded(rule.inputs[1].index(label))) + tuple(anyhow[2:]) for label in labels]
    outputs = [(sharded(rule.outputs[0].index(label)),) for label in labels]
    return [Partitioning(*each, routed=True) for each in zip(labels, placements, outputs)]


def divides(sizes, shards):
    """Whether dimensions of these sizes can be divided together: no shard is left with nothing, and where dimensions of
    different sizes go together all parts must be equal, so that they begin at the same elements."""
    return all(size >= shards for size in sizes) and (len(sizes) <= 1 or not any(size % shards for size in sizes))


def _divided(rule, label, anyhow):
    ins, outs = rule.dims(label)
    inputs = tuple(sharded(dim) if dim >= 0 else each for dim, each in zip(ins, anyhow))
    missing = WHOLE if label in rule.notation.resolved else partial(rule.notation.combine)
    if all(dim < 0 for dim in ins):
        missing = WHOLE
    outputs = tuple(sharded(dim) if dim >= 0 else missing for dim in outs)
    return Partitioning(
        label, inputs, tuple(WHOLE if labels == TAKEN_WHOLE else each for labels, each in zip(rule.outputs, outputs))
    )


@functools.lru_cache(maxsize=1 << 14)
def expand(notation, input_shapes, output_shapes):
    """The Rule that a Notation is for some shapes.

    Args:
      notation: a Notation.
      input_shapes, output_shapes: tuples of shapes; a shape is a tuple with None for sizes that are not known, or None
        where the rank is not known.

    Returns:
      A Rule; None where the ranks are not those of the notation, or are not known.
    """
    left, right = notation.text.split("->")
    terms = (left.split(",") if left or input_shapes else []), (right.split(",") if right or output_shapes else [])
    if len(terms[0]) != len(input_shapes) or len(terms[1]) != len(output_shapes):
        return None
    labels = [_labels(*pair) for pair in zip(terms[0] + terms[1], input_shapes + output_shapes)]
    if None in labels:
        return None
    shapes = input_shapes + output_shapes
    sizes = {}
    for each, shape in zip(labels, shapes):
        for label, size in zip(each, shape or ()) if isinstance(each, tuple) else ():
            if label is not None:
                sizes.setdefault(label, set()).add(size)
    sizes = {label: found - {0, 1} or {1} for label, found in sizes.items()}
    # What is repeated along a dimension is not divided along it.
    labels = [_without_repeated(each, shape) for each, shape in zip(labels, shapes)]
    used = {label for each in labels if isinstance(each, tuple) for label in each}
    pairs = tuple((label, tuple(sorted(found - {None}))) for label, found in sizes.items() if label in used)
    count = len(input_shapes)
    return Rule(tuple(labels[:count]), tuple(labels[count:]), pairs, notation)


def _labels(term, shape):
    if term in (TAKEN_WHOLE, TAKEN_ANYHOW):
        return term
    if shape is None:
        return None
    before, dots, after = term.partition("...")
    more = len(shape) - len(before) - len(after)
    if more < 0 or (more and not dots):
        return None
    middle = tuple("...%d" % (more - i) for i in range(more))
    return tuple(None if c == "-" else c for c in before) + middle + tuple(None if c == "-" else c for c in after)


def _without_repeated(labels, shape):
    if not isinstance(labels, tuple):
        return labels
    return tuple(None if size in (0, 1) else label for label, size in zip(labels, shape))
