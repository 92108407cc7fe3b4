"""Relatives of Adam (Kingma and Ba 2015): for sparse gradients, with Nesterov momentum, and with the maximum norm."""

import tensorflow.compat.v1 as tf


class LazyAdamOptimizer(tf.train.AdamOptimizer):
    """Adam that, of a sparse gradient, updates only the rows that it has; arguments as of tf.train.AdamOptimizer."""

    def _apply_sparse(self, grad, var):
        return self._apply_rows(grad.values, var, grad.indices)

    def _resource_apply_sparse(self, grad, var, indices):
        return self._apply_rows(grad, var, indices)

    def _apply_rows(self, grad, var, indices):
        dtype = var.dtype.base_dtype
        beta1_power, beta2_power = self._get_beta_accumulators()
        beta1, beta2 = tf.cast(self._beta1_t, dtype), tf.cast(self._beta2_t, dtype)
        rate = tf.cast(self._lr_t, dtype)
        rate *= tf.sqrt(1 - tf.cast(beta2_power, dtype)) / (1 - tf.cast(beta1_power, dtype))
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        m_rows = beta1 * tf.gather(m, indices) + (1 - beta1) * grad
        v_rows = beta2 * tf.gather(v, indices) + (1 - beta2) * tf.square(grad)
        step = rate * m_rows / (tf.sqrt(v_rows) + tf.cast(self._epsilon_t, dtype))
        # All rows are read before any is written.
        with tf.control_dependencies([m_rows, v_rows, step]):
            return tf.group(
                _scatter("Update", m, indices, m_rows, self._use_locking),
                _scatter("Update", v, indices, v_rows, self._use_locking),
                _scatter("Sub", var, indices, step, self._use_locking),
            )


def _scatter(how, var, indices, values, use_locking):
    if hasattr(var, "handle"):
        scatter = getattr(tf.raw_ops, "ResourceScatter" + how)
        return scatter(resource=var.handle, indices=indices, updates=values)
    scatter = getattr(tf.raw_ops, "Scatter" + how)
    return scatter(ref=var._ref(), indices=indices, updates=values, use_locking=use_locking)


class NadamOptimizer(tf.train.AdamOptimizer):
    """Adam with Nesterov momentum (Dozat 2016); arguments as of tf.train.AdamOptimizer."""

    def _arguments(self, grad, var):
        dtype = var.dtype.base_dtype
        beta1_power, beta2_power = self._get_beta_accumulators()
        return dict(
            beta1_power=tf.cast(beta1_power, dtype),
            beta2_power=tf.cast(beta2_power, dtype),
            lr=tf.cast(self._lr_t, grad.dtype.base_dtype),
            beta1=tf.cast(self._beta1_t, grad.dtype.base_dtype),
            beta2=tf.cast(self._beta2_t, grad.dtype.base_dtype),
            epsilon=tf.cast(self._epsilon_t, grad.dtype.base_dtype),
            grad=grad,
            use_locking=self._use_locking,
            use_nesterov=True,
        )

    def _apply_dense(self, grad, var):
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        return tf.raw_ops.ApplyAdam(var=var._ref(), m=m._ref(), v=v._ref(), **self._arguments(grad, var)).op

    def _resource_apply_dense(self, grad, var):
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        return tf.raw_ops.ResourceApplyAdam(var=var.handle, m=m.handle, v=v.handle, **self._arguments(grad, var))

    def _apply_sparse_shared(self, grad, var, indices, scatter_add):
        dtype = var.dtype.base_dtype
        beta1_power, beta2_power = self._get_beta_accumulators()
        beta1, beta2 = tf.cast(self._beta1_t, dtype), tf.cast(self._beta2_t, dtype)
        rate = tf.cast(self._lr_t, dtype)
        rate *= tf.sqrt(1 - tf.cast(beta2_power, dtype)) / (1 - tf.cast(beta1_power, dtype))
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        of_grad = grad * (1 - beta1)
        with tf.control_dependencies([tf.assign(m, m * beta1, use_locking=self._use_locking)]):
            m_after = scatter_add(m, indices, of_grad)
            with tf.control_dependencies([m_after]):
                looked_ahead = of_grad + beta1 * tf.gather(m_after, indices)
        with tf.control_dependencies([tf.assign(v, v * beta2, use_locking=self._use_locking)]):
            v_after = scatter_add(v, indices, tf.square(grad) * (1 - beta2))
        root = tf.sqrt(tf.gather(v_after, indices)) + tf.cast(self._epsilon_t, dtype)
        return tf.group(scatter_add(var, indices, -rate * looked_ahead / root), m_after, v_after)


class AdaMaxOptimizer(tf.train.AdamOptimizer):
    """Adam by the largest gradient so far (Kingma and Ba 2015, section 7.1); arguments as of tf.train.AdamOptimizer."""

    def __init__(self, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, use_locking=False, name="AdaMax"):
        super(AdaMaxOptimizer, self).__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)

    def _power(self):
        return self._get_non_slot_variable("beta1_power", graph=tf.get_default_graph())

    def _create_slots(self, var_list):
        first = min(var_list, key=lambda var: var.name)
        self._create_non_slot_variable(initial_value=self._beta1, name="beta1_power", colocate_with=first)
        for var in var_list:
            self._zeros_slot(var, "m", self._name)
            self._zeros_slot(var, "v", self._name)

    def _arguments(self, grad, var):
        dtype = grad.dtype.base_dtype
        return dict(
            beta1_power=tf.cast(self._power(), dtype),
            lr=tf.cast(self._lr_t, dtype),
            beta1=tf.cast(self._beta1_t, dtype),
            beta2=tf.cast(self._beta2_t, dtype),
            epsilon=tf.cast(self._epsilon_t, dtype),
            grad=grad,
            use_locking=self._use_locking,
        )

    def _apply_dense(self, grad, var):
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        return tf.raw_ops.ApplyAdaMax(var=var._ref(), m=m._ref(), v=v._ref(), **self._arguments(grad, var)).op

    def _resource_apply_dense(self, grad, var):
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        return tf.raw_ops.ResourceApplyAdaMax(var=var.handle, m=m.handle, v=v.handle, **self._arguments(grad, var))

    def _apply_sparse(self, grad, var):
        return self._apply_rows(grad.values, var, grad.indices)

    def _resource_apply_sparse(self, grad, var, indices):
        return self._apply_rows(grad, var, indices)

    def _apply_rows(self, grad, var, indices):
        dtype = grad.dtype.base_dtype
        beta1, beta2 = tf.cast(self._beta1_t, dtype), tf.cast(self._beta2_t, dtype)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        m_rows = beta1 * tf.gather(m, indices) + (1 - beta1) * grad
        v_rows = tf.maximum(beta2 * tf.gather(v, indices), tf.abs(grad))
        rate = tf.cast(self._lr_t, dtype) / (1 - tf.cast(self._power(), dtype))
        step = rate * m_rows / (v_rows + tf.cast(self._epsilon_t, dtype))
        with tf.control_dependencies([m_rows, v_rows, step]):
            return tf.group(
                _scatter("Update", m, indices, m_rows, self._use_locking),
                _scatter("Update", v, indices, v_rows, self._use_locking),
                _scatter("Sub", var, indices, step, self._use_locking),
            )

    def _finish(self, update_ops, name_scope):
        power = self._power()
        with tf.control_dependencies(update_ops), tf.colocate_with(power):
            update = power.assign(power * tf.cast(self._beta1_t, power.dtype.base_dtype), use_locking=self._use_locking)
        return tf.group(*(list(update_ops) + [update]), name=name_scope)
