"""AddSign and PowerSign (Bello et al., "Neural Optimizer Search with Reinforcement Learning", ICML 2017)."""

import tensorflow.compat.v1 as tf


class _SignOptimizer(tf.train.Optimizer):
    """Steps that are larger where a gradient has the sign of its moving average "m".

    Args:
      learning_rate, beta: of the steps and the average.
      sign_decay_fn: of the global step, scales the sign; None for 1.
    """

    def __init__(self, learning_rate, beta, sign_decay_fn, use_locking, name):
        super(_SignOptimizer, self).__init__(use_locking, name)
        self._rate, self._beta, self._sign_decay_fn = learning_rate, beta, sign_decay_fn

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        if self._sign_decay_fn is not None:
            step = global_step if global_step is not None else tf.train.get_or_create_global_step()
            self._sign_decay = tf.convert_to_tensor(self._sign_decay_fn(step), name="sign_decay")
        else:
            self._sign_decay = tf.constant(1.0, name="sign_decay")
        return super(_SignOptimizer, self).apply_gradients(grads_and_vars, global_step=global_step, name=name)

    def _create_slots(self, var_list):
        for var in var_list:
            self._zeros_slot(var, "m", self._name)

    def _prepare(self):
        self._rate_t = tf.convert_to_tensor(self._rate, name="learning_rate")
        self._beta_t = tf.convert_to_tensor(self._beta, name="beta")

    def _common(self, grad):
        dtype = grad.dtype.base_dtype
        return dict(
            lr=tf.cast(self._rate_t, dtype),
            sign_decay=tf.cast(self._sign_decay, dtype),
            beta=tf.cast(self._beta_t, dtype),
            grad=grad,
            use_locking=self._use_locking,
        )

    def _apply_dense(self, grad, var):
        m = self.get_slot(var, "m")
        return getattr(tf.raw_ops, self._KERNEL)(var=var._ref(), m=m._ref(), **self._arguments(grad)).op

    def _resource_apply_dense(self, grad, var):
        m = self.get_slot(var, "m")
        return getattr(tf.raw_ops, "Resource" + self._KERNEL)(var=var.handle, m=m.handle, **self._arguments(grad))


class AddSignOptimizer(_SignOptimizer):
    """Steps of `(alpha + sign_decay * sign(gradient) * sign(average)) * gradient`."""

    _KERNEL = "ApplyAddSign"

    def __init__(
        self, learning_rate=0.1, alpha=1.0, beta=0.9, sign_decay_fn=None, use_locking=False, name="AddSignOptimizer"
    ):
        super(AddSignOptimizer, self).__init__(learning_rate, beta, sign_decay_fn, use_locking, name)
        self._alpha = alpha

    def _arguments(self, grad):
        return dict(self._common(grad), alpha=tf.cast(self._alpha, grad.dtype.base_dtype))


class PowerSignOptimizer(_SignOptimizer):
    """Steps of `base ** (sign_decay * sign(gradient) * sign(average)) * gradient`."""

    _KERNEL = "ApplyPowerSign"

    def __init__(
        self,
        learning_rate=0.1,
        base=2.718281828459045,
        beta=0.9,
        sign_decay_fn=None,
        use_locking=False,
        name="PowerSignOptimizer",
    ):
        super(PowerSignOptimizer, self).__init__(learning_rate, beta, sign_decay_fn, use_locking, name)
        self._log_base = tf.math.log(tf.cast(base, tf.float32))

    def _arguments(self, grad):
        return dict(self._common(grad), logbase=tf.cast(self._log_base, grad.dtype.base_dtype))
