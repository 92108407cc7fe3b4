"""Made data: sequences of tokens that follow one of several rules, which the beginning gives away.

By rule r the token after t is (factor_r * t + shift_r) modulo the number of tokens, but now and then any other one.
Nothing is stored: the same seed and step give the same sequences anywhere.
"""

import numpy as np


class Sequences(object):
    """Sequences over `tokens` different tokens.

    Args:
      tokens: how many there are; a prime number has the longest rules.
      length: tokens of a sequence, and one more that is predicted last.
      rules: how many different ones.
      noise: share of tokens that follow no rule.
      seed: of the rules.
    """

    def __init__(self, tokens, length, rules=8, noise=0.02, seed=1):
        rng = np.random.RandomState(seed)
        self._factors, self._shifts = rng.randint(1, tokens, rules), rng.randint(0, tokens, rules)
        self._tokens, self._length, self._noise, self._seed = tokens, length, noise, seed

    def batch(self, step, size):
        """The batch of a step: (tokens, the token after each), both int32 [size, length]."""
        rng = np.random.RandomState((self._seed, step))
        rule = rng.randint(0, len(self._factors), size)
        columns = [rng.randint(0, self._tokens, size)]
        for _ in range(self._length):
            after = (self._factors[rule] * columns[-1] + self._shifts[rule]) % self._tokens
            any_other = rng.randint(0, self._tokens, size)
            columns.append(np.where(rng.uniform(size=size) < self._noise, any_other, after))
        found = np.stack(columns, 1).astype(np.int32)
        return found[:, :-1], found[:, 1:]
