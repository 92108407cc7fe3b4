"""Collections that say how a fetched value is merged over the copies of the model."""

from epl.capture.record import default_graph, record_of
from epl.errors import CaptureError, CollectionKeyError


class GraphKeys(object):
    """Names of the collections. GLOBAL_*: over all copies of all workers; LOCAL_*: over this worker's copies."""

    GLOBAL_CONCAT_OBJECTS = "global_concat_objects"
    GLOBAL_MEAN_OBJECTS = "global_mean_objects"
    GLOBAL_SUM_OBJECTS = "global_sum_objects"
    LOCAL_CONCAT_OBJECTS = "local_concat_objects"
    LOCAL_MEAN_OBJECTS = "local_mean_objects"
    LOCAL_SUM_OBJECTS = "local_sum_objects"

    ALL = (
        GLOBAL_CONCAT_OBJECTS,
        GLOBAL_MEAN_OBJECTS,
        GLOBAL_SUM_OBJECTS,
        LOCAL_CONCAT_OBJECTS,
        LOCAL_MEAN_OBJECTS,
        LOCAL_SUM_OBJECTS,
    )


def _checked(key):
    if key not in GraphKeys.ALL:
        raise CollectionKeyError(
            "%r is none of the collections of epl.GraphKeys; these are: %s" % (key, ", ".join(GraphKeys.ALL))
        )
    return key


def add_to_collection(value, key):
    """Says that fetching `value` gives it merged over the copies of the model.

    Args:
      value: a tensor, or a list of tensors.
      key: one of epl.GraphKeys.

    Raises:
      CollectionKeyError: the key is unknown; a KeyError too.
      CaptureError: the value is no tensor of a graph, or it is in another collection already.
    """
    _checked(key)
    for tensor in value if isinstance(value, (list, tuple)) else [value]:
        if not hasattr(tensor, "op") or not hasattr(tensor, "graph"):
            raise CaptureError("epl.add_to_collection takes tensors, not %r" % (tensor,))
        merges = record_of(tensor.graph).merges
        for other, names in merges.items():
            if other != key and tensor.name in names:
                raise CaptureError(
                    "tensor '%s' is in the collection '%s' already; a fetched value can be merged in one way "
                    "only. Put tf.identity of it into '%s'." % (tensor.name, other, key)
                )
        names = merges.setdefault(key, [])
        if tensor.name not in names:
            names.append(tensor.name)


def get_collection(key):
    """The tensors of the default graph in one collection, in the order in which they were added.

    Raises:
      CollectionKeyError: the key is unknown; a KeyError too.
    """
    return get_all_collections().get(_checked(key), [])


def get_all_collections():
    """dict of collection name to the tensors of the default graph in it."""
    graph = default_graph()
    return {key: [graph.get_tensor_by_name(n) for n in names] for key, names in record_of(graph).merges.items()}
