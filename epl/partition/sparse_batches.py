"""What sparse operations take before rows are looked up: lists of entries, and shapes of sparse tensors.

Their first dimension counts entries, or dimensions. Where a model looks at them besides (do ids lie in the table? how
many columns are there?), nothing is gained if shards divide that, as they do with rows of a batch.
"""

# Operation type to the positions of the lists of entries among its inputs, and those of shapes.
_TAKES = {"SparseFillEmptyRows": ((0, 1), (2,)), "SparseReshape": ((0,), (1, 2))}
# The same list, changed entry by entry: the positions of what it is made of.
_MADE_OF = dict.fromkeys("Identity Cast StridedSlice StringToHashBucketFast Bucketize AsString".split(), (0,))
_MADE_OF.update(LookupTableFindV2=(1,), Select=(1, 2), SelectV2=(1, 2), GatherNd=(1,))


def lists_before(facts, before):
    """The tensors among the inputs of some nodes that are lists of entries, or shapes of sparse tensors.

    Args:
      facts: Facts of the graph.
      before: nodes that are computed before entries are looked up.
    """
    found, waiting = set(), []
    for name in before:
        positions = _TAKES.get(facts.graph.nodes[name].op, ())
        waiting.extend(facts.inputs(name)[i] for each in positions for i in each)
    while waiting:
        tensor = waiting.pop()
        if tensor not in found and len(facts.shape(tensor) or ()) in (1, 2):
            found.add(tensor)
            waiting.extend(_made_of(facts, tensor))
    return frozenset(found)


def _made_of(facts, tensor):
    """The lists that a list is made of, entry by entry."""
    op, inputs = facts.graph.nodes[tensor.node].op, facts.inputs(tensor.node)
    if op == "GatherV2":
        return inputs[:2] if _is_kept(facts, inputs[1]) else []
    return [inputs[i] for i in _MADE_OF.get(op, ())]


def _is_kept(facts, tensor):
    """Whether it has the places of those entries that are kept."""
    node = facts.graph.nodes[tensor.node]
    return node.op == "Reshape" and facts.graph.nodes[facts.inputs(tensor.node)[0].node].op == "Where"
