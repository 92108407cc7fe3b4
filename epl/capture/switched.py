"""The program's Adam becomes LAMB, its Momentum LARS, where the configuration says so (optimizer.lamb, .lars)."""

import logging

import tensorflow.compat.v1 as tf

from epl import tf_compat
from epl.config.rules import patterns_of
from epl.env import Env
from epl.errors import UnsupportedError
from epl.optimizers import LambOptimizer, LarsOptimizer

_LOG = logging.getLogger("epl")
_REPLACEMENT, _IS_ONE = "_epl_replacement", "_epl_is_replacement"


def in_place_of(optimizer):
    """The optimizer whose update is built in place of that of `optimizer`; None where its own is.

    It has the learning rate and what else the program has set, and shares its slots with `optimizer`, so that the
    program finds them there. One that is not replaced though others are stays as it is, which the log says; that some
    are, epl.plan.facts.by_hand.check_replaced sees to.

    Raises:
      UnsupportedError: the configuration replaces it, but its settings have no counterpart.
    """
    options = Env.get().config.optimizer
    if not (options.lamb or options.lars) or hasattr(optimizer, _IS_ONE):
        return None
    made = getattr(optimizer, _REPLACEMENT, None)
    if made is None:
        made = _make(optimizer, options)
        if made is None:
            _LOG.warning(
                "%s; %s.%s stays as it is. Only these very classes are replaced, not ones derived from them, "
                "optimizers around them or Keras' optimizers.",
                _in_words(options),
                type(optimizer).__module__,
                type(optimizer).__name__,
            )
            return None
        setattr(made, _IS_ONE, True)
        setattr(optimizer, _REPLACEMENT, made)
        tf_compat.share_slots(made, optimizer)
    return made


def _make(optimizer, options):
    common = {"exclude_from_weight_decay": patterns_of(options.exclude_from_weight_decay)}
    if options.epsilon is not None:
        common["epsilon"] = options.epsilon
    if options.lamb and type(optimizer) is tf.train.AdamOptimizer:
        given = tf_compat.hyperparameters(optimizer)
        return LambOptimizer(**dict(given, weight_decay=options.lamb_weight_decay, **common))
    if options.lars and type(optimizer) is tf.train.MomentumOptimizer:
        given = tf_compat.hyperparameters(optimizer)
        if given.pop("use_nesterov"):
            raise UnsupportedError(
                "optimizer.lars=True cannot replace tf.train.MomentumOptimizer(use_nesterov=True): LARS has no "
                "Nesterov momentum. Leave use_nesterov out, or set optimizer.lars=False."
            )
        numbers = dict(lars_coeff=options.lars_coeff, weight_decay=options.lars_weight_decay)
        return LarsOptimizer(**dict(given, **dict(numbers, **common)))
    return None


def _in_words(options):
    replaced = []
    if options.lamb:
        replaced.append("optimizer.lamb=True replaces tf.train.AdamOptimizer")
    if options.lars:
        replaced.append("optimizer.lars=True replaces tf.train.MomentumOptimizer")
    return " and ".join(replaced)
