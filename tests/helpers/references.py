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


class Classifier(object):
    """The model of tests/helpers/programs/common.py: two dense layers, tanh between them, softmax cross entropy."""

    @staticmethod
    def gradients(weights, x, labels):
        """(mean loss over the rows, {variable: gradient}) for {variable: value}."""
        w = {name: value.astype(np.float64) for name, value in weights.items()}
        hidden = np.tanh(x.astype(np.float64) @ w["hidden/kernel"] + w["hidden/bias"])
        logits = hidden @ w["logits/kernel"] + w["logits/bias"]
        logits -= logits.max(axis=1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        rows = np.arange(len(labels))
        of_logits = np.exp(log_p)
        of_logits[rows, labels] -= 1
        of_logits /= len(labels)
        of_hidden = of_logits @ w["logits/kernel"].T * (1 - hidden**2)
        found = {
            "hidden/kernel": x.astype(np.float64).T @ of_hidden,
            "hidden/bias": of_hidden.sum(axis=0),
            "logits/kernel": hidden.T @ of_logits,
            "logits/bias": of_logits.sum(axis=0),
        }
        return -log_p[rows, labels].mean(), found


class LocalMomentum(object):
    """Lin et al. (2018) with all workers, for the Classifier with momentum.

    Args:
      initial: {variable: first value}; slots are those whose names end in "/Momentum".
      workers: their number.
      average_slots: whether slots are averaged too.
    """

    def __init__(self, initial, workers, rate, momentum, average_slots):
        self.slots = [name for name in initial if name.endswith("/Momentum")]
        self.trained = [name[: -len("/Momentum")] for name in self.slots]
        own = {name: initial[name].astype(np.float64) for name in self.slots + self.trained}
        self.states = [dict(own) for _ in range(workers)]
        self.rate, self.momentum = rate, momentum
        self.averaged = self.trained + (self.slots if average_slots else [])
        self.noted = None

    def step(self, parts, averages, late=False):
        """The losses of a step with each worker's (x, labels); `averages`: it ends with an average, which `late` puts
        off to the end of the next such step (Shen et al., 2019)."""
        losses = []
        for state, (x, labels) in zip(self.states, parts):
            loss, gradients = Classifier.gradients({name: state[name] for name in self.trained}, x, labels)
            losses.append(loss)
            for name, slot in zip(self.trained, self.slots):
                state[slot] = self.momentum * state[slot] + gradients[name]
                state[name] = state[name] - self.rate * state[slot]
        if averages and late:
            if self.noted is not None:
                mean = self._mean(self.noted)
                for state, noted in zip(self.states, self.noted):
                    state.update({name: mean[name] + (state[name] - noted[name]) for name in self.averaged})
            self.noted = [dict(state) for state in self.states]
        elif averages:
            mean = self._mean(self.states)
            for state in self.states:
                state.update(mean)
        return losses

    def _mean(self, states):
        return {name: sum(state[name] for state in states) / len(states) for name in self.averaged}


def largest(values, count):
    """Which of `values`, flat, are sent: at most `count`, by magnitude, with a threshold by a sample of many."""
    magnitudes, size = np.abs(values.astype(np.float32).ravel()), values.size
    if count >= size:
        return np.flatnonzero(magnitudes)
    stride = 1 if size <= 16384 else min(128, size // 4096)
    blocks = np.arange(size // stride, dtype=np.uint64)
    places = blocks * np.uint64(2654435761) % np.uint64(2**32) // np.uint64(2**16) % np.uint64(stride)
    sample = np.sort(magnitudes[(blocks * np.uint64(stride) + places).astype(np.int64)])[::-1]
    rank = count if stride == 1 else count * 5 // 4 // stride + 2
    threshold = sample[rank - 1] if rank < len(sample) else 0
    reach = np.flatnonzero((magnitudes >= threshold) & (magnitudes > 0))
    return reach[np.argsort(-magnitudes[reach], kind="stable")][:count]


class Dgc(object):
    """Lin et al. (2017) with all workers, for the trained variables of a model by tf.train.MomentumOptimizer.

    Args:
      weights: {variable: first value}.
      workers: their number.
      options: {"sparsity", "begin", "ramp", "least", "clip"}; momentum and rate as the optimizer's.
    """

    def __init__(self, weights, workers, rate, momentum, options):
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}
        self.slots = {name: np.zeros(value.shape) for name, value in weights.items()}
        self.u = [{name: np.zeros(value.shape) for name, value in weights.items()} for _ in range(workers)]
        self.v = [{name: np.zeros(value.shape) for name, value in weights.items()} for _ in range(workers)]
        self.rate, self.momentum, self.options, self.steps = rate, momentum, options, 0

    def forget(self):
        """What workers have kept back is lost, as where training goes on from a checkpoint."""
        for kept in self.u + self.v:
            kept.update((name, np.zeros(value.shape)) for name, value in self.slots.items())

    def share_with(self, workers):
        """Another number of workers goes on, each with the mean of what was kept back."""
        for kept in (self.u, self.v):
            mean = {name: sum(each[name] for each in kept) / len(kept) for name in kept[0]}
            kept[:] = [dict(mean) for _ in range(workers)]

    def _sparsity(self):
        levels, passed = self.options["sparsity"], self.steps - self.options["begin"]
        return np.float32(levels[min(passed * len(levels) // self.options["ramp"], len(levels) - 1)])

    def step(self, gradients):
        """A step with each worker's {variable: gradient}."""
        compressed = [n for n, w in self.weights.items() if w.size >= self.options["least"]]
        begun, workers = self.steps >= self.options["begin"], len(gradients)
        for name, weight in self.weights.items():
            mean, momentum = sum(each[name] for each in gradients) / workers, self.momentum
            if begun and name in compressed:
                mean, momentum = self._sent(name, gradients, compressed), 0
            self.slots[name] = momentum * self.slots[name] + mean
            self.weights[name] = weight - self.rate * self.slots[name]
        self.steps += 1

    def _sent(self, name, gradients, compressed):
        total, workers = np.zeros(self.weights[name].shape), len(gradients)
        for u, v, own in zip(self.u, self.v, gradients):
            factor, clip = 1.0, self.options.get("clip", 0)
            if clip:
                norm = np.sqrt(sum(np.sum(own[each] ** 2) for each in compressed))
                factor = min(1.0, clip / np.sqrt(workers) / norm)
            before = self.slots[name] if self.steps == self.options["begin"] else u[name]
            u[name] = self.momentum * before + factor * own[name]
            v[name] = v[name] + u[name]
            count = max(1, int(np.floor(v[name].size * (1 - np.float64(self._sparsity())) + 0.5)))
            places = np.unravel_index(largest(v[name], count), v[name].shape)
            total[places] += v[name][places] / workers
            u[name][places] = v[name][places] = 0
        return total


def _rounded(values, form):
    """float32 as it is after a way in fewer bits."""
    if form == "float16":
        return np.clip(values, -65504, 65504).astype(np.float16).astype(np.float32)
    if form == "bfloat16":
        bits = values.view(np.uint32)
        return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)).view(
            np.float32
        )
    found = np.zeros_like(values)
    for begin in range(0, values.size, 256):
        block = values[begin : begin + 256]
        largest = np.abs(block).max()
        if largest > 1e-30:
            numbers = np.rint(block * (np.float32(127) / largest))
            found[begin : begin + 256] = numbers * (largest / np.float32(127))
    return found


class Wire(object):
    """The sum of a gradient over workers that send fewer bits, and what these leave over the next time.

    Args:
      form: "float16", "bfloat16" or "int8".
      zeros: of the shape of the gradient, float32.
      workers: their number; each adds up an equal share of the elements.
      is_owned: one of them adds up all, and keeps the sum (zero.level from "v1" on).
    """

    def __init__(self, form, zeros, workers, is_owned=False):
        self.form, self.shape, self.workers, self.is_owned = form, zeros.shape, workers, is_owned
        self.left, self.residual_of_sum = [zeros.ravel()] * workers, zeros.ravel()

    def _sent(self, values):
        share = values.size if self.is_owned else -(-values.size // self.workers)
        parts = [values[begin : begin + share] for begin in range(0, values.size, share)]
        return np.concatenate([_rounded(part, self.form) for part in parts])

    def sum(self, gradients, scale):
        """The sum times `scale`, of each worker's list of its devices' gradients."""
        total = np.zeros_like(self.residual_of_sum)
        for rank, own in enumerate(gradients):
            for gradient in own:
                self.left[rank] = self.left[rank] + gradient.ravel()
            sent = self._sent(self.left[rank])
            self.left[rank] = self.left[rank] - sent
            total = total + sent
        if self.is_owned:
            return (total * scale).reshape(self.shape)
        total = total * scale + self.residual_of_sum
        sent = self._sent(total)
        self.residual_of_sum = total - sent
        return sent.reshape(self.shape)


class Half(object):
    """The sum of a gradient over workers that send float16, where what is rounded off is lost (communication.fp16).

    Args:
      factor: what gradients are multiplied by on their way.
    """

    def __init__(self, factor):
        self.factor = np.float32(factor)

    def sum(self, gradients, scale):
        """The sum times `scale`, of each worker's list of its devices' gradients."""
        total = np.zeros(gradients[0][0].shape, np.float32)
        for own in gradients:
            total = total + (sum(own) * self.factor).astype(np.float16).astype(np.float32)
        return (total.astype(np.float16).astype(np.float64) * (scale / self.factor)).astype(np.float32)
