"""Which data gives batches of different sizes: the last one of a data set is shorter, where the data does not divide.

records -> repeat() -> batch(8)       batches of 8 rows for ever
records -> batch(8) -> repeat()       the last batch of each epoch has what is left
"""

from epl.graph.bodies import Bodies
from epl.plan.facts import data_ops
from epl.plan.input.batch_rows import open_rows
from epl.plan.input.dividing import constant_of
from epl.rules import datasets, effects

# They hand batches on, all rows of each.
_HAND_ON = data_ops.WHOLE_BATCHES | datasets.of_kind(datasets.EACH, datasets.KEPT)
# Of what never ends they make what never ends.
_GO_ON = datasets.of_kind(datasets.SAME, datasets.EACH, datasets.SOME, datasets.KEPT, datasets.MIXED, datasets.BATCH)
_GO_ON = _GO_ON | datasets.of_kind(datasets.UNBATCH) | frozenset(["ShardDataset", "SkipDataset"])


def short_batches(graph):
    """Names of the nodes that give batches of which some may have fewer rows than others.

    Args:
      graph: an epl.graph.index.Graph with one copy of the model.
    """
    bodies = Bodies(graph)
    given = [name for name in graph.find(effects.SOURCES.__contains__) if any(open_rows(graph.nodes[name]))]
    return frozenset(name for name in given if not _gives_full_batches(bodies, graph.nodes[name]))


def _gives_full_batches(bodies, node):
    iterator = data_ops.iterator_of(bodies.main, node.input[0]) if node.op in data_ops.GET_NEXT else None
    if iterator is None:
        return False
    ends = [(body, text) for name, body, text in data_ops.pipelines_of_iterators(bodies) if name == iterator]
    return bool(ends) and all(_is_full(*end) for end in ends)


def _is_full(body, text):
    """Whether all batches of a data set have the same number of rows."""
    node = body.producer(text)
    if node is None:
        return False
    if datasets.kind_of(node.op) == datasets.BATCH:
        return _is_endless(body, node.input[0])
    count = datasets.num_data_sets(node)
    return node.op in _HAND_ON and count > 0 and all(_is_full(body, each) for each in node.input[:count])


def _is_endless(body, text):
    node = body.producer(text)
    if node is None:
        return False
    if node.op in datasets.REPEATS:
        count = constant_of(body, node.input[datasets.REPEATS[node.op]])
        if count is not None and count < 0:
            return True
    if node.op == "ZipDataset":
        return all(_is_endless(body, each) for each in node.input[: datasets.num_data_sets(node)])
    return node.op in _GO_ON and any(_is_endless(body, each) for each in node.input[: datasets.num_data_sets(node)])
