"""Optimizers for large batches: LAMB and LARS. They are `tf.train.Optimizer`s, and serve without EPL's other parts too.

Both scale the step of each variable by the ratio of the variable's norm to that of its step, so that a learning rate
for large batches does not tear small variables apart. The norms are over whole variables.
"""

import re

import tensorflow.compat.v1 as tf

from epl.optimizers import fused_updates

__all__ = ["LambOptimizer", "LarsOptimizer"]


class _LayerWise(tf.train.Optimizer):
    """What both have in common: numbers as tensors, variables left out by name, sparse gradients made dense."""

    def __init__(self, name, exclude_from_weight_decay, use_locking, **numbers):
        super(_LayerWise, self).__init__(use_locking, name)
        for pattern in exclude_from_weight_decay:
            if not isinstance(pattern, str):
                raise ValueError(
                    "exclude_from_weight_decay takes a list of regular expressions, such as ['bias$'], not %r"
                    % (exclude_from_weight_decay,)
                )
        self._excluded = tuple(re.compile(pattern) for pattern in exclude_from_weight_decay)
        self._numbers = numbers
        self._tensors = {}

    def _prepare(self):
        for name, number in self._numbers.items():
            value = number() if callable(number) else number
            self._tensors[name] = tf.convert_to_tensor(value, tf.float32, name=name)

    def _number(self, name, var):
        return tf.cast(self._tensors[name], var.dtype.base_dtype)

    def _is_excluded(self, var):
        name = var.op.name
        return any(pattern.search(name) for pattern in self._excluded)

    def _write(self, assignments):
        """dict of name to the operation that assigns its new value to its variable, once all new values are known."""
        with tf.control_dependencies([new for _, new in assignments.values()]):
            return {
                name: var.assign(new, use_locking=self._use_locking, read_value=False)
                for name, (var, new) in assignments.items()
            }

    def _apply_dense(self, grad, var):
        return self._step(grad, var)

    def _resource_apply_dense(self, grad, handle):
        return self._step(grad, handle)

    def _apply_sparse(self, grad, var):
        return self._step(tf.convert_to_tensor(grad), var)

    def _resource_apply_sparse(self, grad, handle, indices):
        return self._step(tf.convert_to_tensor(tf.IndexedSlices(grad, indices, tf.shape(handle))), handle)


class LambOptimizer(_LayerWise):
    r"""LAMB: Adam with a step for each variable in proportion to the variable's norm.

    You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (2019), algorithm 2:

        m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
        r = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay w
        w = w - learning_rate (|w| / |r|) r

    The ratio is 1 where either norm is 0, and for variables that are excluded.

    Args:
      learning_rate: a number, a tensor, or a function that returns either.
      beta1: as above.
      beta2: as above.
      epsilon: as above.
      weight_decay: as above.
      exclude_from_weight_decay: regular expressions; variables in whose name one of them is found get neither decay nor
        a ratio. For BERT: ["LayerNorm", "layer_norm", "bias"].
    """

    def __init__(
        self,
        learning_rate=0.001,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        exclude_from_weight_decay=(),
        use_locking=False,
        name="Lamb",
    ):
        super(LambOptimizer, self).__init__(
            name,
            exclude_from_weight_decay,
            use_locking,
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            weight_decay=weight_decay,
        )

    def _create_slots(self, var_list):
        first = min(var_list, key=lambda var: var.name)
        for name in ("beta1", "beta2"):
            self._create_non_slot_variable(initial_value=1.0, name=name + "_power", colocate_with=first)
        for var in var_list:
            self._zeros_slot(var, "m", self._name)
            self._zeros_slot(var, "v", self._name)

    def _powers(self):
        graph = None if tf.executing_eagerly() else tf.get_default_graph()
        return [self._get_non_slot_variable(name + "_power", graph=graph) for name in ("beta1", "beta2")]

    def _step(self, grad, var):
        slots = {name: self.get_slot(var, name) for name in ("m", "v")}
        numbers = {name: self._number(name, var) for name in ("beta1", "beta2", "epsilon", "learning_rate")}
        numbers.update(zip(("power1", "power2"), (tf.cast(tf.identity(power), grad.dtype) for power in self._powers())))
        numbers["rate"] = numbers.pop("learning_rate")
        if not self._is_excluded(var):
            numbers["decay"] = self._number("weight_decay", var)
        given = fused_updates.distinct(dict(numbers, grad=grad))
        values = {name: tf.identity(each) for name, each in dict(slots, var=var).items()}
        m = given["beta1"] * values["m"] + (1.0 - given["beta1"]) * given["grad"]
        v = given["beta2"] * values["v"] + (1.0 - given["beta2"]) * tf.square(given["grad"])
        corrected = m / (1.0 - given["power1"] * given["beta1"])
        step = corrected / (tf.sqrt(v / (1.0 - given["power2"] * given["beta2"])) + given["epsilon"])
        named = {"value": values["var"], "new_m": m, "new_v": v}
        if not self._is_excluded(var):
            step += given["decay"] * values["var"]
            named["step"] = step
            norms = [_norm(each, name, named) for each, name in ((values["var"], "var"), (step, "step"))]
            step *= _ratio(*norms)
        new = values["var"] - given["rate"] * step
        writes = self._write({"var": (var, new), "m": (slots["m"], m), "v": (slots["v"], v)})
        kind = "lamb_excluded" if self._is_excluded(var) else "lamb"
        fused_updates.mark(kind, given, values, named, writes)
        return tf.group(*writes.values())

    def _finish(self, update_ops, name_scope):
        with tf.control_dependencies(update_ops):
            powers = [
                tf.assign(power, power * self._tensors[name], use_locking=self._use_locking)
                for name, power in zip(("beta1", "beta2"), self._powers())
            ]
        return tf.group(*(list(update_ops) + powers), name=name_scope)


