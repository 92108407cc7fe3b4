"""Models with special optimizers, several losses, clipping, moving averages."""

import re

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.zoo import model as m

CLIP_AFTER = {"communication.clip_after_allreduce": True}


class DecayingAdam(tf.train.Optimizer):
    """Adam with decoupled weight decay that overrides apply_gradients, as optimizers for transformers often do.

    It keeps its moments in variables of its own making, assigns them with plain assigns, and leaves the global step
    alone.
    """

    def __init__(self, learning_rate, decay=0.01, beta_1=0.9, beta_2=0.999, epsilon=1e-3, no_decay=("bias",)):
        super(DecayingAdam, self).__init__(use_locking=False, name="DecayingAdam")
        self._rate = learning_rate
        self._decay = decay
        self._beta_1 = beta_1
        self._beta_2 = beta_2
        self._small = epsilon
        self._no_decay = no_decay

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        assignments = []
        for gradient, variable in grads_and_vars:
            if gradient is not None:
                assignments.extend(self._update(gradient, variable))
        return tf.group(*assignments, name=name)

    def _update(self, gradient, variable):
        base = variable.op.name
        first = self._moment(base + "/first_moment", variable)
        second = self._moment(base + "/second_moment", variable)
        next_first = self._beta_1 * first + (1.0 - self._beta_1) * gradient
        next_second = self._beta_2 * second + (1.0 - self._beta_2) * tf.square(gradient)
        step = next_first / (tf.sqrt(next_second) + self._small)
        if not any(re.search(part, base) for part in self._no_decay):
            step += self._decay * variable
        return [variable.assign(variable - self._rate * step), first.assign(next_first), second.assign(next_second)]

    @staticmethod
    def _moment(name, variable):
        return tf.get_variable(
            name,
            variable.shape.as_list(),
            dtype=variable.dtype.base_dtype,
            trainable=False,
            initializer=tf.zeros_initializer(),
        )


def two_layers(x, labels):
    """The loss of a small classifier."""
    hidden = m.dense(x, 8, "hidden", seed=1, activation=tf.nn.tanh)
    return m.classification(m.dense(hidden, 3, "logits", seed=3), labels)


def weight_decay(inputs):
    """Clipping by global norm, an optimizer that overrides apply_gradients, and a step counted by hand."""
    loss = two_layers(inputs["x"], inputs["labels"])

    def train(make_optimizer):
        del make_optimizer
        variables = tf.trainable_variables()
        gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.5)
        step = m.train_step()
        update = DecayingAdam(0.02).apply_gradients(zip(gradients, variables))
        return tf.group(update, step.assign(step + 1))

    return {"loss": loss}, train


def clip_global_norm(inputs):
    """compute_gradients, clip_by_global_norm, apply_gradients; the clip bites (the table's gradient is sparse)."""
    table = m.variable("table", [3, 6], seed=7)
    x = inputs["x"] + tf.nn.embedding_lookup(table, inputs["labels"])
    loss = two_layers(4.0 * x, inputs["labels"])

    def train(make_optimizer):
        optimizer = make_optimizer()
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
        return optimizer.apply_gradients(zip(gradients, variables), global_step=m.train_step())

    return {"loss": loss}, train


def clip_each(inputs):
    """Every gradient is clipped by value and by its own norm."""
    loss = two_layers(inputs["x"], inputs["labels"])

    def train(make_optimizer):
        optimizer = make_optimizer()
        pairs = [
            (tf.clip_by_norm(tf.clip_by_value(gradient, -0.05, 0.05), 0.08), variable)
            for gradient, variable in optimizer.compute_gradients(loss)
        ]
        return optimizer.apply_gradients(pairs, global_step=m.train_step())

    return {"loss": loss}, train


def partial_gradients(inputs):
    """Variables without a gradient among those that are trained."""
    unused = m.variable("unused", [3], seed=8)
    loss = two_layers(inputs["x"], inputs["labels"])
    stopped = m.variable("stopped", [6, 3], seed=9)
    loss += 0.1 * tf.reduce_mean(tf.square(tf.matmul(inputs["x"], tf.stop_gradient(stopped))))

    def train(make_optimizer):
        optimizer = make_optimizer()
        pairs = optimizer.compute_gradients(loss)
        assert {variable.op.name for gradient, variable in pairs if gradient is None} == {
            unused.op.name,
            stopped.op.name,
        }
        return optimizer.apply_gradients(pairs, global_step=m.train_step())

    return {"loss": loss}, train


