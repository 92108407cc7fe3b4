"""Every pair of features: what epl.config.composes says of it is what compiling comes to."""

import itertools
import os
import re
import subprocess
import sys

import pytest

from epl.config import composes
from epl.errors import ConfigError, UnsupportedError
from tests.helpers import pairs

pytestmark = pytest.mark.either_line

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAIRS = tuple(itertools.combinations(composes.FEATURES, 2))
REFUSED = [(each.one, each.other) for each in composes.REFUSALS]


def pattern_of(refusal):
    """What a message matches that has a refusal's text, whatever the facts."""
    known = [re.escape(part) for part in re.split(r"%\(\w+\)[srd]", refusal.text)]
    return ".*".join(known) + "$"


@pytest.mark.parametrize("one, other", REFUSED, ids=lambda feature: feature.name)
def test_refused(one, other):
    refusal = composes.refusal(one, other)
    error = ConfigError if refusal.when == composes.AT_CONFIG else UnsupportedError
    with pytest.raises(error, match=pattern_of(refusal)):
        pairs.compiled(one, other)


def test_no_pair_has_two_reasons():
    assert len({frozenset(pair) for pair in REFUSED}) == len(REFUSED)


def test_what_a_feature_implies_is_refused_with_it():
    assert composes.refusal(composes.ADAPTIVE, composes.SPLIT) is composes.refusal(composes.LOCAL_SGD, composes.SPLIT)
    assert composes.refusal(composes.ZERO, composes.FP16) is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("one", composes.FEATURES, ids=lambda feature: feature.name)
def test_each_cell(one):
    for other in [other for first, other in PAIRS if first is one]:
        refusal = composes.refusal(one, other)
        if refusal is not None:
            with pytest.raises((ConfigError, UnsupportedError), match="(?s)" + pattern_of(refusal)):
                pairs.compiled(one, other)
        elif not pairs.contradict(one, other):
            assert pairs.compiled(one, other).graph.nodes, (one.name, other.name)


def test_the_pages_are_in_step():
    result = subprocess.run(
        [sys.executable, os.path.join(ROOT, "scripts", "composes.py"), "--check"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout
