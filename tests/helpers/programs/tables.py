"""Programs with one variable that holds nearly all parameters, whose rows ZeRO divides (zero.level)."""

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common, layer_wise
from tests.helpers.programs.zero import Adafactor
from tests.helpers.zoo import model as m

ROWS, WIDTH = 2101, 8


class LazyMomentum(tf.train.Optimizer):
    """Momentum of which only the rows that a sparse gradient has decay, made of plain operations."""

    def __init__(self):
        super(LazyMomentum, self).__init__(False, "LazyMomentum")

    def _create_slots(self, var_list):
        for var in var_list:
            self._zeros_slot(var, "velocity", self._name)

    def _apply_dense(self, grad, var):
        slot = self.get_slot(var, "velocity")
        velocity = slot.assign(0.9 * slot + grad)
        return var.assign_sub(0.1 * velocity).op

    _resource_apply_dense = _apply_dense

    def _apply_sparse(self, grad, var):
        slot = self.get_slot(var, "velocity")
        velocity = 0.9 * tf.gather(slot, grad.indices) + grad.values
        kept = tf.scatter_update(slot, grad.indices, velocity)
        return tf.group(kept, tf.scatter_sub(var, grad.indices, 0.1 * velocity))

    def _resource_apply_sparse(self, grad, var, indices):
        return self._apply_sparse(tf.IndexedSlices(grad, indices), var)


class DecayedAdam(tf.train.AdamOptimizer):
    """Adam that lets a variable decay before each of its updates (Loshchilov and Hutter, 2019)."""

    def __init__(self):
        super(DecayedAdam, self).__init__(0.02)

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        pairs = list(grads_and_vars)
        # What computes gradients takes variables as they are.
        with tf.control_dependencies([gradient for gradient, _ in pairs]):
            return super(DecayedAdam, self).apply_gradients(pairs, *args, **kwargs)

    def _decayed(self, update, var, *gradient):
        # Of a resource variable the decay gives what is read after it, for which the update waits.
        with tf.control_dependencies([var.assign_sub(0.05 * var)]):
            return update(*gradient)

    def _apply_dense(self, grad, var):
        return self._decayed(super(DecayedAdam, self)._apply_dense, var, grad, var)

    def _resource_apply_dense(self, grad, var):
        return self._decayed(super(DecayedAdam, self)._resource_apply_dense, var, grad, var)

    def _apply_sparse(self, grad, var):
        return self._decayed(super(DecayedAdam, self)._apply_sparse, var, grad, var)

    def _resource_apply_sparse(self, grad, var, indices):
        return self._decayed(super(DecayedAdam, self)._resource_apply_sparse, var, grad, var, indices)


OPTIMIZERS = dict(m.OPTIMIZERS, lazy=LazyMomentum, decayed=DecayedAdam)


class _Clipped(object):
    """Adam on gradients that are clipped by a norm of all of them."""

    def __init__(self, clip):
        self._clip = clip

    def minimize(self, loss):
        optimizer = OPTIMIZERS["adam"]()
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        return optimizer.apply_gradients(zip(self._clip(gradients), variables))


def _own_norm(gradients):
    norm = tf.sqrt(sum(tf.reduce_sum(tf.square(g)) for g in gradients))
    return [g * (0.1 / tf.maximum(norm, 0.1)) for g in gradients]


CLIPPED = {"clipped": lambda gradients: tf.clip_by_global_norm(gradients, 0.1)[0], "clipped_own": _own_norm}


def _optimizer(epl, name):
    if name == "lamb":
        return epl.optimizers.LambOptimizer(0.02) if epl else layer_wise.Lamb(0.02)
    if name == "lars":
        options = dict(lars_coeff=0.1, weight_decay=0.01)
        return epl.optimizers.LarsOptimizer(0.5, **options) if epl else layer_wise.Lars(0.5, 0.1, 0.01)
    if name in CLIPPED:
        return _Clipped(CLIPPED[name])
    if name == "adafactor":
        return Adafactor(0.05)
    return OPTIMIZERS[name]()


class _Feeds(object):
    """Numbers of rows, and as which sum of them a batch is multiplied with the whole table."""

    def __init__(self, epl, groups):
        self._epl, self._groups = epl, groups
        self.ids = tf.placeholder(tf.int64, [None, 3], name="ids")

    def of(self, step):
        rng = np.random.RandomState(step)
        # Some rows are there in each step and more than once, in all parts.
        ids = np.concatenate([rng.randint(0, ROWS, (common.BATCH, 2)), rng.randint(0, 3, (common.BATCH, 1)) * 1050], 1)
        return {self.ids: self._own(ids)}

    def _own(self, ids):
        """This worker's share; workers with stages of the same copy of the model take the same."""
        if not self._groups:
            return common.share(self._epl, ids)
        index, workers = common.workers(self._epl)
        return np.array_split(ids, self._groups)[index * self._groups // workers]


def build(epl, sparse, optimizer, resource, groups=0, poison=None):
    """(feeds, loss, train op) of a table of 2101 x 8 and a small layer.

    With `groups` these are two stages, and so many groups of workers take different data. The gradient of the last row
    alone is `poison`, if any, more than it would be.
    """
    feeds, scope = _Feeds(epl, groups), common.scope_of(epl) if groups else common.no_scope
    with tf.variable_scope("all", use_resource=resource):
        with scope():
            table = m.variable("table", [ROWS, WIDTH], seed=1)
            if sparse:
                rows = tf.reduce_sum(tf.nn.embedding_lookup(table, feeds.ids), axis=1)
            else:
                rows = tf.matmul(tf.reduce_sum(tf.one_hot(feeds.ids, ROWS), axis=1), table)
        with scope():
            made = tf.matmul(rows, m.variable("kernel", [WIDTH, 4], seed=2))
            loss = tf.reduce_mean(tf.square(made - 1.0))
            if poison is not None:
                loss += poison * tf.reduce_sum(tf.gather(table, [ROWS - 1]))
        return feeds, common.mean_everywhere(epl, loss), _optimizer(epl, optimizer).minimize(loss)


def train(epl, config, cases, groups=0):
    """dict of case, (sparse, optimizer, resource), to losses and variables after each step; `groups` as of `build`."""
    found = {}
    for case in cases:
        common.init(epl, config)
        with tf.Graph().as_default():
            found[tuple(case)] = common.trained(*build(epl, *case, groups), steps=2)[0]
    return found


def with_bad_steps(epl, config, case, bad, steps=5):
    """The variables after each step, in float16 with a loss scale; in some one number of a gradient is infinite."""
    common.init(epl, dict(config, **{"amp.dtype": "float16", "amp.init_loss_scale": 4.0}))
    poison, states = tf.placeholder(tf.float32, [], name="poison"), []
    feeds, _, train_op = build(epl, *case, poison=poison)
    with common.session() as sess:
        common.initialize(sess)
        states.append(common.state(sess))
        for step in range(steps):
            fed = feeds.of(step)
            fed[poison] = np.inf if step in bad else 0.0
            sess.run(train_op, fed)
            states.append(common.state(sess))
    return states


def goes_on(epl, config, begin, until, before=None, after=None, groups=0, optimizer="adam"):
    """Trains from one step to another, with a checkpoint before and after: losses, and variables after each step."""
    common.init(epl, config)
    feeds, loss, train_op = build(epl, True, optimizer, True, groups)
    return common.goes_on(feeds, loss, train_op, begin, until, before, after)
