"""A divided model with every optimizer of tf.train, and with those of tf.contrib.opt where there are some."""

import importlib

import numpy as np
import tensorflow.compat.v1 as tf

from tests.helpers.programs import common
from tests.helpers.programs.split import dividing_scope, history_of

TRAIN = {
    "Adadelta": lambda: tf.train.AdadeltaOptimizer(1.0, epsilon=1e-3),
    "AdagradDA": lambda: tf.train.AdagradDAOptimizer(0.1, tf.train.get_or_create_global_step()),
    "Ftrl": lambda: tf.train.FtrlOptimizer(0.1, l2_regularization_strength=0.01),
    "Nesterov": lambda: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "ProximalAdagrad": lambda: tf.train.ProximalAdagradOptimizer(0.1, l2_regularization_strength=0.01),
    "ProximalGradientDescent": lambda: tf.train.ProximalGradientDescentOptimizer(0.1, l2_regularization_strength=0.01),
    "RMSProp": lambda: tf.train.RMSPropOptimizer(0.01, momentum=0.5),
    "centered RMSProp": lambda: tf.train.RMSPropOptimizer(0.01, centered=True),
}
# Without AdamW and MomentumW, whose decay one device makes before or after the loss has read a variable, as it comes,
# and Shampoo, whose roots of matrices are ill-conditioned. So is GGT's with the `eps` that is its default: rows of a
# batch in another order change the biases of one device by 3e-5 of the largest, but with this one by 5e-7.
CONTRIB = {
    "AdaMax": lambda opt: opt.AdaMaxOptimizer(0.01),
    "AddSign": lambda opt: opt.AddSignOptimizer(0.01),
    "GGT": lambda opt: opt.GGTOptimizer(0.01, window=2, eps=0.01),
    "LARS": lambda opt: opt.LARSOptimizer(0.1, eeta=0.1),
    "LazyAdam": lambda opt: opt.LazyAdamOptimizer(0.01),
    "Nadam": lambda opt: opt.NadamOptimizer(0.01),
    "PowerSign": lambda opt: opt.PowerSignOptimizer(0.01),
    "RegAdagrad": lambda opt: opt.RegAdagradOptimizer(0.1),
    "VariableClipping": lambda opt: opt.VariableClippingOptimizer(tf.train.AdamOptimizer(0.1), {}, 0.5),
    "MovingAverage": lambda opt: opt.MovingAverageOptimizer(tf.train.AdamOptimizer(0.01), average_decay=0.8),
}


def optimizer(name):
    if name in TRAIN:
        return TRAIN[name]()
    return CONTRIB[name](importlib.import_module("tensorflow.contrib.opt"))


def _layers(kind, x):
    """Logits of two layers; for "slim" and "keras" of what these have."""
    if kind == "slim":
        slim = importlib.import_module("tensorflow.contrib.slim")
        x = slim.fully_connected(x, 8, normalizer_fn=slim.batch_norm, normalizer_params={"fused": False})
        return slim.fully_connected(slim.dropout(x, 1.0), 7, activation_fn=None)
    if kind == "keras":
        x = tf.keras.layers.Dense(8, kernel_initializer="he_normal")(x)
        x = tf.keras.layers.LayerNormalization()(tf.keras.layers.PReLU()(x))
        return tf.keras.layers.Dense(7)(tf.keras.layers.Dropout(0.3)(x))
    x = tf.tanh(tf.layers.dense(x, 8, name="first"))
    return tf.layers.dense(x, 7, name="second")


def trains(epl, device_count, name, resource=False, kind="plain", averaged=False, steps=3):
    """What every step gives, and all variables after it; then which variables are divided."""
    common.init(epl)
    tf.set_random_seed(3)
    x, labels = tf.placeholder(tf.float32, [8, common.FEATURES]), tf.placeholder(tf.int64, [8])
    with tf.variable_scope("model", use_resource=resource), dividing_scope(epl, device_count):
        logits = _layers(kind, x)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    made = tf.train.AdamOptimizer(0.01) if name == "Adam" else optimizer(name)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        step = made.minimize(loss, tf.train.get_or_create_global_step())
    if averaged:
        with tf.control_dependencies([step]):
            step = tf.train.ExponentialMovingAverage(0.9).apply(tf.trainable_variables())
    feeds = []
    for number in range(steps):
        feeds.append({x: common.batch(number)[0], labels: np.random.RandomState(number).randint(0, 7, 8)})
    divided = []

    def look(session):
        if epl and not divided:
            plan = epl.session.hooks.driver_of(session).rewritten.plan
            divided.extend(sorted(v for v in plan.variables if plan.placed(v).is_divided))

    return history_of([loss, logits], step, feeds, after=look), divided


def all_of(epl, device_count, names, resource=False, kind="plain", averaged=False):
    """dict of each name to what `trains` gives."""
    found = {}
    for name in names:
        with tf.Graph().as_default():
            found[name] = trains(epl, device_count, name, resource, kind, averaged)
    return found
