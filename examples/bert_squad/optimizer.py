"""AdamW as BERT is trained with: decay of weights apart from the gradients, warm-up, linear decay of the rate."""

import re

import tensorflow.compat.v1 as tf

_NOT_DECAYED = re.compile(r"LayerNorm|bias")


class AdamW(tf.train.Optimizer):
    """Adam without correction of its first steps; weights shrink by a part of the learning rate besides.

    Args:
      learning_rate: a tensor or number.
      decay: part of a weight that a step with learning rate 1 takes away; biases and layer norms are spared.
    """

    def __init__(self, learning_rate, decay=0.01, beta1=0.9, beta2=0.999, epsilon=1e-6):
        super().__init__(use_locking=False, name="AdamW")
        self._rate, self._decay = learning_rate, decay
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon

    def _create_slots(self, variables):
        for variable in variables:
            self._zeros_slot(variable, "m", self._name)
            self._zeros_slot(variable, "v", self._name)

    def _apply_dense(self, gradient, variable):
        m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        next_m = m.assign(self._beta1 * m + (1 - self._beta1) * gradient)
        next_v = v.assign(self._beta2 * v + (1 - self._beta2) * tf.square(gradient))
        change = tf.convert_to_tensor(next_m) / (tf.sqrt(tf.convert_to_tensor(next_v)) + self._epsilon)
        if not _NOT_DECAYED.search(variable.op.name):
            change += self._decay * variable
        return variable.assign_sub(self._rate * change).op

    def _resource_apply_dense(self, gradient, variable):
        return self._apply_dense(gradient, variable)

    def _apply_sparse(self, gradient, variable):
        """The gradient of an embedding; every row's averages go on, with a gradient of zero where it was not used."""
        return self._apply_dense(tf.convert_to_tensor(gradient), variable)

    def _resource_apply_sparse(self, gradient, variable, indices):
        return self._apply_sparse(tf.IndexedSlices(gradient, indices, variable.shape), variable)


def learning_rate(peak, step, steps, warm_up):
    """Rises from 0 to `peak` in the first `warm_up` steps, then goes down in a line that reaches 0 at `steps`.

    Args:
      peak: a number.
      step: the global step, an integer tensor.
      steps, warm_up: numbers of steps.
    """
    step = tf.cast(step, tf.float32)
    falling = peak * tf.maximum(0.0, 1.0 - step / steps)
    return tf.where(step < warm_up, peak * step / max(1, warm_up), falling)


def train_op(loss, rate, step, clip_norm=1.0):
    """One step of AdamW with gradients whose global norm is at most `clip_norm`."""
    optimizer = AdamW(rate)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    gradients, _ = tf.clip_by_global_norm(gradients, clip_norm)
    return optimizer.apply_gradients(zip(gradients, variables), global_step=step)
