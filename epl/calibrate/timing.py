"""How long what TensorFlow computes takes, and whether times can be trusted."""

import logging
import time

import numpy as np
import tensorflow.compat.v1 as tf

_LOG = logging.getLogger("epl")
# Times count as steady where the middle half of them lies within this part of the median.
SPREAD = 0.3
_FEWEST, _MOST = 5, 200  # runs for a figure


def steady(measure, what, limit=SPREAD):
    """The median of some times, which are measured again if they are spread widely.

    Args:
      measure: function that returns a list of seconds.
      what: for the warning where the second try is spread as widely.
      limit: part of the median within which the middle half has to lie.

    Returns:
      Seconds, above 0.
    """
    tries = []
    for _ in range(2):
        low, middle, high = np.percentile(measure(), [25, 50, 75])
        tries.append((float(high - low) / max(middle, 1e-9), max(float(middle), 1e-9)))
        if tries[-1][0] <= limit:
            break
    spread, seconds = min(tries)
    if spread > limit:
        _LOG.warning(
            "The times of %s lie %.0f %% apart, twice in a row: other programs run on this machine, and what is "
            "measured now is too slow. Calibrate again when nothing else runs.",
            what,
            100 * spread,
        )
    return seconds


def times_of(build, shape, dtype=tf.float32, device="", most_s=0.5):
    """Seconds that some operations take, without those of a session's run.

    Args:
      build: function that makes operations of a tensor, one that waits for all of them is returned.
      shape, dtype: of that tensor, of ones.
      device: TensorFlow's name of the device; "": as TensorFlow chooses.
      most_s: for all runs together.

    Returns:
      A list of seconds, one for each run.
    """
    with tf.Graph().as_default(), tf.device(device or None):
        x = tf.get_variable("x", shape, dtype, tf.ones_initializer(), trainable=False, use_resource=True)
        value = tf.identity(x)
        # TensorFlow leaves out what nobody takes.
        made, alone = build(value).op, value.op
        options = tf.ConfigProto()
        options.graph_options.rewrite_options.disable_meta_optimizer = True  # it would fold a chain into one
        with tf.Session(config=options) as session:
            session.run(x.initializer)
            run, nothing = session.make_callable(made), session.make_callable(alone)
            for _ in range(2):
                run(), nothing()  # the first runs prepare
            found, ends = [], time.perf_counter() + most_s
            while len(found) < _FEWEST or (len(found) < _MOST and time.perf_counter() < ends):
                began = time.perf_counter()
                nothing()
                middle = time.perf_counter()
                run()
                found.append(time.perf_counter() - middle - (middle - began))
    return found
