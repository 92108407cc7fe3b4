"""Optimizers that run outside of TensorFlow: `ScipyOptimizerInterface`."""

import importlib

import numpy as np
import tensorflow.compat.v1 as tf


class ExternalOptimizerInterface(object):
    """Minimises a loss by a function of arrays.

    Args:
      loss: scalar tensor.
      var_list: variables that change; default the trainable ones.
      equalities: tensors that are to be 0.
      inequalities: tensors that are not to be negative.
      var_to_bounds: dict of variable to (lower, upper) bounds, arrays or numbers.
      **optimizer_kwargs: of the method.
    """

    def __init__(self, loss, var_list=None, equalities=None, inequalities=None, var_to_bounds=None, **optimizer_kwargs):
        self._loss, self._equalities, self._inequalities = loss, equalities or [], inequalities or []
        self._vars = list(var_list) if var_list is not None else tf.trainable_variables()
        self.optimizer_kwargs = optimizer_kwargs
        self._packed_bounds = self._pack_bounds(var_to_bounds)
        self._shapes = [var.get_shape().as_list() for var in self._vars]
        self._places = [tf.placeholder(var.dtype.base_dtype, var.get_shape()) for var in self._vars]
        self._assigns = [tf.assign(var, place).op for var, place in zip(self._vars, self._places)]
        self._packed_var = self._pack(self._vars)
        self._packed_loss_grad = self._gradient(loss)
        self._packed_equality_grads = [self._gradient(each) for each in self._equalities]
        self._packed_inequality_grads = [self._gradient(each) for each in self._inequalities]

    def _pack_bounds(self, var_to_bounds):
        if var_to_bounds is None:
            return None
        found = []
        for var in self._vars:
            lower, upper = var_to_bounds.get(var, (-np.inf, np.inf))
            shape = var.get_shape().as_list()
            lower, upper = np.broadcast_to(lower, shape).ravel(), np.broadcast_to(upper, shape).ravel()
            found.extend(zip(lower, upper))
        return found

    @staticmethod
    def _pack(tensors):
        return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0) if tensors else None

    def _gradient(self, value):
        found = tf.gradients(value, self._vars)
        return self._pack([g if g is not None else tf.zeros_like(v) for g, v in zip(found, self._vars)])

    def _unpacked(self, values):
        found, start = [], 0
        for shape in self._shapes:
            size = int(np.prod(shape))
            found.append(np.reshape(values[start : start + size], shape))
            start += size
        return found

    def minimize(
        self, session=None, feed_dict=None, fetches=None, step_callback=None, loss_callback=None, **run_kwargs
    ):
        """Minimises the loss, and gives the variables the values that were found.

        Args:
          session: default the default one.
          feed_dict: of all runs.
          fetches: tensors that `loss_callback` gets at each evaluation.
          step_callback: of the packed values, after each step.
        """
        session = session or tf.get_default_session()
        feed_dict, fetches = feed_dict or {}, fetches or []
        loss_callback = loss_callback or (lambda *values: None)
        step_callback = step_callback or (lambda values: None)

        def run(tensors, values):
            fed = dict(feed_dict)
            fed.update(zip(self._vars, self._unpacked(values)))
            return session.run(tensors, fed, **run_kwargs)

        def loss_and_gradient(values):
            found = run([self._loss, self._packed_loss_grad] + list(fetches), values)
            loss_callback(*found[2:])
            return found[0], found[1]

        def constraint(tensor):
            return lambda values: run(tensor, values)

        values = self._minimize(
            initial_val=session.run(self._packed_var, feed_dict),
            loss_grad_func=loss_and_gradient,
            equality_funcs=[constraint(each) for each in self._equalities],
            equality_grad_funcs=[constraint(each) for each in self._packed_equality_grads],
            inequality_funcs=[constraint(each) for each in self._inequalities],
            inequality_grad_funcs=[constraint(each) for each in self._packed_inequality_grads],
            packed_bounds=self._packed_bounds,
            step_callback=step_callback,
            optimizer_kwargs=self.optimizer_kwargs,
        )
        session.run(self._assigns, dict(zip(self._places, self._unpacked(values))), **run_kwargs)

    def _minimize(self, **problem):
        raise NotImplementedError(
            "To use ExternalOptimizerInterface, subclass from it and implement the _minimize method."
        )


class ScipyOptimizerInterface(ExternalOptimizerInterface):
    """Minimises by scipy.optimize.minimize; `method` (default L-BFGS-B) and other arguments are its."""

    _DEFAULT_METHOD = "L-BFGS-B"

    def _minimize(
        self,
        initial_val,
        loss_grad_func,
        equality_funcs,
        equality_grad_funcs,
        inequality_funcs,
        inequality_grad_funcs,
        packed_bounds,
        step_callback,
        optimizer_kwargs,
    ):
        try:
            optimize = importlib.import_module("scipy.optimize")
        except ImportError:
            raise ImportError("ScipyOptimizerInterface needs the package scipy: pip install scipy.") from None

        def as_double(values):
            loss, gradient = loss_grad_func(values)
            return float(loss), np.asarray(gradient, np.float64)

        constraints = []
        for kind, functions, gradients in (
            ("eq", equality_funcs, equality_grad_funcs),
            ("ineq", inequality_funcs, inequality_grad_funcs),
        ):
            constraints += [{"type": kind, "fun": f, "jac": g} for f, g in zip(functions, gradients)]
        options = dict(optimizer_kwargs)
        arguments = {
            "method": options.pop("method", self._DEFAULT_METHOD),
            "jac": True,
            "callback": step_callback,
            "bounds": packed_bounds,
            "constraints": constraints if constraints else (),
        }
        arguments.update(options)
        found = optimize.minimize(as_double, np.asarray(initial_val, np.float64), **arguments)
        tf.logging.info(
            "Optimization terminated with: %s, objective %f after %d iterations",
            found.message,
            found.fun,
            found.get("nit", -1),
        )
        return found.x
