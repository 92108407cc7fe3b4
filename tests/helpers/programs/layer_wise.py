"""LAMB and LARS by the book, in plain TensorFlow, with the slots that EPL's have: what these are compared with."""

import tensorflow.compat.v1 as tf


class _ByTheBook(tf.train.Optimizer):
    def __init__(self, name, slots):
        super(_ByTheBook, self).__init__(False, name)
        self._slot_names = slots

    def _create_slots(self, var_list):
        for var in var_list:
            for slot in self._slot_names:
                self._zeros_slot(var, slot, self._name)

    def _apply_dense(self, grad, var):
        slots = [self.get_slot(var, name) for name in self._slot_names]
        values = self._values(grad, tf.convert_to_tensor(var), [tf.convert_to_tensor(slot) for slot in slots])
        with tf.control_dependencies(list(values)):
            return tf.group(*[each.assign(value) for each, value in zip([var] + slots, values)])

    _resource_apply_dense = _apply_dense

    def _apply_sparse(self, grad, var):
        return self._apply_dense(tf.convert_to_tensor(grad), var)

    def _resource_apply_sparse(self, grad, handle, indices):
        return self._apply_sparse(tf.IndexedSlices(grad, indices, tf.shape(handle)), handle)


class Lamb(_ByTheBook):
    def __init__(self, rate):
        super(Lamb, self).__init__("Lamb", ["m", "v"])
        self._rate, self._betas = rate, {"beta1": 0.9, "beta2": 0.999}

    def _create_slots(self, var_list):
        first = min(var_list, key=lambda var: var.name)
        for name in sorted(self._betas):
            self._create_non_slot_variable(1.0, name + "_power", first)
        super(Lamb, self)._create_slots(var_list)

    def _power(self, name):
        return self._get_non_slot_variable(name + "_power", graph=tf.get_default_graph())

    def _values(self, grad, value, slots):
        beta1, beta2 = tf.constant(self._betas["beta1"]), tf.constant(self._betas["beta2"])
        m = beta1 * slots[0] + (1.0 - beta1) * grad  # 1 - beta as float32 has it
        v = beta2 * slots[1] + (1.0 - beta2) * tf.square(grad)
        one, other = (1.0 - self._power(name) * beta for name, beta in sorted(self._betas.items()))
        step = m / one / (tf.sqrt(v / other) + 1e-6) + 0.01 * value
        return value - self._rate * tf.norm(value) / tf.norm(step) * step, m, v

    def _finish(self, update_ops, name_scope):
        with tf.control_dependencies(update_ops):
            powers = [self._power(name).assign(self._power(name) * beta) for name, beta in sorted(self._betas.items())]
        return tf.group(*(update_ops + powers), name=name_scope)


class Lars(_ByTheBook):
    def __init__(self, rate, coeff, decay):
        super(Lars, self).__init__("Lars", ["momentum"])
        self._rate, self._coeff, self._decay = rate, coeff, decay

    def _values(self, grad, value, slots):
        norm = tf.norm(value)
        rate = self._rate * self._coeff * norm / (tf.norm(grad) + self._decay * norm)
        velocity = 0.9 * slots[0] + rate * (grad + self._decay * value)
        return value - velocity, velocity
