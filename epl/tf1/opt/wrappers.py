"""Optimizers around others: averages of variables, bounds of rows, and zeros of tasks that have no gradient."""

import tensorflow.compat.v1 as tf


class MovingAverageOptimizer(tf.train.Optimizer):
    """Keeps moving averages of what an optimizer trains, and has a Saver that writes these in the variables' place.

    Args:
      opt: the optimizer.
      average_decay: of the averages.
      num_updates: number of updates so far, which makes the decay smaller at the beginning.
      sequential_update: averages after the updates, instead of beside them.
    """

    def __init__(self, opt, average_decay=0.9999, num_updates=None, sequential_update=True):
        super(MovingAverageOptimizer, self).__init__(False, "MovingAverageOptimizer")
        self._optimizer = opt
        self._averages = tf.train.ExponentialMovingAverage(average_decay, num_updates=num_updates)
        self._swapped_variable_name_map, self._sequential_update = None, sequential_update

    def compute_gradients(self, *args, **kwargs):
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        grads_and_vars = list(grads_and_vars)
        updates = self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name)
        variables = [var for grad, var in grads_and_vars if grad is not None]
        with tf.control_dependencies([updates] if self._sequential_update else []):
            averages = self._averages.apply(variables)
        self._swapped_variable_name_map = {self._averages.average(var).op.name: var.op.name for var in variables}
        return tf.group(updates, averages, name="train_with_avg")

    def swapping_saver(self, var_list=None, name="swapping_saver", **kwargs):
        """A tf.train.Saver that writes averages under the variables' names, and these under those of averages.

        Raises:
          RuntimeError: there are no averages yet: call apply_gradients or minimize first.
          ValueError: a variable that is to be saved has an average that is not.
        """
        if self._swapped_variable_name_map is None:
            raise RuntimeError("Must call apply_gradients or minimize before creating the swapping_saver")
        var_list = tf.global_variables() if var_list is None else var_list
        named = {var.op.name: var for var in var_list} if not isinstance(var_list, dict) else dict(var_list)
        swapped = dict(named)
        for average, variable in self._swapped_variable_name_map.items():
            if variable in named:
                if average not in named:
                    raise ValueError(
                        "Variable to swap %s is not part of variables to save. This breaks swapping." % average
                    )
                swapped[average], swapped[variable] = named[variable], named[average]
        return tf.train.Saver(swapped, name=name, **kwargs)

    def variables(self):
        return self._optimizer.variables()


class VariableClippingOptimizer(tf.train.Optimizer):
    """Bounds norms of parts of variables after an optimizer's updates.

    Args:
      opt: the optimizer.
      vars_to_clip_dims: dict of variable to the dimensions over which a norm goes.
      max_norm: the bound.
    """

    def __init__(
        self,
        opt,
        vars_to_clip_dims,
        max_norm,
        use_locking=False,
        colocate_clip_ops_with_vars=False,
        name="VariableClipping",
    ):
        super(VariableClippingOptimizer, self).__init__(use_locking, name)
        self._optimizer, self._max_norm = opt, max_norm
        self._dims = {var.ref(): dims for var, dims in vars_to_clip_dims.items()}

    def compute_gradients(self, *args, **kwargs):
        return self._optimizer.compute_gradients(*args, **kwargs)

    def get_slot(self, *args, **kwargs):
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args, **kwargs):
        return self._optimizer.get_slot_names(*args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        grads_and_vars = list(grads_and_vars)
        with tf.name_scope(name, self._name):
            updates = self._optimizer.apply_gradients(grads_and_vars, global_step=global_step)
            with tf.control_dependencies([updates]):
                clips = [
                    tf.assign(var, tf.clip_by_norm(var, self._max_norm, self._dims[var.ref()]))
                    for grad, var in grads_and_vars
                    if grad is not None and var.ref() in self._dims
                ]
            return tf.group(*([updates] + clips))


def clip_gradients_by_global_norm(gradients_variables, clip_norm=20.0):
    """(gradient, variable) pairs with gradients clipped together (tf.clip_by_global_norm), and their norm noted."""
    gradients, variables = zip(*gradients_variables)

    def kept(gradient):
        return gradient is not None

    norm = tf.global_norm([each for each in gradients if kept(each)])
    clipped, _ = tf.clip_by_global_norm(gradients, clip_norm, use_norm=norm)
    tf.summary.scalar("gradient_norm/global", norm)
    return list(zip(clipped, variables))


class MultitaskOptimizerWrapper(object):
    """An optimizer that leaves a variable, and its slots, as they are where its gradient is all zeros.

    Args:
      opt: the optimizer.
    """

    def __init__(self, opt):
        if not isinstance(opt, tf.train.Optimizer):
            raise ValueError("Supplied optimizer must be an instance of tf.train.Optimizer")
        self._optimizer = opt
        for name in ("_apply_dense", "_resource_apply_dense"):
            setattr(opt, name, self._guarded(getattr(opt, name)))
        for name in ("_apply_sparse", "_apply_sparse_shared", "_resource_apply_sparse"):
            if hasattr(opt, name):
                setattr(opt, name, self._guarded(getattr(opt, name)))

    @staticmethod
    def _guarded(apply):
        def guarded(grad, *args, **kwargs):
            values = grad.values if isinstance(grad, tf.IndexedSlices) else grad
            zero = tf.equal(tf.reduce_sum(tf.cast(tf.not_equal(values, 0), tf.int32)), 0)
            return tf.cond(zero, tf.no_op, lambda: tf.group(apply(grad, *args, **kwargs)))

        return guarded

    def __getattr__(self, name):
        return getattr(self._optimizer, name)
