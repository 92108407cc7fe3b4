"""The model zoo: small single-device models with deterministic initial values and data.

`CASES` pairs each model with its optimizers and a way of input. Feeds and data sets take turns, so that every model
that has several optimizers is trained with both. `ONE_EACH` are some of them: every model once, all optimizers and both
ways of input.
"""

import collections

from tests.helpers.zoo import control_flow, dense, sparse, training
from tests.helpers.zoo.model import OPTIMIZERS

MODELS = collections.OrderedDict(
    (model.name, model) for part in (dense, sparse, control_flow, training) for model in part.MODELS
)


class Case(collections.namedtuple("Case", "name model optimizer source")):
    """A model, how it is trained and how it gets its data."""

    __slots__ = ()

    def atol(self, layout):
        """How far a run may be off, of a tensor's largest number."""
        own = self.name[len(self.model.name) + 1 :]
        return self.model.wider.get((own, str(layout)), self.model.atol)


def _cases():
    turn = 0
    for model in MODELS.values():
        for optimizer in model.optimizers:
            source = ("feed", "dataset")[turn % 2]
            turn += 1
            yield Case("%s-%s-%s" % (model.name, optimizer, source), model, OPTIMIZERS[optimizer], source)


CASES = collections.OrderedDict((case.name, case) for case in _cases())


def _one_each():
    for turn, model in enumerate(MODELS.values()):
        mine = [case for case in CASES.values() if case.model is model]
        yield mine[turn % len(mine)].name


ONE_EACH = frozenset(_one_each())