class LarsOptimizer(_LayerWise):
    r"""LARS: SGD with momentum, with a learning rate for each variable in proportion to the variable's norm.

    You et al., "Large Batch Training of Convolutional Networks" (2017):

        rate = learning_rate * lars_coeff |w| / (|g| + weight_decay |w| + epsilon)
        v = momentum v + rate (g + weight_decay w)
        w = w - v

    The rate is the learning rate itself where either norm is 0, and for variables that are excluded. The same as
    `tf.contrib.opt.LARSOptimizer`, where there is one.

    Args:
      learning_rate: a number, a tensor, or a function that returns either.
      momentum: as above.
      lars_coeff: as above.
      epsilon: as above.
      weight_decay: as above.
      exclude_from_weight_decay: regular expressions; variables in whose name one of them is found get neither decay nor
        a rate of their own. For ResNet: ["batch_normalization", "bias"].
    """

    def __init__(
        self,
        learning_rate,
        momentum=0.9,
        lars_coeff=0.001,
        weight_decay=0.0001,
        epsilon=0.0,
        exclude_from_weight_decay=(),
        use_locking=False,
        name="Lars",
    ):
        super(LarsOptimizer, self).__init__(
            name,
            exclude_from_weight_decay,
            use_locking,
            learning_rate=learning_rate,
            momentum=momentum,
            lars_coeff=lars_coeff,
            weight_decay=weight_decay,
            epsilon=epsilon,
        )

    def _create_slots(self, var_list):
        for var in var_list:
            self._zeros_slot(var, "momentum", self._name)

    def _step(self, grad, var):
        slot, is_excluded = self.get_slot(var, "momentum"), self._is_excluded(var)
        numbers = {"rate": self._number("learning_rate", var), "momentum": self._number("momentum", var)}
        if not is_excluded:
            further = {"decay": "weight_decay", "coeff": "lars_coeff", "epsilon": "epsilon"}
            numbers.update((name, self._number(number, var)) for name, number in further.items())
        given = fused_updates.distinct(dict(numbers, grad=grad))
        values = {"var": tf.identity(var), "velocity": tf.identity(slot)}
        value, own, rate = values["var"], tf.identity(given["grad"]), given["rate"]
        named, change = {"value": value, "own_grad": own}, own
        if not is_excluded:
            norm, grad_norm = (_norm(each, name, named) for each, name in ((value, "var"), (own, "grad")))
            below = grad_norm + given["decay"] * norm + given["epsilon"]
            rate *= tf.where(
                tf.logical_and(norm > 0.0, grad_norm > 0.0),
                given["coeff"] * norm / tf.where(below > 0.0, below, tf.ones_like(below)),
                tf.ones_like(norm),
            )
            change += given["decay"] * value
        velocity = given["momentum"] * values["velocity"] + rate * change
        named["new_velocity"] = velocity
        writes = self._write({"var": (var, value - velocity), "velocity": (slot, velocity)})
        fused_updates.mark("lars_excluded" if is_excluded else "lars", given, values, named, writes)
        return tf.group(*writes.values())


def _norm(tensor, name, named):
    """The Euclidean norm; notes in `named` what its sum of squares is made by."""
    named[name + "_square"] = tf.square(tensor)
    named[name + "_sum"] = tf.reduce_sum(named[name + "_square"])
    return tf.sqrt(named[name + "_sum"])


def _ratio(norm, step_norm):
    """norm / step_norm; 1 where either is 0."""
    usual = tf.logical_and(norm > 0.0, step_norm > 0.0)
    return tf.where(usual, norm / tf.where(usual, step_norm, tf.ones_like(step_norm)), tf.ones_like(norm))
