"""Models without scopes whose plan EPL chooses, fed with each worker's rows of the global batch."""

import numpy as np

from tests.helpers.programs import common, pipelines

STEPS = 4
ROWS = 12


def train(epl, model, config=None):
    """Losses and variables by step, and the keys that were chosen."""
    if epl:
        common.init(epl, dict({"auto.batch": ROWS}, **config))
    loss, feeds = pipelines._built(model, lambda stage: pipelines._nothing(), 1, 4)
    common.mean_everywhere(epl, loss)
    train_op = pipelines._trained(loss, model)
    losses, states = [], []
    with common.session() as sess:
        common.initialize(sess)
        for step in range(STEPS):
            value, _ = sess.run([loss, train_op], _fed(epl, feeds, step))
            losses.append(value)
            states.append(common.state(sess))
    chosen = epl.Env.get().config.to_dict() if epl else {}
    return {"losses": losses, "states": states, "chosen": chosen}


def _fed(epl, feeds, step):
    data = pipelines._data(feeds, step, ROWS)
    return {feeds[name]: common.share(epl, np.asarray(value)) for name, value in sorted(data.items())}
