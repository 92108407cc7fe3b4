"""The model zoo: small single-device models with deterministic initial values and data.

`CASES` pairs each model with its optimizers and a way of input. Feeds and data sets take turns, so that every model
that has several optimizers is trained with both.
"""

import collections

from tests.helpers.zoo import control_flow, dense, sparse, training
from tests.helpers.zoo.model import OPTIMIZERS

MODELS = collections.OrderedDict(
    (model.name, model) for part in (dense, sparse, control_flow, training) for model in part.MODELS
)

Case = collections.namedtuple("Case", "name model optimizer source")


def _cases():
    turn = 0
    for model in MODELS.values():
        for optimizer in model.optimizers:
            source = ("feed", "dataset")[turn % 2]
            turn += 1
            yield Case("%s-%s-%s" % (model.name, optimizer, source), model, OPTIMIZERS[optimizer], source)


CASES = collections.OrderedDict((case.name, case) for case in _cases())