def adversarial(inputs):
    """A generator and a discriminator: two losses, two optimizers of different kinds, both applied in one step."""
    with tf.variable_scope("generator"):
        noise = inputs["x"]
        fake = m.dense(m.dense(noise, 6, "hidden", seed=1, activation=tf.nn.tanh), 4, "sample", seed=3)

    def discriminate(sample):
        with tf.variable_scope("discriminator", reuse=tf.AUTO_REUSE):
            return m.dense(m.dense(sample, 6, "hidden", seed=5, activation=tf.nn.tanh), 1, "logit", seed=7)

    real = tf.one_hot(inputs["labels"], 4)
    on_real, on_fake = discriminate(real), discriminate(fake)
    entropy = tf.nn.sigmoid_cross_entropy_with_logits
    d_loss = tf.reduce_mean(entropy(logits=on_real, labels=tf.ones_like(on_real)))
    d_loss += tf.reduce_mean(entropy(logits=on_fake, labels=tf.zeros_like(on_fake)))
    g_loss = tf.reduce_mean(entropy(logits=on_fake, labels=tf.ones_like(on_fake)))

    def train(make_optimizer):
        d_optimizer, g_optimizer = make_optimizer(), tf.train.AdamOptimizer(0.02, epsilon=1e-3)
        d_pairs = d_optimizer.compute_gradients(d_loss, var_list=tf.trainable_variables("discriminator"))
        g_pairs = g_optimizer.compute_gradients(g_loss, var_list=tf.trainable_variables("generator"))
        # Both must be computed before either is applied, or the result would depend on which came first.
        with tf.control_dependencies([gradient for gradient, _ in d_pairs + g_pairs]):
            return tf.group(
                d_optimizer.apply_gradients(d_pairs, global_step=m.train_step()), g_optimizer.apply_gradients(g_pairs)
            )

    return {"d_loss": d_loss, "g_loss": g_loss}, train


def gradient_penalty(inputs):
    """tf.gradients inside the loss: a penalty on the gradient with respect to the input."""
    x = inputs["x"]
    hidden = m.dense(x, 8, "hidden", seed=1, activation=tf.nn.tanh)
    logits = m.dense(hidden, 3, "logits", seed=3)
    slope = tf.gradients(tf.reduce_sum(logits[:, 0]), x)[0]
    return m.classification(logits, inputs["labels"]) + 0.5 * tf.reduce_mean(tf.reduce_sum(tf.square(slope), axis=1))


def moving_average(inputs):
    """An exponential moving average of the weights, updated after each step."""
    with tf.variable_scope("averaged", use_resource=True):  # reference variables would race with the apply
        loss = two_layers(inputs["x"], inputs["labels"])

    def train(make_optimizer):
        step = m.train_step()
        update = make_optimizer().minimize(loss, global_step=step)
        average = tf.train.ExponentialMovingAverage(0.9, num_updates=step)
        with tf.control_dependencies([update]):
            return average.apply(tf.trainable_variables())

    return {"loss": loss}, train


def two_parts(inputs):
    """Two losses over disjoint variables, minimised one after the other by optimizers with slots of the same names."""
    x = inputs["x"]
    with tf.variable_scope("one"):
        first = two_layers(x, inputs["labels"])
    with tf.variable_scope("two"):
        second = tf.reduce_mean(
            tf.square(m.dense(x, 1, "regression", seed=11) - tf.cast(inputs["labels"], tf.float32)[:, None])
        )

    def train(make_optimizer):
        one = make_optimizer().minimize(first, var_list=tf.trainable_variables("one"), global_step=m.train_step())
        with tf.control_dependencies([one]):
            return make_optimizer().minimize(second, var_list=tf.trainable_variables("two"))

    return {"first": first, "second": second}, train


def regularised(inputs):
    """A term of the loss that does not depend on the batch: averaging must not count it once per replica."""
    x = m.dense(inputs["x"], 8, "hidden", seed=1, activation=tf.nn.tanh, regularizer=lambda w: 0.05 * tf.nn.l2_loss(w))
    loss = m.classification(m.dense(x, 3, "logits", seed=3), inputs["labels"])
    loss += tf.losses.get_regularization_loss()

    def train(make_optimizer):
        optimizer = make_optimizer()
        pairs = optimizer.compute_gradients(loss)
        with tf.control_dependencies([loss] + [gradient for gradient, _ in pairs]):
            return optimizer.apply_gradients(pairs, global_step=m.train_step())

    return {"loss": loss}, train


def pairs_of(rng, size):
    """Data of `adversarial`: `x` [size, 3], `labels` [size]."""
    return {"x": rng.normal(size=(size, 3)).astype(np.float32), "labels": rng.randint(0, 4, size).astype(np.int64)}


MODELS = [
    m.Model("adversarial", adversarial, pairs_of, m.ALL_OPTIMIZERS),
    m.Model("clip_global_norm", clip_global_norm, m.vectors(6, 3), ("momentum", "adagrad"), CLIP_AFTER),
    m.Model("clip_each", clip_each, m.vectors(6, 3), ("adam",), CLIP_AFTER),
    m.Model("weight_decay", weight_decay, m.vectors(6, 3), config=CLIP_AFTER),
    m.Model("partial_gradients", partial_gradients, m.vectors(6, 3), ("momentum",)),
    m.Model("gradient_penalty", gradient_penalty, m.vectors(6, 3), ("sgd",)),
    m.Model("moving_average", moving_average, m.vectors(6, 3), ("momentum",)),
    m.Model("two_parts", two_parts, m.vectors(6, 3), ("adam",)),
    m.Model("regularised", regularised, m.vectors(6, 3), ("adam",)),
]
