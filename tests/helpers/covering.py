"""Few combinations of options instead of all of them, such that options that go together are still tried together."""

import itertools

import pytest


def covering(combinations, strength=2):
    """Some of `combinations` that hold every choice of `strength` options which any of them holds.

    Args:
      combinations: tuples of one length, an option for each factor; all that are possible, not only products.
      strength: 1 keeps every option, 2 every pair of options of two factors, and so on.

    Returns:
      a list in the order of `combinations`: greedily, the first of those that add most. The same for the same input.
    """
    combinations = list(combinations)
    if any(len(each) != len(combinations[0]) for each in combinations):
        raise ValueError("the combinations have different numbers of options")
    if combinations and not 1 <= strength <= len(combinations[0]):
        raise ValueError("strength %d with %d factors" % (strength, len(combinations[0])))
    held = [_choices(each, strength) for each in combinations]
    missing = set().union(*held)
    chosen = set()
    while missing:
        best = max(range(len(combinations)), key=lambda index: (len(held[index] & missing), -index))
        chosen.add(best)
        missing -= held[best]
    return [combinations[index] for index in sorted(chosen)]


def _choices(combination, strength):
    """The options at each choice of `strength` factors, with the factors' positions."""
    return set(itertools.combinations(enumerate(combination), strength))


def parametrize(names, *factors, **options):
    """pytest.mark.parametrize with all combinations of `factors`, of which some are enough on one of the lines.

    `names` has one name for each factor; `strength` is that of `covering`, 1 unless it is given. Combinations outside
    the covering are marked `once`.
    """
    combinations = list(itertools.product(*factors))
    kept = covering(combinations, options.pop("strength", 1))
    assert not options, "unknown: %s" % sorted(options)
    return pytest.mark.parametrize(
        names, [pytest.param(*each, marks=() if each in kept else pytest.mark.once) for each in combinations]
    )
