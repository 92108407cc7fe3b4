"""Optimizers in NumPy, written from the papers, for one variable each."""

import numpy as np


def _ratio(above, below):
    return above / below if above > 0 and below > 0 else 1.0


class Lamb(object):
    """Algorithm 2 of You et al. (2019)."""

    def __init__(self, value, rate, beta1=0.9, beta2=0.999, epsilon=1e-6, decay=0.01, excluded=False):
        self.value, self.m, self.v, self.count = value, np.zeros_like(value), np.zeros_like(value), 0
        self.rate, self.beta1, self.beta2, self.epsilon = rate, beta1, beta2, epsilon
        self.decay, self.excluded = decay, excluded

    def step(self, gradient):
        """The value after a step."""
        self.count += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * gradient
        self.v = self.beta2 * self.v + (1 - self.beta2) * gradient**2
        m, v = self.m / (1 - self.beta1**self.count), self.v / (1 - self.beta2**self.count)
        change, ratio = m / (np.sqrt(v) + self.epsilon), 1.0
        if not self.excluded:
            change = change + self.decay * self.value
            ratio = _ratio(np.linalg.norm(self.value), np.linalg.norm(change))
        self.value = self.value - self.rate * ratio * change
        return self.value


class Lars(object):
    """You et al. (2017)."""

    def __init__(self, value, rate, momentum=0.9, coeff=0.001, decay=0.0001, excluded=False):
        self.value, self.velocity = value, np.zeros_like(value)
        self.rate, self.momentum, self.coeff, self.decay, self.excluded = rate, momentum, coeff, decay, excluded

    def step(self, gradient):
        """The value after a step."""
        rate = self.rate
        if not self.excluded:
            norm, below = np.linalg.norm(self.value), np.linalg.norm(gradient)
            if norm > 0 and below > 0:
                rate *= self.coeff * norm / (below + self.decay * norm)
            gradient = gradient + self.decay * self.value
        self.velocity = self.momentum * self.velocity + rate * gradient
        self.value = self.value - self.velocity
        return self.value
