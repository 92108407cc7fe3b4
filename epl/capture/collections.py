"""Collections that say how a fetched value is merged over the copies of the model."""

from typing import Any, Dict, List

from epl.capture.merge_keys import GraphKeys
from epl.capture.record import default_graph, merges_of, record_of
from epl.errors import CaptureError, CollectionKeyError
from epl.program.program import LOSSES


def _checked(key):
    if key not in GraphKeys.ALL:
        raise CollectionKeyError(
            "%r is none of the collections of epl.GraphKeys; these are: %s" % (key, ", ".join(GraphKeys.ALL))
        )
    return key


def add_to_collection(value: Any, key: str) -> None:
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


def report_loss(tensor, config):
    """Says that fetching a loss gives what it is of the whole batch, unless the program says how it is merged; of this
    worker's part of it if workers go alone.

    Args:
      tensor: of a graph.
      config: an epl.Config.
    """
    merges, method = record_of(tensor.graph).merges, config.communication.gradients_reduce_method
    if any(tensor.name in names for names in merges_of(tensor.graph).values()):
        return
    if config.local_sgd.k_steps:
        key = GraphKeys.LOCAL_MEAN_OBJECTS
    else:
        key = {"mean": GraphKeys.GLOBAL_MEAN_OBJECTS, "sum": GraphKeys.GLOBAL_SUM_OBJECTS, "auto": LOSSES}[method]
    merges.setdefault(key, []).append(tensor.name)


def get_collection(key: str) -> List[Any]:
    """The tensors of the default graph in one collection, in the order in which they were added.

    Raises:
      CollectionKeyError: the key is unknown; a KeyError too.
    """
    return get_all_collections().get(_checked(key), [])


def get_all_collections() -> Dict[str, List[Any]]:
    """dict of collection name to the tensors of the default graph in it."""
    graph = default_graph()
    merges = merges_of(graph)
    return {key: [graph.get_tensor_by_name(n) for n in merges[key]] for key in merges if key in GraphKeys.ALL}
