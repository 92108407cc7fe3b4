"""Weight decay apart from gradients (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019)."""

import tensorflow.compat.v1 as tf


class DecoupledWeightDecayExtension(object):
    """Makes an optimizer, beside which it stands among a class's bases, take `weight_decay * variable` off variables
    before their updates.

    Args:
      weight_decay: number or scalar tensor.
      **kwargs: of the optimizer.

    `minimize` and `apply_gradients` take `decay_var_list`, the variables that decay; default all.
    """

    def __init__(self, weight_decay, **kwargs):
        self._decay_var_list = None
        self._weight_decay = weight_decay
        super(DecoupledWeightDecayExtension, self).__init__(**kwargs)

    def minimize(
        self,
        loss,
        global_step=None,
        var_list=None,
        gate_gradients=tf.train.Optimizer.GATE_OP,
        aggregation_method=None,
        colocate_gradients_with_ops=False,
        name=None,
        grad_loss=None,
        decay_var_list=None,
    ):
        self._decay_var_list = _keys(decay_var_list)
        return super(DecoupledWeightDecayExtension, self).minimize(
            loss,
            global_step=global_step,
            var_list=var_list,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            name=name,
            grad_loss=grad_loss,
        )

    def apply_gradients(self, grads_and_vars, global_step=None, name=None, decay_var_list=None):
        if decay_var_list is not None:
            self._decay_var_list = _keys(decay_var_list)
        return super(DecoupledWeightDecayExtension, self).apply_gradients(
            grads_and_vars, global_step=global_step, name=name
        )

    def _prepare(self):
        decay = self._weight_decay() if callable(self._weight_decay) else self._weight_decay
        self._weight_decay_tensor = tf.convert_to_tensor(decay, name="weight_decay")
        super(DecoupledWeightDecayExtension, self)._prepare()

    def _decays(self, var):
        return self._decay_var_list is None or var.ref() in self._decay_var_list

    def _decay(self, var):
        if not self._decays(var):
            return tf.no_op()
        return var.assign_sub(tf.cast(self._weight_decay_tensor, var.dtype.base_dtype) * var, self._use_locking)

    def _decay_rows(self, var, indices):
        if not self._decays(var):
            return tf.no_op()
        change = -tf.cast(self._weight_decay_tensor, var.dtype.base_dtype) * tf.gather(var, indices)
        return self._scatter_add_to(var, indices, change)

    def _scatter_add_to(self, var, indices, values):
        if hasattr(var, "handle"):
            return tf.raw_ops.ResourceScatterAdd(resource=var.handle, indices=indices, updates=values)
        return tf.scatter_add(var, indices, values, use_locking=self._use_locking)

    def _apply_dense(self, grad, var):
        with tf.control_dependencies([self._decay(var)]):
            return super(DecoupledWeightDecayExtension, self)._apply_dense(grad, var)

    def _resource_apply_dense(self, grad, var):
        with tf.control_dependencies([self._decay(var)]):
            return super(DecoupledWeightDecayExtension, self)._resource_apply_dense(grad, var)

    def _apply_sparse(self, grad, var):
        with tf.control_dependencies([self._decay_rows(var, grad.indices)]):
            return super(DecoupledWeightDecayExtension, self)._apply_sparse(grad, var)

    def _resource_apply_sparse(self, grad, var, indices):
        with tf.control_dependencies([self._decay_rows(var, indices)]):
            return super(DecoupledWeightDecayExtension, self)._resource_apply_sparse(grad, var, indices)


def _keys(variables):
    return None if variables is None else {variable.ref() for variable in variables}


def extend_with_decoupled_weight_decay(base_optimizer):
    """A class that is an optimizer's with decoupled weight decay, which is its first argument.

    Args:
      base_optimizer: a subclass of tf.train.Optimizer.
    """

    class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecayExtension, base_optimizer):
        def __init__(self, weight_decay, *args, **kwargs):
            self._decay_var_list = None
            self._weight_decay = weight_decay
            base_optimizer.__init__(self, *args, **kwargs)

    return OptimizerWithDecoupledWeightDecay


class AdamWOptimizer(DecoupledWeightDecayExtension, tf.train.AdamOptimizer):
    """Adam with decoupled weight decay; arguments as of tf.train.AdamOptimizer after `weight_decay`."""

    def __init__(
        self, weight_decay, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, use_locking=False, name="AdamW"
    ):
        super(AdamWOptimizer, self).__init__(
            weight_decay,
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            use_locking=use_locking,
            name=name,
        )


class MomentumWOptimizer(DecoupledWeightDecayExtension, tf.train.MomentumOptimizer):
    """Momentum with decoupled weight decay; arguments as of tf.train.MomentumOptimizer after `weight_decay`."""

    def __init__(self, weight_decay, learning_rate, momentum, use_locking=False, name="MomentumW", use_nesterov=False):
        super(MomentumWOptimizer, self).__init__(
            weight_decay,
            learning_rate=learning_rate,
            momentum=momentum,
            use_locking=use_locking,
            name=name,
            use_nesterov=use_nesterov,
        )
