"""Which dimensions of a tensor and of its reshape are divided together."""

import string


def reshape_terms(before, after):
    """The two sides of a Reshape's notation.

    Dimensions are grouped so that each group of the one shape has as many elements as one of the other:
    [batch, 12, 64] -> [batch, 768] has the groups batch|batch and 12, 64|768. In each group the first dimensions go
    together, as a part of consecutive elements of the one is one of the other. Whether parts of equal size
    begin at the same elements is for `divides` to say; of sizes that are not known nobody can, so that those dimensions
    go together with no others.

    Args:
      before, after: shapes; None for sizes that are not known.
    """
    left, right = ["-"] * len(before), ["-"] * len(after)
    letters = iter(string.ascii_letters)
    for ins, outs in groups(before, after):
        unknown = any(before[i] is None for i in ins) or any(after[i] is None for i in outs)
        if ins and outs and not (unknown and len(ins) + len(outs) > 2):
            left[ins[0]] = right[outs[0]] = next(letters)
    return "".join(left), "".join(right)


def groups(before, after):
    """[(dimensions of the one shape, dimensions of the other)] with equal numbers of elements; sizes of 1 left out."""
    ins = [i for i, size in enumerate(before) if size != 1]
    outs = [i for i, size in enumerate(after) if size != 1]
    tail = []
    while ins and outs:  # from the right, until a size that is not known
        group = _next_group(ins[::-1], outs[::-1], before, after)
        if group is None:
            break
        tail.append((group[0][::-1], group[1][::-1]))
        ins, outs = ins[: len(ins) - len(group[0])], outs[: len(outs) - len(group[1])]
    found = []
    while ins and outs:  # what is left has one; from the left up to it
        group = _next_group(ins, outs, before, after)
        if group is None:
            break
        found.append(group)
        ins, outs = ins[len(group[0]) :], outs[len(group[1]) :]
    unknown = sum(before[i] is None for i in ins), sum(after[i] is None for i in outs)
    if unknown == (1, 1) or len(ins) == len(outs) == sum(unknown) == 1:  # of the last two each is as long as the other
        found.append((ins, outs))
    return found + tail[::-1]


def _next_group(ins, outs, before, after):
    """The shortest beginnings of two lists of dimensions with equal numbers of elements, or None."""
    i = j = 1
    if before[ins[0]] is None or after[outs[0]] is None:
        return None
    one, other = before[ins[0]], after[outs[0]]
    while one != other:
        if one < other:
            if i == len(ins) or before[ins[i]] is None:
                return None
            one, i = one * before[ins[i]], i + 1
        else:
            if j == len(outs) or after[outs[j]] is None:
                return None
            other, j = other * after[outs[j]], j + 1
    return ins[:i], outs[:j]
